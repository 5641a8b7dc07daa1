import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ApiError, createClient, type Client } from '../src/index.js'
import { Server } from './server.js'

let server: Server
let client: Client

beforeAll(async () => {
  server = await new Server().start()
  client = createClient({ url: server.url })
})
afterAll(() => server.remove())

describe('the REST client', () => {
  it('enqueues a job and waits for its result', async () => {
    const { id } = await client.enqueueJob({ queue: 'mail', body: { input: 'ada@example.com' } })
    const done = await client.waitForJob({ id, query: { timeout: 20 } })
    expect(done.result).toBe('sent to ada@example.com')
    const job = await client.getJob({ id })
    expect(job.state).toBe('completed')
  })

  it('starts a run, lists it and cancels it', async () => {
    const { id } = await client.startRun({ flow: 'order', body: { input: { id: 'o/1 ä' }, key: 'order-1' } })
    const page = await client.listFlowRuns({ flow: 'order', query: { limit: 10 } })
    expect(page.items.map((run) => run.id)).toContain(id)
    await client.cancelRun({ id, body: { reason: 'a test' } })
    const run = await client.getRun({ id })
    expect(run.status).toBe('cancelled')
    expect(run.reason).toBe('a test')
  })

  it('encodes the parts of a path', async () => {
    await client.setState({ key: 'a/b?c=ä', body: { value: [1] } })
    expect((await client.getState({ key: 'a/b?c=ä' })).value).toEqual([1])
  })

  it('raises the code that the server sent', async () => {
    const problem = await client.getRun({ id: 'nothing' }).catch((error) => error)
    expect(problem).toBeInstanceOf(ApiError)
    expect(problem).toMatchObject({ status: 404, code: 'unknown_run' })
  })

  it('refuses an empty part of a path before it asks the server for something else', async () => {
    await expect(client.getRun({ id: '' })).rejects.toThrow('id must be a text that is not empty')
  })

  it('says that nothing answers', async () => {
    const lost = createClient({ url: 'http://127.0.0.1:9' })
    await expect(lost.listQueues()).rejects.toMatchObject({ status: 0, code: 'unreachable' })
  })

  it('can be stopped', async () => {
    const abort = new AbortController()
    const waiting = client.waitForJob({ id: 'never', query: { timeout: 20 }, signal: abort.signal })
    abort.abort()
    await expect(waiting).rejects.toThrow()
  })

  it('reads text', async () => {
    expect(await client.readMetrics()).toContain('penstock_')
  })
})

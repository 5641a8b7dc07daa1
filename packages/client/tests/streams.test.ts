import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  ApiError, createClient, createEventStream, createQueueStream, type Client, type EventMessage, type JobMessage, type StreamOptions,
} from '../src/index.js'
import { Server, until } from './server.js'

let server: Server
let client: Client

beforeAll(async () => {
  server = await new Server().start()
  client = createClient({ url: server.url })
})
afterAll(() => server.remove())

const start = async (id = 'o1') => (await client.startRun({ flow: 'order', body: { input: { id } } })).id!
const confirm = (run: string) => client.emitEvent({ body: { kind: 'order.confirmed', data: { to: 'Ada' }, run } })

/** A WebSocket as a proxy shows it that lets none through. */
class BlockedSocket extends WebSocket {
  constructor(url: string | URL) {
    super(String(url).replace('/api/_', '/blocked/'))
  }
}

describe.each(['ws', 'sse'] as const)('an event stream by %s', (transport) => {
  const open = (more: StreamOptions = {}) => createEventStream({ client, transport, ...more })

  it('sends the past and the present of a run, in order and once', async () => {
    const run = await start()
    const stream = open()
    const events: EventMessage[] = []
    stream.subscribe({ run, backfill: 1000 }, (message) => void events.push(message))
    await until(() => events.some(({ event }) => event.kind === 'step.await.event'))
    await confirm(run)
    await until(() => events.some(({ event }) => event.kind === 'flow.completed'))
    stream.close()
    const stored = await client.readStream({ type: 'flow', id: run, query: { limit: 1000 } })
    expect(events.map(({ event }) => event.id)).toEqual(stored.items.map((event) => event.id))
    expect(new Set(events.map((one) => one.stream))).toEqual(new Set([`nq:flow:${run}`]))
  })

  it('sends the snapshot first, then what comes after it', async () => {
    const run = await start()
    await until(async () => (await client.getRun({ id: run })).status === 'waiting')
    const stream = open()
    const seen: any[] = []
    stream.subscribe({ run, snapshot: true }, {
      onSnapshot: (view) => void seen.push(view),
      onMessage: ({ event }) => void seen.push(event),
    })
    await until(() => seen.length > 0)
    await confirm(run)
    await until(() => seen.at(-1).kind === 'flow.completed')
    stream.close()
    expect(seen[0]).toMatchObject({ id: run, status: 'waiting', waitStep: 'ship' })
    expect(seen.filter((one) => one.kind === 'flow.started')).toEqual([])
  })

  it('selects events by tags', async () => {
    const stream = createEventStream({ client, transport })
    const seen: unknown[] = []
    const subscription = stream.subscribe({ tags: ['eu', 'audit'] }, ({ event }) => void seen.push(event.data))
    await until(() => subscription.cursor !== undefined)
    await client.emitEvent({ body: { kind: 'price.changed', data: 1, tags: ['eu'] } })
    await client.emitEvent({ body: { kind: 'price.changed', data: 2, tags: ['audit', 'eu'] } })
    await until(() => seen.length > 0)
    expect(seen).toEqual([2])
    stream.close()
  })

  it('selects kinds over all streams', async () => {
    const stream = open()
    const kinds: string[] = []
    let status = ''
    const other = createEventStream({ client, transport, onStatus: (now) => (status = now) })
    const subscription = other.subscribe({ kinds: ['order.paid'] }, ({ event }) => void kinds.push(event.kind))
    await until(() => subscription.cursor !== undefined)
    expect(status).toBe('open')
    await start()
    await until(() => kinds.length === 1)
    await start()
    await until(() => kinds.length === 2)
    expect(kinds).toEqual(['order.paid', 'order.paid'])
    other.close()
    stream.close()
  })

  it('reports what the server refuses, and leaves the other subscriptions alone', async () => {
    const run = await start()
    const stream = open()
    const errors: ApiError[] = []
    const events: string[] = []
    stream.subscribe({ run, backfill: 100 }, ({ event }) => void events.push(event.kind))
    stream.subscribe({ stream: 'no stream' }, { onMessage: () => {}, onError: (error) => void errors.push(error) })
    await until(() => errors.length === 1)
    expect(errors[0]!.code).toBe('bad_stream')
    await until(() => events.includes('step.await.event'))
    await confirm(run)
    await until(() => events.includes('flow.completed'))
    stream.close()
  })

  it('follows as an iterator', async () => {
    const run = await start()
    const stream = open()
    const kinds: string[] = []
    for await (const { event } of stream.follow({ run, backfill: 100 })) {
      kinds.push(event.kind)
      if (event.kind === 'step.await.event') await confirm(run)
      if (event.kind === 'flow.completed') break
    }
    expect(kinds[0]).toBe('flow.started')
    await until(() => stream.status === 'idle') // nothing is followed any more
    stream.close()
  })
})

describe.each(['ws', 'sse'] as const)('a queue stream by %s', (transport) => {
  it('sends what happens to a job', async () => {
    const stream = createQueueStream({ client, transport })
    const messages: JobMessage[] = []
    const subscription = stream.subscribe({ queue: 'mail' }, (message) => void messages.push(message))
    await until(() => subscription.cursor !== undefined)
    const { id } = await client.enqueueJob({ queue: 'mail', body: { input: 'ada' } })
    await until(() => messages.at(-1)?.event === 'completed')
    stream.close()
    expect(messages.map((one) => one.event)).toEqual(['added', 'started', 'log', 'completed'])
    expect(messages.at(-1)).toMatchObject({ v: 1, stream: 'job', jobId: id, queue: 'mail', data: { result: 'sent to ada' } })
  })

  it('selects one job', async () => {
    const stream = createQueueStream({ client, transport })
    const first = await client.enqueueJob({ queue: 'mail', body: { input: 'a' } })
    const second = await client.enqueueJob({ queue: 'mail', body: { input: 'b' } })
    await client.waitForJob({ id: second.id!, query: { timeout: 20 } })
    const messages: JobMessage[] = []
    stream.subscribe({ queue: 'mail', job: first.id!, backfill: 100 }, (message) => void messages.push(message))
    await until(() => messages.at(-1)?.event === 'completed')
    stream.close()
    expect(new Set(messages.map((one) => one.jobId))).toEqual(new Set([first.id]))
  })
})

it('continues after the cursor when the server is back: nothing twice, nothing missing', async () => {
  const own = await new Server().start()
  try {
    const known = createClient({ url: own.url })
    const { id } = await known.startRun({ flow: 'order', body: { input: { id: 'r' } } })
    const followed = (['ws', 'sse'] as const).map((transport) => {
      const stream = createEventStream({ client: known, transport, maxDelayMs: 100 })
      const seen: EventMessage[] = []
      const subscription = stream.subscribe({ run: id!, backfill: 1000 }, (message) => void seen.push(message))
      const has = (kind: string) => seen.some(({ event }) => event.kind === kind)
      return { stream, seen, subscription, has }
    })
    await until(() => followed.every((one) => one.has('step.await.event')))
    await own.stop('SIGKILL')
    await until(() => followed.every((one) => one.stream.status === 'reconnecting'))
    await own.start()
    await known.emitEvent({ body: { kind: 'order.confirmed', data: { to: 'Ada' }, run: id! } })
    await until(() => followed.every((one) => one.has('flow.completed')))
    const stored = await known.readStream({ type: 'flow', id: id!, query: { limit: 1000 } })
    for (const { stream, seen, subscription } of followed) {
      expect(seen.map(({ event }) => event.id)).toEqual(stored.items.map((event) => event.id))
      expect(subscription.cursor).toBe(seen.at(-1)!.event.id)
      stream.close()
    }
  } finally {
    await own.remove()
  }
})

it('falls back to server-sent events where no WebSocket gets through', async () => {
  const run = await start()
  const stream = createEventStream({ client, WebSocket: BlockedSocket })
  const events: string[] = []
  stream.subscribe({ run, backfill: 100 }, ({ event }) => void events.push(event.kind))
  await until(() => events.includes('step.await.event'))
  expect(stream.transport).toBe('sse')
  stream.close()
})

it('uses a ticket for the WebSocket if there are tokens', async () => {
  const guarded = await new Server().start()
  try {
    const token = JSON.parse(await guarded.command('tokens', 'add', 'page', '--role', 'admin', '--json')).text as string
    const known = createClient({ url: guarded.url, token })
    const stream = createEventStream({ client: known, transport: 'ws' })
    const errors: ApiError[] = []
    const events: string[] = []
    await known.startRun({ flow: 'order', body: { input: { id: 'x' }, key: 'one' } })
    stream.subscribe({ run: 'one', backfill: 100 }, { onMessage: ({ event }) => void events.push(event.kind), onError: (error) => void errors.push(error) })
    await until(() => events.includes('step.await.event') || errors.length)
    expect(errors).toEqual([])
    stream.close()
    const unknown = createEventStream({ url: guarded.url, token: 'wrong' })
    unknown.subscribe({ run: 'one' }, { onMessage: () => {}, onError: (error) => void errors.push(error) })
    await until(() => errors.length === 1)
    expect(errors[0]).toMatchObject({ status: 401, code: 'unauthorized' })
  } finally {
    await guarded.remove()
  }
})

// The handlers of the third part of the runner contract in TypeScript: blobs.

import { createHash } from 'node:crypto'
import { appendFileSync } from 'node:fs'

type Handler = (input: any, ctx: any) => unknown
interface Definition { queue?: string; config?: Record<string, unknown>; handle: Handler }

const TWICE = { retryPolicy: { attempts: 2, backoff: { type: 'fixed', delayMs: 10, jitter: false } } }
const note = (input: { trace: string }, line: string) => appendFileSync(input.trace, `${line}\n`)
const show = (blob: any) => [blob.key, blob.size, blob.contentType, blob.sha256]

class ValueError extends Error {
  override name = 'ValueError'
}

const flow = (id: string, handle: Handler, more: Record<string, unknown> = {}): Definition => ({
  queue: 'default',
  config: { flow: { id, role: 'main', step: id, emits: [] }, ...more },
  handle,
})

async function* letters() {
  for (const letter of ['a', 'b', 'c']) yield letter.repeat(600_000)
}

function* broken() {
  yield new Uint8Array(600_000)
  throw new ValueError('no rows')
}

export const handlers: Record<string, Definition> = {
  blobs: flow('blobs', async (text: string, ctx) => {
    const put = await ctx.blob.put('runner/a.csv', text)
    const content = (await ctx.blob.get('runner/a.csv')).toString()
    const info = await ctx.blob.info('runner/a.csv')
    const deleted = [await ctx.blob.delete('runner/a.csv'), await ctx.blob.delete('runner/a.csv')]
    return [show(put), content, show(info), deleted]
  }),
  'blob-streams': flow('blob-streams', async (input, ctx) => {
    const put = await ctx.blob.put('runner/large', letters())
    for await (const _ of ctx.blob.stream('runner/large')) break
    const hash = createHash('sha256')
    let parts = 0
    for await (const part of ctx.blob.stream('runner/large')) {
      hash.update(part)
      parts++
    }
    return [put.size, hash.digest('hex'), parts]
  }),
  'blob-errors': flow('blob-errors', async (kind: string, ctx) => {
    try {
      if (kind === 'missing') await ctx.blob.get('none')
      if (kind === 'key') await ctx.blob.put('../x', '1')
      if (kind === 'expires') await ctx.blob.url('a', { expires: '8d' })
      if (kind === 'chunks') await ctx.blob.put('a', broken())
    } catch (error: any) {
      return [error.name, error.code ?? null]
    }
  }),
  'blob-url': flow('blob-url', async (input, ctx) => ctx.blob.url('runner/a.csv', { expires: '1h', method: 'PUT' })),
  'blob-in-call': flow('blob-in-call', async (input, ctx) => {
    const key = await ctx.run('store', async () => {
      note(input, 'put')
      return (await ctx.blob.put('runner/a.txt', new TextEncoder().encode(String(ctx.attempt)))).key
    })
    if (ctx.attempt === 1) throw new Error('once more')
    return key
  }, TWICE),
  'blob-branches': flow('blob-branches', async (input, ctx) => {
    const store = async () => {
      await ctx.blob.put('runner/branch', new Blob(['x'.repeat(700_000)]))
      const found = await ctx.state.get('none', 'none')
      await ctx.run('put', () => note(input, 'put'))
      return `found ${found}`
    }
    const [event, found] = await Promise.all([ctx.wait.event('runner.go'), store()])
    return [event.kind, found]
  }),
}

// The handlers of the runner contract in TypeScript. The contract writes one worker file for each of them.

import { appendFileSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

import { Permanent, RateLimited, Retry } from 'penstock'

type Handler = (input: any, ctx: any) => unknown
interface Definition { queue?: string; config?: Record<string, unknown>; handle: Handler }

enum Fixed { delayMs = 10 }
const FIXED = { type: 'fixed', delayMs: Fixed.delayMs, jitter: false }
const note = (input: { trace: string }, line: string) => appendFileSync(input.trace, `${line}\n`)
const count = (input: { trace: string }, line: string) =>
  readFileSync(input.trace, 'utf8').split('\n').filter((one) => one === line).length

class LookupError extends Error {}
class PaymentError extends LookupError {
  override name = 'PaymentError'
  code = 'card_declined'
}
class ConnectionError extends Error {
  override name = 'ConnectionError'
}
class ValueError extends Error {
  override name = 'ValueError'
}

const ORDER = {
  type: 'object',
  properties: { id: { type: 'integer' }, total: { type: 'number' } },
  required: ['id'],
}

const flow = (id: string, handle: Handler, more: Record<string, unknown> = {}, emits: string[] = []): Definition => ({
  queue: 'default',
  config: { flow: { id, role: 'main', step: id, emits }, ...more },
  handle,
})
const step = (id: string, name: string, on: string, handle: Handler, more: Record<string, unknown> = {}): Definition => ({
  queue: 'default',
  config: { flow: { id, role: 'step', step: name, triggers: on, emits: [] }, ...more },
  handle,
})
const job = (queue: string, handle: Handler, config: Record<string, unknown> = {}): Definition => ({ queue, config, handle })

export const handlers: Record<string, Definition> = {
  echo: flow('echo', async (input) => {
    console.log('a handler may print')
    return input
  }),
  facts: flow('facts', async (input, ctx) => ({
    run: ctx.runId, flow: ctx.flow, step: ctx.step, job: ctx.jobId, queue: ctx.queue, attempt: ctx.attempt, n: ctx.n,
    correlation: ctx.correlationId(), key: ctx.idempotencyKey('charge'), cancelled: ctx.cancelled,
  })),
  'bad-result': flow('bad-result', async () => ({ done: () => 1 })),
  model: flow('model', async (order) => ['Order', order.id, order.total], { inputSchema: ORDER }),
  'bad-model': flow('bad-model', async (input, ctx) => ctx.emit('order.made', { id: 'seven' }), {}, ['order.made']),
  takes: step('bad-model', 'takes', 'order.made', async (order) => order.id, { inputSchema: ORDER }),
  fails: flow('fails', async () => {
    throw new PaymentError('no money left')
  }),
  recovers: flow('recovers', async (input, ctx) => {
    ctx.emit('tried', ctx.attempt)
    if (ctx.attempt < 3) throw new ConnectionError('busy')
    return ctx.attempt
  }, { retryPolicy: { attempts: 3, backoff: FIXED } }, ['tried']),
  permanent: flow('permanent', async (input, ctx) => {
    throw new Permanent(`not again after attempt ${ctx.attempt}`)
  }, { retry: 5 }),
  later: flow('later', async (input, ctx) => {
    if (ctx.attempt === 1) throw new Retry('soon', { after: '2h' })
    return ctx.attempt
  }, { retry: 2 }),
  selective: flow('selective', async (input, ctx) => {
    if (ctx.attempt === 1) throw new PaymentError('is a LookupError')
    throw new ValueError(`attempt ${ctx.attempt}`)
  }, { retryPolicy: { attempts: 5, backoff: FIXED, retriableErrors: ['LookupError'] } }),
  limited: job('runner-api', async (input, ctx) => {
    note(input, 'called')
    if (count(input, 'called') === 1) throw new RateLimited('quota', { after: '1h' })
    return ctx.attempt
  }),
  emits: flow('emits', async (input, ctx) => {
    ctx.emit('order.paid', { id: 7, name: 'Zoë' }, { tags: ['audit', 'eu'] })
    return 'first'
  }, {}, ['order.paid']),
  ship: step('emits', 'ship', 'order.paid', async (event) => event),
  undeclared: flow('undeclared', async (input, ctx) => {
    ctx.emit('order.lost', 1)
    await sleep(200)
  }, {}, ['order.paid']),
  live: flow('live', async (input, ctx) => {
    ctx.log('charging', { cents: 5 })
    ctx.logger.warn('slow')
    ctx.emit({ type: 'progress', data: 40 })
    ctx.partial({ text: 'a' })
  }),
  state: flow('state', async (input, ctx) => {
    const missing = await ctx.state.get('cart', 'none')
    ctx.state.set('cart', { n: 1 })
    ctx.state.set('gone', 1)
    ctx.state.delete('gone')
    ctx.shared.set(`seen-${ctx.runId}`, true, { ttl: '1h' })
    const counts = []
    for (const _ of [1, 2, 3]) counts.push(await ctx.state.patch('count', (n: number | null) => (n ?? 0) + 1))
    ctx.emit('stored')
    return [missing, await ctx.state.get('cart'), counts, (await ctx.state.list()).keys.sort()]
  }, {}, ['stored']),
  reads: step('state', 'reads', 'stored', async (input, ctx) => [
    await ctx.state.get('cart'), await ctx.state.get('gone'), await ctx.state.get('count'),
    await ctx.shared.get(`seen-${ctx.runId}`),
  ]),
  once: flow('once', async (input, ctx) => {
    const paid = await ctx.run('charge', () => {
      note(input, 'charge')
      return { charged: 5 }
    })
    const values = [await ctx.uuid(), await ctx.random(), (await ctx.now()).toISOString()]
    const again = await ctx.state.patch('tries', (n: number | null) => (n ?? 0) + 1)
    note(input, String(values))
    if (ctx.attempt < 3) {
      await ctx.run('barrier', () => ctx.attempt)
      throw new ConnectionError('after the charge')
    }
    return [paid, again]
  }, { retryPolicy: { attempts: 3, backoff: FIXED } }),
  'call-fails': flow('call-fails', async (input, ctx) => {
    try {
      await ctx.run('broken', () => {
        note(input, 'try')
        throw new ValueError('no')
      }, { retry: { attempts: 2, backoff: FIXED } })
    } catch (error: any) {
      if (error.name === 'CallFailed') return error.message
      throw error
    }
    return 'it did not fail'
  }),
  naps: flow('naps', async (input, ctx) => {
    ctx.emit('before')
    ctx.log('going to wait')
    await ctx.wait.time('24h')
    note(input, 'woke')
    return (await ctx.now()).toISOString()
  }, {}, ['before']),
  hears: flow('hears', async (input, ctx) => {
    try {
      return (await ctx.await.event({ kind: 'runner.paid', match: { id: 7 }, timeout: 3_600_000 })).data
    } catch (error: any) {
      if (error.code === 'AWAIT_TIMEOUT') return 'timed out'
      throw error
    }
  }),
  'gives-up': flow('gives-up', async (input, ctx) => ctx.await.event('runner.never', { timeout: '1h' }), { retry: 3 }),
  asks: flow('asks', async (input, ctx) => {
    const trigger = await ctx.await.trigger('approval', { timeout: '1h' })
    await ctx.run('tell', () => note(input, trigger.token))
    return [trigger.url.endsWith(trigger.token), await trigger.wait()]
  }),
  joins: flow('joins', async (input, ctx) => {
    await ctx.all([
      ctx.run('one', () => 1), ctx.wait.time('1h', { name: 'pause' }), ctx.wait.event('runner.paid', { name: 'paid' }),
    ])
    return 'all'
  }),
  branches: flow('branches', async (input, ctx) => {
    const did = (what: string) => () => {
      note(input, what)
      return what
    }
    const branch = async (name: string) => {
      const first = await ctx.run(`${name} one`, did(`${name}1`))
      await ctx.wait.event(`runner.${name}`)
      return `${first} ${await ctx.run(`${name} two`, did(`${name}2`))}`
    }
    return Promise.all([branch('a'), branch('b'), ctx.run('c', did('c1'))])
  }),
  // Branches that never overlap, in another order when the handler runs again.
  reorders: flow('reorders', async (input, ctx) => {
    const branch = async (name: string) => {
      await new Promise((resolve) => setImmediate(resolve))
      await ctx.run(name, () => note(input, name))
      ctx.emit(`order.${name}`, name)
      ctx.state.set(name, name)
    }
    note(input, 'turn')
    let before = Promise.resolve()
    const branches = [...(count(input, 'turn') === 1 ? 'ab' : 'cba')].map((name) => (before = before.then(() => branch(name))))
    await Promise.all(branches)
    await ctx.wait.event('runner.go')
    return 'reordered'
  }, {}, ['order.a', 'order.b', 'order.c']),
  // Calls one after the other, in another order when the handler runs again.
  swaps: flow('swaps', async (input, ctx) => {
    note(input, 'turn')
    for (const name of count(input, 'turn') === 1 ? 'ab' : 'ba') await ctx.run(name, () => note(input, name))
    await ctx.wait.event('runner.go')
  }),
  races: flow('races', async (input, ctx) => {
    const [winner] = await ctx.first({ event: ctx.wait.event('runner.never'), time: ctx.wait.time('1h', { name: 'late' }) })
    return winner
  }),
  'two-sites': flow('two-sites', async (input, ctx) => {
    await ctx.run('same', () => 1)
    await ctx.run('same', () => 2)
  }),
  hangs: flow('hangs', async (input, ctx) => sleep(60_000, undefined, { signal: ctx.signal }), { timeout: 300 }),
  'runs-long': flow('runs-long', async (input, ctx) => {
    note(input, 'started')
    try {
      await sleep(60_000, undefined, { signal: ctx.signal })
    } finally {
      note(input, 'stopped')
    }
  }),
  child: job('runner-child', async (n) => n * 10),
  parent: job('runner-parent', async (input, ctx) => Object.values(await ctx.childrenValues()).sort()),
  launches: flow('launches', async (input, ctx) => {
    note(input, 'attempt')
    const first = await ctx.enqueue('runner-child', 4, { priority: 2 })
    const run = await ctx.start('echo', 'hi', { tags: { by: 'launches' } })
    await ctx.wait.time('1h')
    const second = await ctx.enqueue('runner-child', 5, { delay: '1h' })
    if (count(input, 'attempt') < 3) throw new LookupError('once more')
    return [first, run, second]
  }, { retryPolicy: { attempts: 3, backoff: FIXED } }),
  launch: job('runner-launch', async (input, ctx) => {
    const ids = [await ctx.enqueue('runner-child', 6, { key: 'six' }), await ctx.start('echo', 'from a job')]
    if (ctx.attempt === 1) throw new LookupError('once more')
    return ids
  }, { retryPolicy: { attempts: 2, backoff: FIXED } }),
  'bad-launch': flow('bad-launch', async (input, ctx) => ctx.start('ecko', 1)),
  calls: flow('calls', async (input, ctx) => {
    const one = await ctx.call('echo', 'hi')
    const many = await ctx.callMany('echo', [1, 2])
    const both = await ctx.all([ctx.call('echo', 'a', { name: 'a' }), ctx.call('echo', 'b', { name: 'b' })])
    try {
      await ctx.call('permanent')
    } catch (error: any) {
      return [one, many, both, error.code]
    }
  }),
}

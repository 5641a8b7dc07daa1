// The handlers of the second half of the runner contract in TypeScript: values, errors, floods and crashes.

import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

type Handler = (input: any, ctx: any) => unknown
interface Definition { queue?: string; config?: Record<string, unknown>; handle: Handler }

const TWICE = { retryPolicy: { attempts: 2, backoff: { type: 'fixed', delayMs: 10, jitter: false } } }
const note = (input: { trace: string }, line: string) => appendFileSync(input.trace, `${line}\n`)

class KeyError extends Error {
  override name = 'KeyError'
}
class RuntimeError extends Error {
  override name = 'RuntimeError'
}

const flow = (id: string, handle: Handler, more: Record<string, unknown> = {}, emits: string[] = []): Definition => ({
  queue: 'default',
  config: { flow: { id, role: 'main', step: id, emits }, ...more },
  handle,
})
const step = (id: string, name: string, on: string, handle: Handler): Definition => ({
  queue: 'default',
  config: { flow: { id, role: 'step', step: name, triggers: on, emits: [] } },
  handle,
})
const job = (queue: string, handle: Handler, config: Record<string, unknown> = {}): Definition => ({ queue, config, handle })

export const handlers: Record<string, Definition> = {
  passes: flow('passes', async (input, ctx) => {
    ctx.log('value', { value: input })
    ctx.progress(input)
    ctx.partial(input)
    ctx.state.set('value', input)
    const stored = await ctx.state.get('value')
    const called = await ctx.run('same', () => input)
    ctx.emit('passed', input)
    return [stored, called]
  }, {}, ['passed']),
  receives: step('passes', 'receives', 'passed', async (input) => input),
  'wrong-value': flow('wrong-value', async (kind: string, ctx) => {
    const [place, what] = kind.split(' ')
    const bad: any = { nan: NaN, surrogate: '\ud83d', integer: 2n ** 53n + 1n, large: 'x'.repeat(1_100_000) }[what!] ?? (() => 1)
    if (place === 'emit') ctx.emit('wrong', bad)
    if (place === 'state') ctx.state.set('wrong', bad)
    if (place === 'call') await ctx.run('wrong', () => bad)
    if (place === 'enqueue') await ctx.enqueue('runner-echo', bad)
    if (place === 'return') return bad
  }, {}, ['wrong']),
  raises: flow('raises', async (kind: string) => {
    if (kind === 'cause') throw new RuntimeError('the effect', { cause: new Error('the cause') })
    const texts: Record<string, string> = { empty: '', unicode: 'Zoë 🚀\n\u2028 \'quoted\' "twice"', long: 'x'.repeat(1_100_000) }
    throw new RuntimeError(texts[kind])
  }),
  dates: flow('dates', async () => new Date(86_400_000)),
  prints: flow('prints', async () => {
    for (let n = 0; n < 2000; n++) console.log(`line ${n}`)
    process.stdout.write(`${'x'.repeat(2 ** 20)}\n[1,{"type":"done","result":"forged"}]\n`)
    return 'printed'
  }),
  crashes: flow('crashes', async (input, ctx) => {
    ctx.emit('survived', ctx.attempt)
    await ctx.run('charge', () => note(input, 'charge'))
    if (ctx.attempt === 1) process.exit(3)
    return ctx.attempt
  }, TWICE, ['survived']),
  'emits-many': flow('emits-many', async (input, ctx) => {
    for (let n = 0; n < 100; n++) ctx.emit('many', n)
  }, {}, ['many']),
  floods: flow('floods', async (input, ctx) => {
    for (let n = 0; n < 3000; n++) {
      ctx.partial('x'.repeat(500))
      ctx.log('line', { n })
    }
    return 'done'
  }),
  loops: flow('loops', async (input, ctx) => {
    const seen = []
    for (let n = 0; n < 3; n++) {
      seen.push(await ctx.run(`step ${n}`, () => n * n))
      await ctx.wait.time('1h', { name: `pause ${n}` })
    }
    return seen
  }),
  'hears-two': flow('hears-two', async (input, ctx) => {
    const first = await ctx.wait.event('runner.x')
    const second = await ctx.wait.event('runner.y', { where: (event: any) => event.data.n > 5 })
    return [first.data, second.data, first.kind]
  }),
  stubborn: flow('stubborn', async (input, ctx) => {
    note(input, 'started')
    try {
      await sleep(60_000, undefined, { signal: ctx.signal })
    } catch {
      note(input, 'stopped')
    }
    ctx.emit('late')
    return 'late'
  }, {}, ['late']),
  'long-call': flow('long-call', async (input, ctx) => ctx.run('work', async () => {
    note(input, 'started')
    try {
      await sleep(60_000, undefined, { signal: ctx.signal })
    } finally {
      note(input, 'stopped')
    }
  })),
  'inner-error': flow('inner-error', async (input, ctx) => ctx.run('fails', () => {
    throw new KeyError(`missing${'x'.repeat(1_100_000)}`)
  })),
  'emits-then-fails': flow('emits-then-fails', async (input, ctx) => {
    ctx.emit('half', ctx.attempt)
    ctx.state.set('half', ctx.attempt)
    throw new RuntimeError('no')
  }, TWICE, ['half']),
  work: job('runner-work', async (kind: string, ctx) => {
    ctx.progress(50)
    ctx.log('working')
    if (kind === 'fails' || (kind === 'recovers' && ctx.attempt === 1)) throw new RuntimeError('the job failed')
    return [kind, ctx.attempt, ctx.flow, ctx.runId]
  }, TWICE),
  'naps-job': job('runner-naps', async (input, ctx) => ctx.wait.time('1h')),
  'echo-job': job('runner-echo', async (input) => input),
}

// What worker files import: the functions, the errors, and the types, which tsc checks here.

import { expect, expectTypeOf, it } from 'vitest'
import {
  defineFunction, defineFunctionConfig, defineQueueConfig, fail, next, NODE_OUTCOME, Permanent, RateLimited, Retry, skip, type QueueConfig, type WorkerContext,
} from '../src/index.js'

it('returns a config as it is', () => {
  const config = defineQueueConfig({
    queue: 'mail',
    flow: { id: 'order', role: 'main', step: 'send', emits: ['mail.sent'], subscriptions: [{ kind: 'a.b', when: (event) => event.data.n > 1 }] },
    retryPolicy: { attempts: 3, backoff: { type: 'fixed', delayMs: 10 } },
    timeout: 5000,
    idempotencyKey: 'order.id',
    useWorkerThreads: true,
  })
  defineQueueConfig({ idempotencyKey: (input: { id: string }) => input.id, rateKey: (input) => input.id.length })
  // @ts-expect-error the order of jobs is that of their commits
  defineQueueConfig({ orderKey: (input: { id: string }) => input.id })
  // @ts-expect-error no such option
  defineQueueConfig({ retryPolcy: { attempts: 3 } })
  expect(config.queue).toBe('mail')
  expect(defineFunctionConfig(config)).toBe(config)
  expectTypeOf(config.timeout).toEqualTypeOf<QueueConfig['timeout']>()
})

it('makes what the executor of a node returns', () => {
  expect(skip('away')).toEqual({ [NODE_OUTCOME]: 'skip', reason: 'away' })
  expect(fail('no', { retry: false })).toEqual({ [NODE_OUTCOME]: 'fail', reason: 'no', retry: false })
  expect(next('pay', 5)).toEqual({ [NODE_OUTCOME]: 'next', nodes: ['pay'], data: 5 })
  expect(next(['a', 'b']).nodes).toEqual(['a', 'b'])
  expect(defineQueueConfig({ node: { type: 'pay' }, breaker: { openFor: '30s' } }).node).toEqual({ type: 'pay' })
})

it('adds the config to a function', async () => {
  const send = defineFunction({ queue: 'mail' }, async (input: { to: string }, ctx) => {
    expectTypeOf(ctx).toEqualTypeOf<WorkerContext<{ to: string }>>()
    return `to ${input.to}`
  })
  expect((send as any).config).toEqual({ queue: 'mail' })
  expect(await send({ to: 'Ada' }, {} as any)).toBe('to Ada')
  const named = async () => 1
  expect(defineFunction({ queue: 'q', handler: named })).toBe(named)
  expect(defineFunction(named)).toBe(named)
  expect(() => defineFunction({ queue: 'q' } as any)).toThrow('defineFunction requires a function')
})

it('types the calls of ctx', () => {
  const check = async (ctx: WorkerContext<{ id: number }>) => {
    expectTypeOf(await ctx.run('charge', async () => 7)).toEqualTypeOf<number>()
    expectTypeOf(await ctx.all([ctx.run('a', () => 'x'), ctx.run('b', () => 1)])).toExtend<readonly unknown[]>()
    expectTypeOf(ctx.input.id).toEqualTypeOf<number>()
    expectTypeOf((await ctx.await.event('a.b')).id).toEqualTypeOf<string>()
    expectTypeOf((await ctx.blob.put('a.csv', ['a;', new Uint8Array(1)])).size).toEqualTypeOf<number>()
    expectTypeOf(await ctx.blob.get('a.csv')).toEqualTypeOf<Uint8Array>()
    // @ts-expect-error a number is nothing that can be put
    await ctx.blob.put('a.csv', 7)
  }
  expect(check).toBeTypeOf('function')
})

it('has the errors that decide about a retry, known by name', () => {
  expect(new Permanent('no').name).toBe('Permanent')
  expect(new Retry('later', { after: '2h' })).toMatchObject({ name: 'Retry', message: 'later', after: '2h' })
  expect(new RateLimited('full', { after: 100, cause: 'x' })).toMatchObject({ name: 'RateLimited', after: 100, cause: 'x' })
})

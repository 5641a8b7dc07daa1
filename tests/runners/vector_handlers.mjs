// The handlers of the conversations in tests/vectors/frames.json, for the Node host. `config.handler` chooses one.

import { setTimeout as sleep } from 'node:timers/promises'

const handlers = {
  echo: async (input) => input,
  notices: async (input, ctx) => {
    ctx.emit('order.paid', { id: 7 })
    ctx.log('charging', { cents: 5 })
    ctx.progress(40)
    ctx.partial('a')
    ctx.state.set('cart', 1)
  },
  fails: async () => {
    throw Object.assign(new Error('no money left'), { name: 'LookupError' })
  },
  reads: async (input, ctx) => ctx.state.get('cart'),
  puts: async (input, ctx) => (await ctx.blob.put('a.csv', 'Zoë')).size,
  gets: async (input, ctx) => (await ctx.blob.get('a.csv')).toString(),
  charges: async (input, ctx) => ctx.run('charge', () => ({ charged: input })),
  catches: async (input, ctx) => {
    try {
      return (await ctx.wait.event('order.paid', { timeout: '1s' })).data
    } catch (error) {
      if (error.name !== 'AwaitTimeout') throw error
      return 'timed out'
    }
  },
  sleeps: async (input, ctx) => {
    ctx.log('sleeping')
    await sleep(60_000, undefined, { signal: ctx.signal })
  },
}

export default (input, ctx) => handlers[ctx.queue](input, ctx)

// The hooks of Vue and React, in a component, against a real server. Only the document is happy-dom's: its fetch
// refuses other origins.

import { Window } from 'happy-dom'
import { createElement } from 'react'
import type { Root } from 'react-dom/client'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { effectScope, ref } from 'vue'
import { createClient, createEventStream, type Client } from '../src/index.js'
import { useQueueSubscription as reactQueue, useRun as reactRun, type QueueChange, type RunChange, type RunHookOptions } from '../src/react.js'
import { useQueueSubscription as vueQueue, useRun as vueRun } from '../src/vue.js'
import { Server, until } from './server.js'

let server: Server
let client: Client
let newRoot: () => Root

beforeAll(async () => {
  const window = new Window()
  for (const [name, value] of Object.entries({ window, document: window.document, navigator: window.navigator })) {
    Object.defineProperty(globalThis, name, { value, configurable: true })
  }
  const { createRoot } = await import('react-dom/client') // it looks for a window when it is imported
  newRoot = () => createRoot(document.createElement('div'))
  server = await new Server().start()
  client = createClient({ url: server.url })
})
afterAll(() => server.remove())

const start = async (id: string) => (await client.startRun({ flow: 'order', body: { input: { id } } })).id!
const confirm = (run: string) => client.emitEvent({ body: { kind: 'order.confirmed', data: { to: 'Ada' }, run } })

interface Mounted {
  run(): RunChange
  jobs(): QueueChange
  follow(run: string | null): void
  unmount(): void
}

function mountVue(first: string | null, options: RunHookOptions): Mounted {
  const id = ref(first)
  const scope = effectScope()
  const [run, jobs] = scope.run(() => [vueRun(id, options), vueQueue('mail', { client })] as const)!
  return {
    run: () => ({ state: run.state.value, status: run.status.value, error: run.error.value }),
    jobs: () => ({ messages: jobs.messages.value, status: jobs.status.value, error: jobs.error.value }),
    follow: (next) => void (id.value = next),
    unmount: () => scope.stop(),
  }
}

function mountReact(first: string | null, options: RunHookOptions): Mounted {
  const root = newRoot()
  let seen: [RunChange, QueueChange] | undefined
  const Shown = ({ id }: { id: string | null }) => {
    seen = [reactRun(id, options), reactQueue('mail', { client })]
    return null
  }
  const render = (id: string | null) => root.render(createElement(Shown, { id }))
  render(first)
  return { run: () => seen?.[0] ?? { state: null, status: 'idle', error: null }, jobs: () => seen?.[1] ?? { messages: [], status: 'idle', error: null }, follow: render, unmount: () => root.unmount() }
}

describe.each([['Vue', mountVue], ['React', mountReact]] as const)('the hooks of %s', (_name, mount) => {
  it('follow a run from its first event to its end, and another one after that', async () => {
    const [one, two] = [await start('one'), await start('two')]
    const mounted = mount(one, { client })
    await until(() => mounted.run().state?.status === 'waiting')
    expect(mounted.run()).toMatchObject({ status: 'open', error: null, state: { id: one, waitStep: 'ship', emitted: [{ kind: 'order.paid' }] } })
    await confirm(one)
    await until(() => mounted.run().state?.status === 'completed')
    expect(mounted.run().state!.steps.ship!.result).toBe('shipped one to Ada')
    mounted.follow(two)
    await until(() => mounted.run().state?.id === two)
    mounted.follow(null)
    await until(() => mounted.run().state === null)
    mounted.unmount()
  })

  it('follow a queue', async () => {
    const mounted = mount(null, { client })
    await until(() => mounted.run() && mounted.jobs().status === 'open')
    const { id } = await client.enqueueJob({ queue: 'mail', body: { input: 'ada' } })
    await until(() => mounted.jobs().messages.some((one) => one.jobId === id && one.event === 'completed'))
    mounted.unmount()
  })

  it('share a connection, and leave it open', async () => {
    const stream = createEventStream({ client })
    const run = await start('shared')
    const mounted = mount(run, { stream })
    await until(() => mounted.run().state?.status === 'waiting')
    mounted.unmount()
    expect(stream.status).not.toBe('closed')
    stream.close()
  })

  it('report what the server refuses', async () => {
    const mounted = mount('some-run', { url: `${server.url}/nowhere`, transport: 'sse' })
    await until(() => mounted.run().error !== null)
    expect(mounted.run()).toMatchObject({ state: null, error: { status: 404 } })
    mounted.unmount()
  })
})

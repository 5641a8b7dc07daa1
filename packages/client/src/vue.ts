// Hooks for Vue. They follow while their component, or effect scope, lives.

import { onScopeDispose, shallowRef, toValue, watch, type MaybeRefOrGetter, type ShallowRef } from 'vue'

import { followQueue, followRun, type QueueChange, type QueueHookOptions, type RunChange, type RunHookOptions, type Stop } from './hooks/follow.js'

export type { QueueChange, QueueHookOptions, RunChange, RunHookOptions } from './hooks/follow.js'

type Refs<Change> = { readonly [K in keyof Change]: Readonly<ShallowRef<Change[K]>> }
type Id = MaybeRefOrGetter<string | null | undefined>

/** Follow a run: `const { state, status, error } = useRun(id)`. A new id starts over; null follows nothing. */
export function useRun(run: Id, options: RunHookOptions = {}): Refs<RunChange> {
  return use<RunChange>(run, { state: null, status: 'idle', error: null }, (id, report) => followRun(id, options, report))
}

/** Follow the jobs of a queue: `const { messages, status, error } = useQueueSubscription('mail')`. */
export function useQueueSubscription(queue: Id, options: QueueHookOptions = {}): Refs<QueueChange> {
  return use<QueueChange>(queue, { messages: [], status: 'idle', error: null }, (id, report) => followQueue(id, options, report))
}

function use<Change extends object>(id: Id, first: Change, follow: (id: string, report: (change: Change) => void) => Stop): Refs<Change> {
  const names = Object.keys(first) as (keyof Change)[]
  const refs = Object.fromEntries(names.map((name) => [name, shallowRef(first[name])])) as unknown as { [K in keyof Change]: ShallowRef<Change[K]> }
  const show = (change: Change) => names.forEach((name) => (refs[name].value = change[name]))
  let stop: Stop | undefined
  watch(() => toValue(id), (now) => {
    stop?.()
    show(first)
    stop = now ? follow(now, show) : undefined
  }, { immediate: true })
  onScopeDispose(() => stop?.())
  return refs
}

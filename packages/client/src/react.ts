// Hooks for React. They follow while their component is mounted.

import { useEffect, useRef, useState } from 'react'

import { followQueue, followRun, type QueueChange, type QueueHookOptions, type RunChange, type RunHookOptions, type Stop } from './hooks/follow.js'

export type { QueueChange, QueueHookOptions, RunChange, RunHookOptions } from './hooks/follow.js'

type Id = string | null | undefined

const NO_RUN: RunChange = { state: null, status: 'idle', error: null }
const NO_JOBS: QueueChange = { messages: [], status: 'idle', error: null }

/** Follow a run: `const { state, status, error } = useRun(id)`. A new id starts over; null follows nothing. */
export function useRun(run: Id, options: RunHookOptions = {}): RunChange {
  return use(run, NO_RUN, options, followRun)
}

/** Follow the jobs of a queue: `const { messages, status, error } = useQueueSubscription('mail')`. */
export function useQueueSubscription(queue: Id, options: QueueHookOptions = {}): QueueChange {
  return use(queue, NO_JOBS, options, followQueue)
}

/** The options of the first render count: an object literal is another one in each render. */
function use<Change, Options>(
  id: Id, first: Change, options: Options, follow: (id: string, options: Options, report: (change: Change) => void) => Stop,
): Change {
  const [shown, show] = useState({ id, change: first })
  const given = useRef(options)
  useEffect(() => (id ? follow(id, given.current, (change) => show({ id, change })) : undefined), [id])
  return shown.id === id ? shown.change : first
}

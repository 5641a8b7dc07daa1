// What the hooks of Vue and React share: follow a run or a queue, and report each change once per turn.

import { applyDag, applyFlow, newFlowState, viewOf, type FlowState } from '../reducers/index.js'
import type { ApiError } from '../rest/errors.js'
import {
  createEventStream, createQueueStream, type EventStream, type JobMessage, type QueueStream, type StreamOptions, type StreamStatus,
} from '../streams/index.js'

/** The end of a hook's subscription. */
export type Stop = () => void

export interface RunHookOptions extends Omit<StreamOptions, 'onStatus'> {
  /** Share a connection; otherwise the hook opens one and closes it. */
  stream?: EventStream
  /** `dag` for a run of a dag. */
  kind?: 'flow' | 'dag'
}

export interface QueueHookOptions extends Omit<StreamOptions, 'onStatus'> {
  /** Share a connection; otherwise the hook opens one and closes it. */
  stream?: QueueStream
  /** Only messages of this job. */
  job?: string
  /** Send this many of the newest messages first. */
  backfill?: number
  /** How many messages to keep. Default 100. */
  limit?: number
}

export interface RunChange {
  /** The run as people see it, folded from its events; null before the first one. */
  state: FlowState | null
  status: StreamStatus
  error: ApiError | null
}

export interface QueueChange {
  /** The newest messages, oldest first. */
  messages: readonly JobMessage[]
  status: StreamStatus
  error: ApiError | null
}

/** Follow a run from its first event. `report` gets a new object for each change. */
export function followRun(run: string, options: RunHookOptions, report: (change: RunChange) => void): Stop {
  const { stream: shared, kind = 'flow', ...rest } = options
  const state = newFlowState()
  const apply = kind === 'dag' ? applyDag : applyFlow
  const seen = { hasEvents: false, error: null as ApiError | null }
  const show = batch(() => report({ state: seen.hasEvents ? viewOf(state) : null, status: stream.status, error: seen.error }))
  const stream = shared ?? createEventStream({ ...rest, onStatus: () => show.soon() })
  const subscription = stream.subscribe({ run, kind, after: '0-0' }, {
    onMessage: ({ event }) => {
      seen.hasEvents = true
      apply(state, event)
      show.soon()
    },
    onError: (error) => {
      seen.error = error
      show.soon()
    },
  })
  return () => {
    subscription.close()
    if (shared === undefined) stream.close()
    show.stop()
  }
}

/** Follow the jobs of a queue. `report` gets a new list for each change. */
export function followQueue(queue: string, options: QueueHookOptions, report: (change: QueueChange) => void): Stop {
  const { stream: shared, job, backfill, limit = 100, ...rest } = options
  let messages: readonly JobMessage[] = []
  let problem: ApiError | null = null
  const show = batch(() => report({ messages, status: stream.status, error: problem }))
  const stream = shared ?? createQueueStream({ ...rest, onStatus: () => show.soon() })
  const subscription = stream.subscribe({ queue, job, backfill }, {
    onMessage: (message) => {
      messages = [...messages, message].slice(-limit)
      show.soon()
    },
    onError: (error) => {
      problem = error
      show.soon()
    },
  })
  return () => {
    subscription.close()
    if (shared === undefined) stream.close()
    show.stop()
  }
}

/** Call a function once for all changes of one turn. */
function batch(act: () => void): { soon(): void; stop(): void } {
  let timer: ReturnType<typeof setTimeout> | undefined
  return {
    soon: () => {
      timer ??= setTimeout(() => {
        timer = undefined
        act()
      }, 0)
    },
    stop: () => clearTimeout(timer),
  }
}

// What the events of a run fold to.

import type { CallState, LogLine } from './job.js'
import { dict } from './values.js'

export type RunStatus =
  | 'running' | 'waiting' | 'paused' | 'compensating' | 'completed' | 'failed' | 'compensated' | 'cancelled'

export type StepStatus =
  | 'pending' | 'running' | 'completed' | 'failed' | 'retrying' | 'waiting' | 'timeout' | 'cancelled' | 'skipped'

export type AwaitType = 'time' | 'event' | 'trigger' | 'flow'

/** One instance of a step, or a node of a dag. */
export interface StepState {
  step: string
  n: number
  status: StepStatus
  attempt: number
  startedAt?: string
  completedAt?: string
  duration?: number
  result?: any
  error?: string
  errorName?: string
  code?: string
  /** Where the handler failed. */
  file?: string
  line?: number
  frames: { file: string; line: number; function: string; source: string }[]
  /** Id of its dead letter, after a final failure. */
  deadLetter?: string
  /** Why a node was skipped. */
  reason?: string
  nextRetryAt?: string
  progress?: any
  /** Output of one attempt: a failed or crashed one leaves nothing here. */
  partials: any[]
  /** That attempt. */
  partialsOf?: number
  /** Its `ctx.run` calls, by name. */
  calls: Record<string, CallState>
  awaitType?: AwaitType
  awaitData?: any
  awaitSince?: string
  /** The other waits, if it has several. */
  alsoAwaits: { type?: string; data?: any; since?: string }[]
}

/** An event that a handler emitted. */
export interface EmittedEvent {
  id: string
  ts: string
  kind: string
  step?: string
  data?: any
}

/** A run of a flow or of a dag. */
export interface FlowState {
  id: string
  name: string
  status: RunStatus
  correlationId?: string
  version?: string
  forkedFrom?: string
  /** The run or job whose handler started it. */
  parent?: string
  /** The first run of that chain. */
  root?: string
  depth?: number
  startedAt?: string
  completedAt?: string
  duration?: number
  input?: any
  result?: any
  error?: string
  reason?: string
  /** Joins that never started: step to the kinds it did not receive. */
  unmet?: Record<string, string[]>
  /** By name; later instances by `name#n`. */
  steps: Record<string, StepState>
  /** `ctx.state`; a large value as its `size` and `hash`. */
  state: Record<string, any>
  emitted: EmittedEvent[]
  logs: LogLine[]
  lastEvent?: string
  unreadableEvents: string[]
  lastEventAt?: string
  logsCount?: number
  lastLogLevel?: string
  waitingFor?: AwaitType
  waitStep?: string
  waitUntil?: string
  waitTrigger?: string
}

export const newFlowState = (): FlowState => ({
  id: '', name: '', status: 'running', steps: dict(), state: dict(), emitted: [], logs: [], unreadableEvents: [],
})

export const newStepState = (step: string, n = 1): StepState => ({
  step, n, status: 'pending', attempt: 0, frames: [], partials: [], calls: dict(), alsoAwaits: [],
})

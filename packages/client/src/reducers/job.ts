// The reducer of jobs: folds a job's events into its state. Output and durable calls fold alike for a step.

import type { EventRecord } from '../events.js'
import { dict, get, integer, present, text, valuesOf, type Values } from './values.js'

export type CallStatus = 'running' | 'completed' | 'failed' | 'cancelled'

/** A `ctx.run` of a step or a job. */
export interface CallState {
  status: CallStatus
  startedAt?: string
  duration?: number
  tries?: number
  /** Bytes of the recorded value. */
  size?: number
  error?: string
  errorName?: string
  attempt?: number
}

/** A line of a handler's log. */
export interface LogLine {
  id: string
  ts: string
  step?: string
  level?: string
  msg?: string
  attempt?: number
  n?: number
  fields?: Record<string, any>
}

export type JobStatus = 'waiting' | 'delayed' | 'active' | 'completed' | 'failed' | 'cancelled'

/** A plain job, folded from its events. */
export interface JobState {
  id: string
  name?: string
  status: JobStatus
  attempt: number
  addedAt?: string
  startedAt?: string
  finishedAt?: string
  progress?: any
  result?: any
  error?: string
  /** Why it was cancelled. */
  reason?: string
  logs: LogLine[]
  /** Output of its present attempt. */
  partials: any[]
  /** Its `ctx.run` calls, by name. */
  calls: Record<string, CallState>
}

/** Fold the events of one job. With `job`, select them from its queue's stream. */
export function reduceJobState(events: Iterable<EventRecord>, job?: string): JobState {
  const state = newJobState()
  for (const event of events) if (job === undefined || event.subject === job) applyJob(state, event)
  return state
}

export const newJobState = (): JobState => ({ id: '', status: 'waiting', attempt: 0, logs: [], partials: [], calls: dict() })

/** Apply one more event to a state. */
export function applyJob(state: JobState, event: EventRecord): void {
  const data = valuesOf(event.data)
  const meta = valuesOf(event.meta)
  switch (event.kind) {
    case 'job.added':
      Object.assign(state, { id: event.subject, name: get(meta, 'name'), addedAt: event.ts })
      state.status = Object.hasOwn(meta, 'due') ? 'delayed' : 'waiting'
      break
    case 'job.active': {
      const attempt = get(meta, 'attempt') ?? 1
      if (state.attempt !== attempt) state.partials = []
      cancelCalls(state.calls)
      Object.assign(state, { status: 'active', attempt, startedAt: state.startedAt ?? event.ts, finishedAt: undefined, reason: undefined })
      break
    }
    case 'job.progress':
      state.progress = get(data, 'progress')
      break
    case 'job.partial':
      addPartial(state.partials, data, meta)
      break
    case 'call.started':
    case 'call.completed':
    case 'call.failed':
      changeCall(state.calls, event.kind, data, meta)
      break
    case 'job.completed':
      Object.assign(state, { status: 'completed', result: get(data, 'result'), finishedAt: event.ts, error: undefined })
      break
    case 'job.failed':
      fail(state, event, data, meta)
      break
    case 'job.returned':
      Object.assign(state, { status: 'waiting', attempt: get(meta, 'attempt') ?? state.attempt })
      break
    case 'job.cancelled':
      Object.assign(state, { status: 'cancelled', finishedAt: event.ts, reason: get(data, 'reason') })
      cancelCalls(state.calls)
      break
    case 'log':
      state.logs.push(logLine(event, ['attempt']))
  }
}

function fail(state: JobState, event: EventRecord, data: Values, meta: Values): void {
  const willRetry = Boolean(get(data, 'willRetry'))
  state.error = get(data, 'error')
  state.attempt = get(meta, 'attempt') ?? state.attempt
  state.status = willRetry ? 'delayed' : 'failed'
  state.finishedAt = willRetry ? undefined : event.ts
  state.reason = undefined
  state.partials = []
  cancelCalls(state.calls)
}

/** Return the line of a `log` event, with these members of its `meta`. */
export function logLine(event: EventRecord, from: string[]): LogLine {
  const data = valuesOf(event.data)
  const meta = valuesOf(event.meta)
  const line: LogLine = { id: event.id, ts: event.ts, ...present({ level: get(data, 'level'), msg: get(data, 'msg') }) }
  for (const name of from) if (Object.hasOwn(meta, name)) Object.assign(line, { [name]: meta[name] })
  if (Object.hasOwn(data, 'fields')) line.fields = data.fields
  return line
}

/** Add a chunk of output. One that is sent again replaces what was there: its handler ran again from the top. */
export function addPartial(partials: any[], data: Values, meta: Values): void {
  const index = integer(meta, 'index')
  if (index !== undefined) partials.splice(index)
  partials.push(get(data, 'chunk') ?? null)
}

/** Fold an event of a durable call. */
export function changeCall(calls: Record<string, CallState>, kind: string, data: Values, meta: Values): void {
  const name = text(data, 'call')
  if (name === undefined) return
  calls[name] = present({
    status: (kind === 'call.started' ? 'running' : kind.slice('call.'.length)) as CallStatus,
    startedAt: text(data, 'startedAt'),
    duration: integer(data, 'duration'),
    tries: integer(data, 'tries'),
    size: integer(data, 'size'),
    error: text(data, 'error'),
    errorName: text(data, 'name'),
    attempt: integer(meta, 'attempt'),
  })
}

/** Mark the calls that still ran when their attempt ended: nothing of them is recorded. */
export function cancelCalls(calls: Record<string, CallState>): void {
  for (const call of Object.values(calls)) if (call.status === 'running') call.status = 'cancelled'
}

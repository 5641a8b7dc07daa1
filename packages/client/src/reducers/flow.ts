// The reducer of flows: folds the events of a run into its state. Fold the first N events to see it as it was then.

import { isReserved, type EventRecord } from '../events.js'
import { addPartial, cancelCalls, changeCall, logLine } from './job.js'
import { newFlowState, newStepState, type AwaitType, type FlowState, type RunStatus, type StepState } from './state.js'
import { dict, get, integer, names, present, text, valuesOf, type Values } from './values.js'

type Change = (state: FlowState, event: EventRecord, data: Values, meta: Values) => void

const OPEN = ['pending', 'running', 'retrying', 'waiting']

/** Fold a run's events, all of them or the first N. */
export function reduceFlowState(events: Iterable<EventRecord>): FlowState {
  const state = newFlowState()
  for (const event of events) applyFlow(state, event)
  return state
}

/** Apply one more event to a state. */
export function applyFlow(state: FlowState, event: EventRecord): void {
  state.lastEvent = event.id
  if (event.kind === 'unreadable') {
    state.unreadableEvents.push(event.id)
    return
  }
  const data = valuesOf(event.data)
  const meta = valuesOf(event.meta)
  const change = Object.hasOwn(CHANGES, event.kind) ? CHANGES[event.kind] : undefined
  if (change) change(state, event, data, meta)
  else if (event.kind.startsWith('step.await.')) awaits(state, event, data, meta)
  else if (!isReserved(event.kind)) {
    const { id, ts, kind } = event
    state.emitted.push({ id, ts, kind, ...present({ step: event.step ?? undefined, data: event.data }) })
  }
}

function stepOf(state: FlowState, event: EventRecord, meta: Values): StepState {
  const name = event.step ?? ''
  const n = integer(meta, 'n') ?? 1
  const key = n === 1 ? name : `${name}#${n}`
  return Object.hasOwn(state.steps, key) ? state.steps[key]! : (state.steps[key] = newStepState(name, n))
}

function clearWaits(step: StepState): void {
  Object.assign(step, { awaitType: undefined, awaitData: undefined, awaitSince: undefined, alsoAwaits: [] })
}

function clearError(step: StepState): void {
  for (const name of ['error', 'errorName', 'code', 'file', 'line', 'deadLetter'] as const) step[name] = undefined
  step.frames = []
}

const endFlow = (status: RunStatus): Change => (state, event, data) => {
  Object.assign(state, { status, completedAt: event.ts, duration: integer(data, 'duration') })
  Object.assign(state, { result: get(data, 'result'), error: text(data, 'error'), reason: text(data, 'reason'), unmet: unmetOf(data) })
  if (status !== 'cancelled') return
  for (const step of Object.values(state.steps).filter((one) => OPEN.includes(one.status))) {
    Object.assign(step, { status, completedAt: event.ts, nextRetryAt: undefined })
    clearWaits(step)
    cancelCalls(step.calls)
  }
}

function unmetOf(data: Values): Record<string, string[]> | undefined {
  const found = get(data, 'unmet')
  if (typeof found !== 'object' || found === null || Array.isArray(found)) return undefined
  return Object.assign(dict<string[]>(), Object.fromEntries(Object.keys(found).map((step) => [step, names(found, step)])))
}

function framesOf(data: Values): StepState['frames'] {
  const found = get(data, 'frames')
  const needed = ['file', 'line', 'function', 'source']
  return Array.isArray(found) ? found.filter((one) => needed.every((name) => Object.hasOwn(valuesOf(one), name))) : []
}

function startStep(state: FlowState, event: EventRecord, _data: Values, meta: Values): void {
  const step = stepOf(state, event, meta)
  const attempt = integer(meta, 'attempt') ?? 1
  // A resume after a wait continues its attempt, and its output.
  if (attempt !== step.partialsOf) Object.assign(step, { partials: [], partialsOf: undefined })
  cancelCalls(step.calls) // those that ran when a worker died
  Object.assign(step, { status: 'running', attempt, startedAt: step.startedAt ?? event.ts, nextRetryAt: undefined })
  clearWaits(step)
}

function completeStep(state: FlowState, event: EventRecord, data: Values, meta: Values): void {
  const step = stepOf(state, event, meta)
  Object.assign(step, { status: 'completed', completedAt: event.ts, duration: integer(meta, 'duration'), result: get(data, 'result') })
  clearError(step)
  cancelCalls(step.calls)
  for (const name of names(meta, 'starts')) if (!Object.hasOwn(state.steps, name)) state.steps[name] = newStepState(name)
}

function failStep(state: FlowState, event: EventRecord, data: Values, meta: Values): void {
  const step = stepOf(state, event, meta)
  Object.assign(step, { error: text(data, 'error'), errorName: text(data, 'name'), code: text(data, 'code') })
  Object.assign(step, { file: text(data, 'file'), line: integer(data, 'line'), frames: framesOf(data) })
  Object.assign(step, { deadLetter: text(data, 'deadLetter'), attempt: integer(meta, 'attempt') ?? step.attempt })
  Object.assign(step, { partials: [], partialsOf: undefined })
  cancelCalls(step.calls)
  if (get(data, 'willRetry')) Object.assign(step, { status: 'retrying', nextRetryAt: text(data, 'nextRetryAt') })
  else Object.assign(step, { status: 'failed', completedAt: event.ts, duration: integer(meta, 'duration') })
}

function awaits(state: FlowState, event: EventRecord, data: Values, meta: Values): void {
  const step = stepOf(state, event, meta)
  if (event.kind === 'step.await.timeout') {
    // The handler may catch the timeout and continue: later events then change the status.
    const error = `Await timeout after ${get(data, 'duration')}ms`
    Object.assign(step, { status: 'timeout', completedAt: event.ts, error })
    clearWaits(step)
    return
  }
  if (event.kind === 'step.await.cancelled') {
    step.status = 'pending' // its handler resumes, or `flow.cancelled` follows
    clearWaits(step)
    return
  }
  if (step.status === 'timeout') Object.assign(step, { error: undefined, completedAt: undefined })
  if (step.awaitType !== undefined) {
    step.alsoAwaits.push({ type: step.awaitType, data: step.awaitData, since: step.awaitSince })
  }
  const awaitType = event.kind.slice(event.kind.lastIndexOf('.') + 1) as AwaitType
  Object.assign(step, { status: 'waiting', awaitType, awaitData: data, awaitSince: event.ts })
}

const CHANGES: Record<string, Change> = {
  'flow.started': (state, event, data, meta) => {
    Object.assign(state, { id: event.subject, name: text(data, 'name') ?? '', startedAt: event.ts, input: get(data, 'input') })
    Object.assign(state, { correlationId: event.correlationId ?? undefined, version: text(data, 'version') })
    Object.assign(state, { parent: text(meta, 'parent'), root: text(meta, 'root'), depth: integer(meta, 'depth') })
  },
  'flow.completed': endFlow('completed'),
  'flow.failed': endFlow('failed'),
  'flow.cancelled': endFlow('cancelled'),
  'flow.compensated': endFlow('compensated'),
  'flow.compensating': (state) => {
    // A running step failed during the pause: `flow.resumed` carries the new status.
    if (state.status !== 'paused') state.status = 'compensating'
  },
  'flow.reopened': (state) => {
    Object.assign(state, { status: 'running', completedAt: undefined, duration: undefined, error: undefined })
  },
  'flow.paused': (state, _event, data) => {
    Object.assign(state, { status: 'paused', reason: text(data, 'reason') })
  },
  'flow.resumed': (state, _event, data) => {
    Object.assign(state, { status: text(data, 'status') || 'running', reason: undefined })
  },
  'flow.forked': (state, _event, data) => {
    // Keep the copied history and restart the steps that were open at the fork.
    Object.assign(state, { forkedFrom: text(data, 'from'), version: text(data, 'version') })
    Object.assign(state, { status: text(data, 'status') || 'running', reason: undefined })
    for (const [key, step] of Object.entries(state.steps)) {
      if (OPEN.includes(step.status) || step.status === 'timeout') state.steps[key] = newStepState(step.step, step.n)
    }
  },
  'step.started': startStep,
  'step.completed': completeStep,
  'step.failed': failStep,
  'step.retry': (state, event, _data, meta) => {
    const step = stepOf(state, event, meta)
    Object.assign(step, { status: 'retrying', attempt: integer(meta, 'attempt') ?? step.attempt })
  },
  'step.redriven': (state, event, _data, meta) => {
    const pending = { status: 'pending', completedAt: undefined, duration: undefined, deadLetter: undefined }
    Object.assign(stepOf(state, event, meta), pending)
  },
  'step.returned': (state, event, _data, meta) => {
    const step = stepOf(state, event, meta)
    Object.assign(step, { status: 'pending', attempt: integer(meta, 'attempt') ?? step.attempt })
    cancelCalls(step.calls)
  },
  'step.cancelled': (state, event, _data, meta) => {
    stepOf(state, event, meta).status = 'cancelled' // by its timeout; the failure that follows decides
  },
  'step.progress': (state, event, data, meta) => {
    stepOf(state, event, meta).progress = get(data, 'progress')
  },
  'step.partial': (state, event, data, meta) => {
    const step = stepOf(state, event, meta)
    step.partialsOf = integer(meta, 'attempt') ?? step.attempt
    addPartial(step.partials, data, meta)
  },
  'step.resumed': (state, event, _data, meta) => {
    // A worker records the end of a sleep; other waits end before a worker has claimed the step.
    const step = stepOf(state, event, meta)
    step.status = Object.hasOwn(meta, 'attempt') ? 'running' : 'pending'
    clearWaits(step)
  },
  'call.started': (state, event, data, meta) => changeCall(stepOf(state, event, meta).calls, event.kind, data, meta),
  'call.completed': (state, event, data, meta) => changeCall(stepOf(state, event, meta).calls, event.kind, data, meta),
  'call.failed': (state, event, data, meta) => changeCall(stepOf(state, event, meta).calls, event.kind, data, meta),
  'state.set': (state, _event, data) => {
    const key = text(data, 'key')
    if (key === undefined) return
    state.state[key] = Object.hasOwn(data, 'value') ? data.value : { size: get(data, 'size') ?? null, hash: get(data, 'hash') ?? null }
  },
  'state.deleted': (state, _event, data) => {
    delete state.state[text(data, 'key') ?? '']
  },
  log: (state, event) => {
    const { id, ts, ...more } = logLine(event, ['attempt', 'n'])
    state.logs.push({ id, ts, ...(event.step ? { step: event.step } : {}), ...more })
  },
}

// The reducer of dags: nodes fold like the steps of a flow.

import type { EventRecord } from '../events.js'
import { applyFlow } from './flow.js'
import { newFlowState, newStepState, type FlowState } from './state.js'
import { text, valuesOf } from './values.js'

const PREFIX = 'node.'
const SAME = new Set(['started', 'completed', 'failed', 'retry', 'progress', 'partial', 'returned', 'cancelled', 'redriven'])

/** Fold the events of a run of a dag, all of them or the first N. */
export function reduceDagState(events: Iterable<EventRecord>): FlowState {
  const state = newFlowState()
  for (const event of events) applyDag(state, event)
  return state
}

/** Apply one more event to a state. Events of flows fold as in `applyFlow`. */
export function applyDag(state: FlowState, event: EventRecord): void {
  if (!event.kind.startsWith(PREFIX)) {
    applyFlow(state, isOfRetriedNode(state, event) ? dropNumber(event) : event)
    return
  }
  const what = event.kind.slice(PREFIX.length)
  if (SAME.has(what)) {
    applyFlow(state, { ...dropNumber(event), kind: `step.${what}` })
    return
  }
  state.lastEvent = event.id
  if (what !== 'skipped') return
  const name = event.step ?? ''
  const step = Object.hasOwn(state.steps, name) ? state.steps[name]! : (state.steps[name] = newStepState(name))
  Object.assign(step, { status: 'skipped', completedAt: event.ts, reason: text(valuesOf(event.data), 'reason') })
}

/** Return the event without its number of the instance: a node has one, and a retried one continues it. */
function dropNumber(event: EventRecord): EventRecord {
  const { n: _n, ...meta } = valuesOf(event.meta)
  return { ...event, meta }
}

/** Whether a call or a wait is of a node. This reducer also folds the runs of flows: an instance of a step has started before. */
function isOfRetriedNode(state: FlowState, event: EventRecord): boolean {
  const n = valuesOf(event.meta).n
  if (n === undefined || n === 1 || !/^(call|step)\./.test(event.kind)) return false
  const step = event.step ?? ''
  return Object.hasOwn(state.steps, step) && event.kind !== 'step.started' && !Object.hasOwn(state.steps, `${step}#${String(n)}`)
}

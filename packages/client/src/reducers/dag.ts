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
    applyFlow(state, event)
    return
  }
  const what = event.kind.slice(PREFIX.length)
  if (SAME.has(what)) {
    const { n: _n, ...meta } = valuesOf(event.meta) // a node has one instance: a retried one continues it
    applyFlow(state, { ...event, kind: `step.${what}`, meta })
    return
  }
  state.lastEvent = event.id
  if (what !== 'skipped') return
  const name = event.step ?? ''
  const step = Object.hasOwn(state.steps, name) ? state.steps[name]! : (state.steps[name] = newStepState(name))
  Object.assign(step, { status: 'skipped', completedAt: event.ts, reason: text(valuesOf(event.data), 'reason') })
}

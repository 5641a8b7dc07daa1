// The reducer of triggers.

import type { EventRecord } from '../events.js'
import { get, text, valuesOf, type Values } from './values.js'

/** A trigger. `flow` is the run whose `step` it resumes. */
export interface TriggerState {
  status: 'registered' | 'fired' | 'timeout' | 'cancelled'
  id?: string
  name?: string
  type?: string
  flow?: string
  step?: string
  correlationId?: string
  /** Milliseconds. */
  timeout?: number
  registeredAt?: string
  firedAt?: string
  /** Fired, timed out or cancelled. */
  endedAt?: string
  payload?: any
  /** Where it was fired from. */
  source?: string
  ip?: string
  /** An operator fired or cancelled it. */
  manual?: boolean
  by?: string
  reason?: string
}

/** Fold a trigger's events. */
export function reduceTriggerState(events: Iterable<EventRecord>): TriggerState {
  const state: TriggerState = { status: 'registered' }
  for (const event of events) applyTrigger(state, event)
  return state
}

/** Apply one more event to a state. */
export function applyTrigger(state: TriggerState, event: EventRecord): void {
  const data = valuesOf(event.data)
  switch (event.kind) {
    case 'trigger.registered':
      Object.assign(state, { status: 'registered', registeredAt: event.ts, id: event.subject })
      Object.assign(state, { type: get(data, 'type'), name: get(data, 'name'), timeout: get(data, 'timeout') })
      Object.assign(state, { flow: event.flow, step: event.step, correlationId: event.correlationId })
      break
    case 'trigger.fired':
      Object.assign(state, { status: 'fired', firedAt: event.ts, endedAt: event.ts, payload: get(data, 'payload') })
      Object.assign(state, { source: text(data, 'source'), ip: text(data, 'ip') })
      applyManual(state, data)
      break
    case 'trigger.timeout':
      Object.assign(state, { status: 'timeout', endedAt: event.ts })
      break
    case 'trigger.cancelled':
      Object.assign(state, { status: 'cancelled', endedAt: event.ts, reason: get(data, 'reason') })
      applyManual(state, data)
  }
}

function applyManual(state: TriggerState, data: Values): void {
  const manual = get(data, 'manual')
  if (typeof manual !== 'object' || manual === null || Array.isArray(manual)) return
  Object.assign(state, { manual: true, by: text(manual, 'by'), reason: text(manual, 'reason') })
}

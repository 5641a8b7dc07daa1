// The reducer of entities: folds the events of a stream into the state of an entity.

import type { EventRecord } from '../events.js'
import { dict, get, integer, names, text, valuesOf, type Values } from './values.js'

const PREFIX = 'entity.'
const ENDS = new Set(['transitioned', 'kept', 'refused', 'failed'])
const MAX_HISTORY = 1000

/** One change of an entity, or an event that changed nothing. */
export interface EntityChange {
  n: number
  event: string
  kind: string
  at: string
  from?: string
  to?: string
  path: string[]
  reason?: string
  code?: string
  payload?: unknown
  duration?: number
}

/** An entity. `status` is its state; `handling` the number of the event that is being handled. */
export interface EntityState {
  id: string
  urn: string
  type: string
  status: string
  data?: unknown
  createdAt?: string
  updatedAt?: string
  closedAt?: string
  paused: boolean
  received: number
  handled: number
  refused: number
  failed: number
  waiting: Record<string, string>
  handling?: number
  attempt: number
  error?: string
  history: EntityChange[]
  payloads: Record<string, unknown>
  lastEvent?: string
  unreadableEvents: string[]
}

/** Return the state of an entity without events. */
export function newEntityState(): EntityState {
  return {
    id: '', urn: '', type: '', status: '', paused: false, received: 0, handled: 0, refused: 0, failed: 0,
    waiting: dict(), attempt: 0, history: [], payloads: dict(), unreadableEvents: [],
  }
}

/** Fold the events of an entity, all of them or the first N. */
export function reduceEntityState(events: Iterable<EventRecord>): EntityState {
  const state = newEntityState()
  for (const event of events) applyEntity(state, event)
  return state
}

const count = (values: Values, key: string): number => Math.max(integer(values, key) ?? 0, 0)

/** Apply one more event to a state. */
export function applyEntity(state: EntityState, event: EventRecord): void {
  state.lastEvent = event.id
  state.id ||= event.subject
  if (event.kind === 'unreadable') {
    state.unreadableEvents.push(event.id)
    return
  }
  if (!event.kind.startsWith(PREFIX)) return
  const what = event.kind.slice(PREFIX.length)
  const data = valuesOf(event.data)
  const meta = valuesOf(event.meta)
  const n = count(meta, 'n')
  if (what === 'created') {
    state.urn = text(data, 'urn') ?? ''
    state.type = text(data, 'type') ?? ''
    state.status = text(data, 'status') ?? ''
    state.createdAt = event.ts
    state.data = get(data, 'data')
  } else if (what === 'received') {
    state.received = Math.max(state.received, n)
    state.waiting[n] = text(data, 'event') ?? ''
    if (Object.hasOwn(data, 'payload')) state.payloads[n] = data.payload
  } else if (what === 'started') {
    state.handling = n
    state.attempt = count(meta, 'attempt')
  } else if (what === 'retrying' || what === 'returned') {
    state.handling = undefined
    if (what === 'retrying') state.error = text(data, 'error') ?? ''
  } else if (ENDS.has(what)) {
    end(state, event, what, n, data, meta)
  } else if (what === 'closed') {
    state.closedAt = event.ts
  } else if (what === 'paused' || what === 'resumed') {
    state.paused = what === 'paused'
  }
}

function end(state: EntityState, event: EventRecord, what: string, n: number, data: Values, meta: Values): void {
  state.handling = undefined
  state.error = undefined
  state.attempt = 0
  state.handled += 1
  state.updatedAt = event.ts
  const change: EntityChange = { n, event: text(data, 'event') ?? '', kind: what, at: event.ts, path: [] }
  change.payload = Object.hasOwn(state.payloads, n) ? state.payloads[n] : undefined
  delete state.waiting[n]
  delete state.payloads[n]
  change.duration = Object.hasOwn(meta, 'duration') ? count(meta, 'duration') : undefined
  change.reason = text(data, 'reason') || text(data, 'error')
  change.code = text(data, 'code')
  if (what === 'transitioned') {
    change.from = text(data, 'from') ?? ''
    change.to = text(data, 'to') ?? ''
    change.path = Array.isArray(get(data, 'path')) ? names(data, 'path') : [change.from, change.to]
    state.status = change.to
  } else if (what === 'refused') {
    state.refused += 1
  } else if (what === 'failed') {
    state.failed += 1
  }
  if (Object.hasOwn(data, 'data') && (what === 'transitioned' || what === 'kept')) state.data = data.data
  state.history.push(change)
  if (state.history.length > MAX_HISTORY) state.history.shift()
}

// The reducers against the vectors that all languages share.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  applyFlow, newFlowState, reduceDagState, reduceEntityState, reduceFlowState, reduceJobState, reduceTriggerState, type EventRecord,
} from '../src/index.js'

interface Vector {
  name: string
  job?: string
  events: EventRecord[]
  states: { after: number; state: object }[]
}

const FOLDER = process.env.VECTOR_FOLDER ?? join(import.meta.dirname, '../../../tests/vectors')
const LISTS = new Set(['steps', 'state', 'emitted', 'logs', 'partials', 'calls', 'alsoAwaits', 'unreadableEvents', 'frames',
  'waiting', 'history', 'payloads', 'path'])
const REDUCERS: Record<string, (events: EventRecord[], job?: string) => object> = {
  flow: reduceFlowState,
  trigger: reduceTriggerState,
  job: reduceJobState,
  dag: reduceDagState,
  entity: reduceEntityState,
}

const load = (name: string): Vector[] => JSON.parse(readFileSync(join(FOLDER, `${name}.json`), 'utf8')).vectors

/** Leave out what says nothing, as the README of the vectors defines it. */
function clean(state: Record<string, any>): Record<string, any> {
  const kept = Object.entries(state).filter(([name, value]) => {
    if (value === null || value === undefined) return false
    return !(LISTS.has(name) && Object.keys(value).length === 0)
  })
  return Object.fromEntries(
    kept.map(([name, value]) => [
      name,
      name === 'steps' || name === 'calls' ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, clean(one as object)]))
        : name === 'history' ? value.map(clean) : value,
    ]),
  )
}

for (const [name, reduce] of Object.entries(REDUCERS)) {
  describe(`reducer ${name}`, () => {
    const vectors = load(name)
    it.each(vectors.map((vector) => [vector.name, vector] as const))('%s', (_name, vector) => {
      for (const { after, state } of vector.states) {
        const folded = JSON.parse(JSON.stringify(reduce(vector.events.slice(0, after), vector.job)))
        expect(clean(folded), `after ${after} events`).toEqual(state)
      }
      expect(vector.states.at(-1)!.after).toBe(vector.events.length)
    })

    it('folds every prefix', () => {
      for (const vector of vectors) {
        for (let after = 0; after <= vector.events.length; after++) {
          expect(() => JSON.stringify(reduce(vector.events.slice(0, after), vector.job))).not.toThrow()
        }
      }
    })
  })
}

it('folds one event after the other to the same state', () => {
  for (const vector of load('flow')) {
    const state = newFlowState()
    for (const event of vector.events) applyFlow(state, event)
    expect(state).toEqual(reduceFlowState(vector.events))
  }
})

it('takes names of members of objects as names of steps', () => {
  const base = { ts: '2026-01-01T00:00:00.000Z', subject: 'r', flow: 'r' }
  const state = reduceFlowState([
    { ...base, id: '1-1', kind: 'step.started', step: 'constructor', meta: { attempt: 1 } },
    { ...base, id: '1-2', kind: 'step.completed', step: '__proto__', data: { result: 1 }, meta: { starts: ['toString'] } },
    { ...base, id: '1-3', kind: 'hasOwnProperty', step: 'constructor', data: {} },
  ])
  expect(Object.keys(state.steps)).toEqual(['constructor', '__proto__', 'toString'])
  expect(Object.values(state.steps)[0]!.status).toBe('running')
  expect(state.emitted).toHaveLength(1)
})

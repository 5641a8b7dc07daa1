// Folding, the time scale, the search and the comparison, without a browser.

import type { EventRecord } from 'penstock'
import { describe, expect, it } from 'vitest'
import { firstDifference } from '../src/run/compare'
import { differences } from '../src/run/diff'
import { foldFirst } from '../src/run/fold'
import { inputOf } from '../src/run/inputs'
import { place, placeIn } from '../src/run/layout'
import { foldedScale, ticks, wallScale } from '../src/run/scale'
import { dstNote, inWords } from '../src/run/schedule'
import { complete, parseSearch, toBody, toQuery } from '../src/run/search'
import { blobOf } from '../src/run/blobs'
import { snippets, toPython } from '../src/run/snippets'
import { urnOf } from '../src/run/urns'
import { withoutCommand } from '../src/api/format'

let seq = 0
const at = (ms: number, kind: string, step?: string, data?: any, meta?: any): EventRecord => ({ id: `${ms}-${++seq}`, ts: new Date(ms).toISOString(), kind, subject: 'r', flow: 'r', step, data, meta })

const RUN = [
  at(0, 'flow.started', undefined, { name: 'shop', queue: 'q', input: 1 }),
  at(100, 'step.started', 'a', undefined, { attempt: 1 }),
  at(400, 'step.failed', 'a', { error: 'no', willRetry: true }, { attempt: 1, duration: 250 }),
  at(1400, 'step.started', 'a', undefined, { attempt: 2 }),
  at(1500, 'step.await.event', 'a', { wait: 'w#1', eventKind: 'paid' }, { attempt: 2 }),
  at(61_500, 'step.resumed', 'a', { wait: 'w#1' }),
  at(61_600, 'step.started', 'a', undefined, { attempt: 2 }),
  at(61_700, 'step.completed', 'a', { result: 1 }, { attempt: 2, starts: ['b'] }),
  at(61_900, 'step.started', 'b', undefined, { attempt: 1 }),
  at(62_000, 'step.completed', 'b', {}, { attempt: 1, duration: 60 }),
  at(62_000, 'flow.completed', undefined, { duration: 62_000 }),
]

describe('the fold', () => {
  it('splits a step into queue, handler, commit, retry and wait', () => {
    const rows = foldFirst(RUN, RUN.length).rows
    expect(rows.get('a')!.segments.map((one) => [one.kind, one.from, one.to, one.attempt])).toEqual([
      ['queue', 0, 100, 1], ['run', 100, 350, 1], ['commit', 350, 400, 1], ['retry', 400, 1400, 2], ['run', 1400, 1500, 2],
      ['wait', 1500, 61_500, 2], ['queue', 61_500, 61_600, 2], ['run', 61_600, 61_700, 2],
    ])
    expect(rows.get('b')!.segments.map((one) => [one.kind, one.from, one.to])).toEqual([['queue', 61_700, 61_900], ['run', 61_900, 61_960], ['commit', 61_960, 62_000]])
  })
  it('has the state of any moment', () => {
    expect(foldFirst(RUN, 3).state.steps.a!.status).toBe('retrying')
    expect(foldFirst(RUN, 5).state.steps.a!.status).toBe('waiting')
    expect(foldFirst(RUN, 5).rows.get('a')!.segments.at(-1)!.to).toBeUndefined()
    expect(foldFirst(RUN, RUN.length).state.status).toBe('completed')
  })
  it('closes the bar of a worker that died', () => {
    const events = [RUN[0]!, at(10, 'step.started', 'a', undefined, { attempt: 1 }), at(50, 'step.started', 'a', undefined, { attempt: 2 })]
    const parts = foldFirst(events, 3).rows.get('a')!.segments.filter((one) => one.kind === 'run')
    expect(parts.map((one) => [one.to, one.state])).toEqual([[50, 'cancelled'], [undefined, 'running']])
  })
})

describe('the input of a step', () => {
  const events = [
    at(0, 'flow.started', undefined, { name: 'shop', queue: 'q', input: { id: 1 } }),
    at(1, 'step.started', 'a', undefined, { attempt: 1, jobId: 'r.a.1', causationId: 'start' }),
    at(2, 'paid', 'a', { n: 1 }, { causationId: 'r.a.1' }),
    at(2, 'noted', 'a', { n: 2 }, { causationId: 'r.a.1' }),
    at(2, 'paid', 'a', { n: 3 }, { causationId: 'r.a.1' }),
    at(3, 'step.started', 'b', undefined, { attempt: 1, causationId: 'r.a.1' }),
    at(4, 'step.failed', 'b', { error: 'no', willRetry: false }, { attempt: 1 }),
    at(4, 'step.started', 'b', undefined, { attempt: 1, n: 2, causationId: 'r.a.1' }),
    at(5, 'step.redriven', 'b', { jobId: 'x' }),
    at(6, 'step.started', 'b', { input: { n: 9 } }, { attempt: 1, causationId: 'r.b.1.dlq' }),
  ]
  const rows = foldFirst(events, events.length).rows
  const kinds = [{ eventKind: 'paid' }]
  it('is that of the run, of the event that caused it, or the recorded one', () => {
    expect(inputOf(rows.get('a')!.attempts.get(1), undefined)).toEqual({ id: 1 })
    expect(inputOf(rows.get('b')!.attempts.get(1), kinds)).toEqual({ n: 1 })
    expect(inputOf(rows.get('b#2')!.attempts.get(1), kinds)).toEqual({ n: 3 })
    expect(inputOf(rows.get('b')!.attempts.get(2), kinds)).toEqual({ n: 9 })
  })
  it('is unknown where several events may have caused it', () => {
    expect(inputOf(rows.get('b')!.attempts.get(1), undefined)).toBeUndefined()
    expect(inputOf(rows.get('b')!.attempts.get(1), [{ eventKind: 'paid', when: 'n > 1' }])).toBeUndefined()
  })
  it('keeps the attempts before a redrive apart', () => {
    expect([...rows.get('b')!.attempts.values()].map((one) => one.label)).toEqual(['attempt 1', 'redrive 1, attempt 1'])
    expect(rows.get('b')!.segments.map((one) => [one.kind, one.attempt, one.to])).toEqual([['run', 1, 4], ['queue', 2, 6], ['run', 2, undefined]])
  })
})

describe('the time scale', () => {
  it('folds idle time and keeps the order', () => {
    const fold = foldFirst(RUN, RUN.length)
    const scale = foldedScale(fold.rows.values(), 0, 62_000)
    expect(scale.folds).toHaveLength(1)
    expect(scale.folds[0]!.ms).toBe(60_000)
    const places = [0, 100, 1500, 30_000, 61_500, 62_000].map(scale.place)
    expect([...places].sort((a, b) => a - b)).toEqual(places)
    expect(scale.place(61_500) - scale.place(1500)).toBeCloseTo(0.08)
    expect(wallScale(0, 100).place(25)).toBe(0.25)
  })
})

describe('the search', () => {
  it('reads qualifiers, values of the input and words of the error', () => {
    const { filter, problems } = parseSearch('flow:shop status:failed data.orderId:7 data.a.b:"x y" tag.team:ops since:1h no answer')
    expect(problems).toEqual([])
    expect(filter).toEqual({ flow: 'shop', status: 'failed', since: '1h', error: 'no answer', tags: { team: 'ops' }, attributes: {}, where: { orderId: 7, a: { b: 'x y' } } })
    expect(toQuery(filter)).toMatchObject({ tag: ['team=ops'], where: '{"orderId":7,"a":{"b":"x y"}}' })
    expect(toBody(filter)).toMatchObject({ tags: { team: 'ops' }, where: { orderId: 7 } })
  })
  it('names what it does not know', () => {
    expect(parseSearch('colour:red').problems[0]).toContain('colour')
    expect(parseSearch('status:odd').problems[0]).toContain('odd')
  })
  it('completes', () => {
    expect(complete('st', [], []).map((one) => one.insert)).toEqual(['status:', 'step:'])
    expect(complete('flow:s', ['shop', 'other'], []).map((one) => one.insert)).toEqual(['flow:shop '])
  })
})

it('finds where values and runs differ', () => {
  expect(differences({ a: [1, { b: 2 }], c: 1 }, { a: [1, { b: 3 }], d: 1 })).toEqual(['$.a[1].b', '$.c', '$.d'])
  const other = RUN.map((event, index) => (index === 2 ? { ...event, data: { ...event.data, error: 'other' } } : event))
  expect(firstDifference(RUN, other)).toMatchObject({ at: 2, paths: ['$.error'] })
  expect(firstDifference(RUN, RUN)).toBeUndefined()
  expect(firstDifference(RUN, RUN.slice(0, 4))!.at).toBe(4)
})

it('places every node and edge, also of a cycle', () => {
  const nodes = ['a', 'b', 'c'].map((id) => ({ id, label: id, kind: 'step' }))
  const placed = place(nodes, [{ from: 'a', to: 'b' }, { from: 'b', to: 'c' }, { from: 'c', to: 'a' }, { from: 'a', to: 'gone' }, { from: 'a', to: 'a' }])
  expect(placed.nodes.every((node) => Number.isFinite(node.x))).toBe(true)
  expect(placed.edges).toHaveLength(3)
})

it('shows schedules in words', () => {
  expect(inWords({ cron: '0 3 * * *', tz: 'Europe/Berlin' })).toBe('every day at 03:00 in Europe/Berlin')
  expect(inWords({ cron: '*/5 * * * *' })).toBe('every 5 minutes')
  expect(inWords({ everyMs: 90_000 })).toBe('every 1m 30s')
  expect(inWords({ cron: '30 7 * * 1,3,5' })).toBe('every Monday, Wednesday and Friday at 07:30 UTC')
  expect(inWords({ cron: '0 3 1 */2 *' })).toBe('on day 1 of every 2nd month at 03:00 UTC')
  expect(inWords({ cron: '0 3 31 12 *' })).toBe('every year on 31 December at 03:00 UTC')
  expect(inWords({ cron: '1 2 3 4 5' })).toContain('cron 1 2 3 4 5')
  expect(dstNote('2026-10-25T02:00:00Z', '2026-10-24T01:00:00Z', 'Europe/Berlin')).toContain('back')
  expect(dstNote('2026-07-25T01:00:00Z', '2026-07-24T01:00:00Z', 'Europe/Berlin')).toBe('')
})

it('writes a run as a command and as code', () => {
  expect(toPython({ a: [true, null, "it's"] })).toBe('{"a": [True, None, "it\'s"]}')
  const [cli, python] = snippets({ id: 'r', flow: 'shop', input: { a: "it's" }, root: 'http://x' })
  expect(cli!.text).toBe(`penstock start shop --input '{"a":"it'\\''s"}'`)
  expect(python!.text).toContain('app.start("shop", {"a": "it\'s"})')
})

it('puts ticks at round times, apart from each other and from what is folded', () => {
  expect(ticks(wallScale(1000, 1220)).map((one) => one.ms)).toEqual([0, 50, 100, 150, 200])
  const folded = ticks(foldedScale(foldFirst(RUN, RUN.length).rows.values(), 0, 62_000))
  expect(folded.length).toBeGreaterThan(2)
  expect(folded.every((one) => one.ms <= 1500 || one.ms >= 61_500)).toBe(true)
  for (let at = 1; at < folded.length; at++) expect(folded[at]!.at - folded[at - 1]!.at).toBeGreaterThanOrEqual(0.09)
  expect(ticks(wallScale(5, 5))).toEqual([])
})

it('draws a chain downwards where that makes the letters larger', () => {
  const nodes = ['a', 'b', 'c', 'd', 'e'].map((id) => ({ id, label: id, kind: 'step' }))
  const edges = nodes.slice(1).map((node, index) => ({ from: nodes[index]!.id, to: node.id }))
  const high = placeIn(nodes, edges, { width: 500, height: 900 })
  const wide = placeIn(nodes, edges, { width: 1400, height: 300 })
  expect(high.height).toBeGreaterThan(high.width)
  expect(wide.width).toBeGreaterThan(wide.height)
})

it('finds the blobs that a value refers to', () => {
  const root = 'http://here/ops'
  expect(blobOf({ key: 'reports/june.csv', size: 7, contentType: 'text/csv' }, root)).toEqual({ key: 'reports/june.csv', text: 'Download june.csv' })
  expect(blobOf(`${root}/api/blobs/a.png?signature=x`, root)!.url).toBe(`${root}/api/blobs/a.png?signature=x`)
  expect(blobOf({ '$penstock:blob': '00' }, root)!.key).toBeUndefined()
  for (const other of ['javascript:alert(1)', 'http://there/api/blobs/a.png', { key: 'a', size: 1 }, { key: 'a', size: 1, type: 'lamp' }, null, 7, []]) expect(blobOf(other, root)).toBeUndefined()
})

it('reads the urn of an entity from its id', () => {
  expect(['x.subscription--5', 'plain', 'x.a-c3-a4-2d-25', 'h.0a'].map(urnOf)).toEqual(['subscription:5', 'plain', 'aä-%', 'h.0a'])
})

it('leaves out the command that a sentence ends with', () => {
  expect(withoutCommand('queue a: a new error, 1 dead letter (`penstock dlq show a.dlq`)')).toBe('Queue a: a new error, 1 dead letter')
  expect(withoutCommand('queue a: 2 jobs wait, and no worker serves it; start one with `penstock worker`')).toBe('Queue a: 2 jobs wait, and no worker serves it')
  expect(withoutCommand('3 waiting')).toBe('3 waiting')
})

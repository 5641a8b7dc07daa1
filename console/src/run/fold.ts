// Everything the run page shows, folded from the run's events one after the other.

import { applyDag, newFlowState, type EventRecord, type FlowState } from 'penstock'

export type SegmentKind = 'queue' | 'limit' | 'run' | 'commit' | 'wait' | 'retry'

/** A stretch of time of a step. `to` is open while it lasts. */
export interface Segment {
  kind: SegmentKind
  from: number
  to?: number
  attempt: number
  state: 'running' | 'completed' | 'failed' | 'waiting' | 'cancelled'
  text?: string
}

export interface CallBar {
  name: string
  from: number
  to?: number
  state: string
  tries: number
  attempt: number
}

/** A step, or one instance of it, along the time. */
export interface Row {
  key: string
  step: string
  n: number
  segments: Segment[]
  calls: Map<string, CallBar>
  attempts: Map<number, Attempt>
  /** The job that runs it, once it has started. */
  job?: string
  /** The attempts before the last redrive, which counts from 1 again. */
  before: number
  redrives: number
  /** What each attempt streamed; the start of a long output is dropped. */
  outputs: Map<number, string>
  /** Runs that the step called and waits for, or waited for. */
  children: Map<string, ChildBar>
}

export interface Attempt {
  /** What it received, if its start has recorded it. */
  input?: unknown
  /** Otherwise: the events of the job that caused it, and how many steps of this name they caused before. */
  causes?: EventRecord[]
  nth: number
  error?: string
  from: number
  to?: number
  label: string
}

export interface ChildBar {
  run: string
  flow: string
  wait: string
  from: number
  to?: number
}

const MAX_OUTPUT = 200_000

const time = (event: EventRecord): number => Date.parse(event.ts)

export class Fold {
  readonly state: FlowState = newFlowState()
  readonly rows = new Map<string, Row>()
  /** Which steps a step started: edges for a run whose code is not loaded. */
  readonly edges = new Map<string, { from: string; to: string }>()
  readonly queuedAt = new Map<string, number>()
  /** Events of user code by the job that emitted them. */
  readonly emitted = new Map<string, EventRecord[]>()
  readonly caused = new Map<string, number>()
  count = 0
  firstAt = NaN
  lastAt = NaN

  apply(event: EventRecord): void {
    applyDag(this.state, event)
    this.count++
    const at = time(event)
    if (Number.isNaN(this.firstAt)) this.firstAt = at
    this.lastAt = at
    const dot = event.kind.indexOf('.')
    const [room, what] = [event.kind.slice(0, dot), event.kind.slice(dot + 1)]
    if (room === 'step' || room === 'node') this.#applyStep(event, what, at)
    else if (room === 'call') this.#applyCall(event, what, at)
    else if (room === 'flow') this.#applyFlow(event, what, at)
    else if (event.meta?.causationId) this.#note(String(event.meta.causationId), event)
  }

  #row(event: EventRecord): Row {
    const step = event.step ?? ''
    // A node has one instance: a retried one continues it, also with its calls and waits.
    const named = Number(event.meta?.n ?? 1)
    const isNode = event.kind.startsWith('node.') || (event.kind !== 'step.started' && this.rows.has(step) && !this.rows.has(`${step}#${named}`))
    const n = isNode ? 1 : named
    const key = n === 1 ? step : `${step}#${n}`
    let row = this.rows.get(key)
    if (!row) this.rows.set(key, (row = { key, step, n, segments: [], calls: new Map(), attempts: new Map(), outputs: new Map(), children: new Map(), before: 0, redrives: 0 }))
    return row
  }

  #note(job: string, event: EventRecord): void {
    const found = this.emitted.get(job)
    if (found) found.push(event)
    else this.emitted.set(job, [event])
  }

  /** Return an attempt that starts. A redrive without an input has that of the attempt before it. */
  #attempt(row: Row, event: EventRecord, number: number, at: number): Attempt {
    const known = row.attempts.get(number)
    if (known) return { ...known, from: at } // it continues after a wait
    const cause = String(event.meta?.causationId ?? '')
    const last = [...row.attempts.values()].at(-1)
    const label = row.redrives ? `redrive ${row.redrives}, attempt ${number - row.before}` : `attempt ${number}`
    if (event.data?.input !== undefined) return { input: event.data.input, nth: 0, from: at, label }
    if (last) return { ...('input' in last ? { input: last.input } : {}), ...(last.causes ? { causes: last.causes } : {}), nth: last.nth, from: at, label }
    if (cause === 'start') return { input: this.state.input, nth: 0, from: at, label }
    const key = `${row.step}\n${cause}`
    const nth = this.caused.get(key) ?? 0
    this.caused.set(key, nth + 1)
    const causes = this.emitted.get(cause)
    return { ...(causes ? { causes } : {}), nth, from: at, label }
  }

  #applyStep(event: EventRecord, what: string, at: number): void {
    const row = this.#row(event)
    const attempt = event.meta?.attempt === undefined ? row.segments.at(-1)?.attempt ?? 1 : Number(event.meta.attempt) + row.before
    const last = row.segments.at(-1)
    const close = (state?: Segment['state']): void => {
      if (last && last.to === undefined) (last.to = at), state && (last.state = state)
    }
    if (what === 'started') {
      if (!last) this.#queue(row, at)
      close(last?.kind === 'run' ? 'cancelled' : undefined) // a worker that died wrote no end
      if (event.meta?.jobId) row.job = String(event.meta.jobId)
      row.segments.push({ kind: 'run', from: at, attempt, state: 'running', text: String(event.meta?.worker ?? '') })
      row.attempts.set(attempt, this.#attempt(row, event, attempt, at))
    } else if (what === 'completed') {
      this.#finish(row, event, at, 'completed')
      for (const to of (event.meta?.starts ?? []) as string[]) this.#start(row.step, to, at)
    } else if (what === 'failed') {
      this.#finish(row, event, at, 'failed')
      row.attempts.set(attempt, { from: at, nth: 0, label: `attempt ${attempt}`, ...row.attempts.get(attempt), to: at, error: String(event.data?.error ?? '') })
      if (event.data?.willRetry) row.segments.push({ kind: 'retry', from: at, attempt: attempt + 1, state: 'waiting', text: 'waits for the next attempt' })
    } else if (what === 'partial') {
      const chunk = event.data?.chunk
      const before = event.meta?.index === 0 ? '' : row.outputs.get(attempt) ?? '' // code that runs again streams again
      const text = before + (typeof chunk === 'string' ? chunk : `${JSON.stringify(chunk)}\n`)
      row.outputs.set(attempt, text.length > MAX_OUTPUT ? text.slice(-MAX_OUTPUT / 2) : text)
    } else if (what.startsWith('await.') && !what.endsWith('timeout') && !what.endsWith('cancelled')) {
      close('completed')
      if (last?.kind === 'wait' && last.to === at) last.to = undefined // one more wait at the same moment
      else row.segments.push({ kind: 'wait', from: at, attempt, state: 'waiting', text: waitText(event) })
      if (what === 'await.call' && event.data?.run) row.children.set(String(event.data.run), { run: String(event.data.run), flow: String(event.data.flow ?? ''), wait: String(event.data.wait ?? ''), from: at })
    } else if (what === 'resumed' || what === 'await.timeout' || what === 'await.cancelled') {
      for (const child of row.children.values()) if (child.to === undefined && child.wait === event.data?.wait) child.to = at
      if (last?.kind === 'wait' && last.to === undefined) {
        close('completed')
        row.segments.push({ kind: 'queue', from: at, attempt, state: 'waiting' })
      }
    } else if (what === 'returned') {
      close('cancelled')
      // With `until` a limit holds the job; without, its worker released it, and it is in its queue again.
      row.segments.push({ kind: event.data?.until ? 'limit' : 'queue', from: at, attempt, state: 'waiting', text: String(event.data?.reason ?? '') })
    } else if (what === 'redriven') {
      row.before = Math.max(row.before, ...row.attempts.keys())
      row.redrives++
      row.segments.push({ kind: 'queue', from: at, attempt: row.before + 1, state: 'waiting' })
    } else if (what === 'cancelled') close('cancelled')
  }

  /** The handler took `duration`; the rest until the event is the commit. */
  #finish(row: Row, event: EventRecord, at: number, state: 'completed' | 'failed'): void {
    const last = row.segments.at(-1)
    if (!last || last.to !== undefined || last.kind !== 'run') return
    const took = Number(event.meta?.duration)
    last.state = state
    last.to = Number.isFinite(took) && row.segments.length <= 2 ? Math.min(at, last.from + took) : at
    if (last.to < at) row.segments.push({ kind: 'commit', from: last.to, to: at, attempt: last.attempt, state })
  }

  #queue(row: Row, at: number): void {
    const from = this.queuedAt.get(row.step) ?? (this.rows.size === 1 ? this.firstAt : at)
    if (from < at) row.segments.push({ kind: 'queue', from, to: at, attempt: 1, state: 'completed' })
  }

  #start(from: string, to: string, at: number): void {
    this.edges.set(`${from}\n${to}`, { from, to })
    this.queuedAt.set(to, at)
  }

  #applyCall(event: EventRecord, what: string, at: number): void {
    const row = this.#row(event)
    const name = String(event.data?.call ?? '')
    const from = event.data?.startedAt ? Date.parse(event.data.startedAt) : at
    const to = what === 'started' ? undefined : from + Number(event.data?.duration ?? 0)
    row.calls.set(name, { name, from, to, state: what === 'started' ? 'running' : what, tries: Number(event.data?.tries ?? 1), attempt: Number(event.meta?.attempt ?? 1) + row.before })
  }

  #applyFlow(event: EventRecord, what: string, at: number): void {
    if (!['cancelled', 'completed', 'failed', 'compensated'].includes(what)) return
    for (const row of this.rows.values()) {
      const last = row.segments.at(-1)
      if (last && last.to === undefined) (last.to = at), (last.state = event.kind === 'flow.cancelled' ? 'cancelled' : last.state)
    }
  }
}

function waitText(event: EventRecord): string {
  const data = event.data ?? {}
  if (event.kind.endsWith('.time')) return `until ${data.resumeAt}`
  if (event.kind.endsWith('.event')) return `for ${data.eventKind}`
  if (event.kind.endsWith('.trigger')) return `for ${data.name ?? 'a trigger'}`
  return `for ${data.flow ?? 'a run'}`
}

/** Fold the first `count` events. */
export function foldFirst(events: EventRecord[], count: number): Fold {
  const fold = new Fold()
  for (let at = 0; at < Math.min(count, events.length); at++) fold.apply(events[at]!)
  return fold
}

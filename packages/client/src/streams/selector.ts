// What to follow, and from where.

import { toQuery } from '../rest/client.js'

/** Select events. Without `stream`, `run` and `queue`, those of all streams. */
export interface Selector {
  /** The whole name of a stream, such as `nq:entity:order-7`. */
  stream?: string
  /** The id of a run: its stream. With `kind: 'dag'`, a run of a dag. */
  run?: string
  kind?: 'flow' | 'dag'
  /** The name of a queue: the events of its jobs. */
  queue?: string
  /** Only events of this job. */
  job?: string
  /** Only events of these kinds, steps or flows. */
  kinds?: string[]
  steps?: string[]
  flows?: string[]
  /** Only events that have all these tags. */
  tags?: string[]
  /** Continue after this cursor. */
  after?: string
  /** Without `after`: send this many of the newest events of the stream first. */
  backfill?: number
  /** Without `after`: first send the folded state of the run, then what comes after it. */
  snapshot?: boolean
}

/** Return the whole name of the selected stream, or undefined for all of them. */
export function streamName(selector: Selector, namespace: string): string | undefined {
  if (selector.stream !== undefined) return selector.stream
  if (selector.run !== undefined) return `${namespace}:${selector.kind ?? 'flow'}:${selector.run}`
  return selector.queue === undefined ? undefined : `${namespace}:queue:${selector.queue}`
}

/** Return the command that subscribes on a WebSocket. */
export function toCommand(id: string, selector: Selector, namespace: string, cursor: string | undefined): object {
  const { job, kinds, steps, flows, tags, backfill, snapshot } = selector
  const start = cursor === undefined ? { backfill, snapshot } : { after: cursor }
  return { op: 'subscribe', id, stream: streamName(selector, namespace), job, kinds, steps, flows, tags, ...start }
}

/** Return the path of the same subscription as server-sent events. */
export function toPath(selector: Selector, namespace: string, cursor: string | undefined): string {
  const name = streamName(selector, namespace)
  const { kinds: kind, steps: step, flows: flow, tags: tag, backfill = 0, snapshot } = selector
  const start = cursor === undefined ? { backfill, snapshot } : { after: cursor }
  const path = name === undefined ? '/api/_events/stream' : `/api/_events/${encodeURIComponent(name)}/tail`
  return path + toQuery({ kind, step, flow, tag, ...start })
}

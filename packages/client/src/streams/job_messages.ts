// Events of jobs as the message of the queue socket, for the transport that has events only.

import type { EventRecord } from '../events.js'

export type JobEvent =
  | 'added' | 'started' | 'progress' | 'log' | 'partial' | 'completed' | 'failed' | 'retry' | 'cancelled' | 'returned'

/** What happened to a job or a step. */
export interface JobMessage {
  v: 1
  stream: 'job' | 'runner'
  event: JobEvent
  jobId: string
  queue: string | null
  ts: string
  data: any
  run?: string
  step?: string
  cursor: string
}

const EVENTS: Record<string, JobEvent> = {
  added: 'added', active: 'started', started: 'started', progress: 'progress', log: 'log', partial: 'partial',
  completed: 'completed', failed: 'failed', retry: 'retry', cancelled: 'cancelled', returned: 'returned',
}

/** Return the message of an event, or null if it concerns no job. */
export function jobMessage(stream: string, event: EventRecord, cursor: string): JobMessage | null {
  const dot = event.kind.lastIndexOf('.')
  const group = event.kind.slice(0, Math.max(dot, 0))
  const name = event.kind.slice(dot + 1)
  if (!Object.hasOwn(EVENTS, name) || !['', 'job', 'step', 'runner'].includes(group)) return null
  const ofRun = event.flow ? { run: event.flow, step: event.step ?? '' } : {}
  const jobId = event.flow ? `${event.flow}.${event.step}` : event.subject
  return { v: 1, stream: 'job', event: EVENTS[name]!, jobId, queue: queueOf(stream, event), ts: event.ts, data: event.data ?? null, ...ofRun, cursor }
}

function queueOf(stream: string, event: EventRecord): string | null {
  const [, type, ...rest] = stream.split(':')
  if (type === 'queue') return rest.join(':')
  return typeof event.meta?.queue === 'string' ? event.meta.queue : null
}

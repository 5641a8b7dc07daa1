// Live events and live jobs.

import type { EventRecord } from '../events.js'
import { jobMessage, type JobMessage } from './job_messages.js'
import { LiveStream, type Format, type StreamOptions } from './live_stream.js'

export type { Handlers, StreamOptions, StreamStatus, Subscription } from './live_stream.js'
export type { Selector } from './selector.js'
export type { JobMessage } from './job_messages.js'
export { LiveStream } from './live_stream.js'

/** An event, the stream it belongs to, and its cursor. */
export interface EventMessage {
  stream: string
  cursor: string
  event: EventRecord
}

export type EventStream = LiveStream<EventMessage>
export type QueueStream = LiveStream<JobMessage>

const EVENTS: Format<EventMessage> = {
  path: '/api/_events/ws',
  fromSocket: (raw) => ({ stream: raw.stream, cursor: raw.cursor, event: raw.record }),
  fromEvent: (stream, event, cursor) => ({ stream, cursor, event }),
}

const JOBS: Format<JobMessage> = {
  path: '/api/_queue/ws',
  fromSocket: ({ sub: _sub, ...message }) => message as JobMessage,
  fromEvent: jobMessage,
}

/** Return a connection for events: `stream.subscribe({ run: id }, ({ event }) => …)`. It connects when first used. */
export const createEventStream = (options: StreamOptions = {}): EventStream => new LiveStream(options, EVENTS)

/** Return a connection for what happens to jobs: `stream.subscribe({ queue: 'mail' }, (message) => …)`. */
export const createQueueStream = (options: StreamOptions = {}): QueueStream => new LiveStream(options, JOBS)

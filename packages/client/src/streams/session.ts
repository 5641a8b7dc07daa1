// One connection to the server, by either transport. It serves the subscriptions that are added to it until it ends.

import { ApiError } from '../rest/errors.js'
import type { Connection } from '../rest/client.js'
import type { EventRecord } from '../events.js'
import type { Selector } from './selector.js'

/** What a session needs of a subscription. */
export interface Receiver {
  readonly id: string
  readonly selector: Selector
  cursor: string | undefined
  /** Take an event, as a WebSocket (`raw`) or as server-sent events have it. */
  takeRaw(raw: Record<string, any>): void
  takeEvent(stream: string, event: EventRecord): void
  takeSnapshot(view: any): void
  fail(error: ApiError): void
}

export interface Session {
  add(receiver: Receiver): void
  remove(receiver: Receiver): void
  close(): void
  /** Resolved when the connection is over; `opened` says whether it ever worked. */
  readonly ended: Promise<{ opened: boolean; error?: ApiError }>
}

export interface SessionOptions {
  connection: Connection
  path: string
  namespace: string
  WebSocket: typeof WebSocket | undefined
  /** Milliseconds without any message, heartbeats included, after which the connection counts as dead. */
  silenceMs: number
  onOpen(): void
}

/** Return whether another attempt is of no use: the request itself is refused. */
export const isFinal = (error: ApiError): boolean => error.status >= 400 && error.status < 500 && ![408, 425, 429].includes(error.status)

/** Calls `onSilence` when `reset` was not called for a while. */
export class Watchdog {
  #timer: ReturnType<typeof setTimeout> | undefined

  constructor(private readonly ms: number, private readonly onSilence: () => void) {}

  reset(): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(this.onSilence, this.ms)
  }

  stop(): void {
    clearTimeout(this.#timer)
  }
}

// Subscriptions that survive lost connections: each continues after the cursor of its last message.

import type { EventRecord } from '../events.js'
import { Connection, type Client, type ClientOptions } from '../rest/client.js'
import { ApiError } from '../rest/errors.js'
import type { Selector } from './selector.js'
import { isFinal, type Receiver, type Session } from './session.js'
import { SocketSession } from './socket.js'
import { SseSession } from './sse.js'

export type StreamStatus = 'idle' | 'connecting' | 'open' | 'reconnecting' | 'closed'

export interface StreamOptions extends ClientOptions {
  /** Use the address and token of this client. */
  client?: Client
  /** `auto`: WebSocket, and server-sent events if it cannot connect. */
  transport?: 'auto' | 'ws' | 'sse'
  /** The server's setting `namespace`. */
  namespace?: string
  /** Instead of the global WebSocket. */
  WebSocket?: typeof WebSocket
  /** Milliseconds without a message or heartbeat after which to reconnect. */
  silenceMs?: number
  /** Longest pause between two attempts, in milliseconds. */
  maxDelayMs?: number
  onStatus?: (status: StreamStatus) => void
}

export interface Handlers<Message> {
  onMessage: (message: Message) => void
  /** The folded state of the run, if `snapshot` was asked for. */
  onSnapshot?: (view: any) => void
  /** The server refused the subscription; it is over. */
  onError?: (error: ApiError) => void
}

export interface Subscription {
  /** The place of the last message: continue there with `after`. */
  readonly cursor: string | undefined
  close(): void
}

/** How messages are made of what either transport sends; null leaves one out. */
export interface Format<Message> {
  path: string
  fromSocket(raw: Record<string, any>): Message | null
  fromEvent(stream: string, event: EventRecord, cursor: string): Message | null
}

const FIRST_DELAY_MS = 250

export class LiveStream<Message> {
  readonly #options: StreamOptions
  readonly #format: Format<Message>
  readonly #connection: Connection
  readonly #receivers = new Map<string, Receiver>()
  #session: Session | undefined
  #status: StreamStatus = 'idle'
  #isRunning = false
  #numbers = 0
  #hasSocketWorked = false
  #transport: 'ws' | 'sse'
  #wake: (() => void) | undefined

  constructor(options: StreamOptions, format: Format<Message>) {
    this.#options = options
    this.#format = format
    this.#connection = options.client?.connection ?? new Connection(options)
    this.#transport = options.transport === 'sse' ? 'sse' : 'ws'
  }

  get status(): StreamStatus {
    return this.#status
  }

  /** The transport in use, or the one that is tried next. */
  get transport(): 'ws' | 'sse' {
    return this.#transport
  }

  /** Follow what a selector selects. The connection is made by the first subscription. */
  subscribe(selector: Selector, handlers: Handlers<Message> | ((message: Message) => void)): Subscription {
    if (this.#status === 'closed') throw new Error('the stream is closed; create another one')
    const given = typeof handlers === 'function' ? { onMessage: handlers } : handlers
    const receiver = this.#makeReceiver(String(++this.#numbers), selector, given)
    this.#receivers.set(receiver.id, receiver)
    this.#session?.add(receiver)
    if (!this.#isRunning) void this.#run()
    return { get cursor() { return receiver.cursor }, close: () => this.#drop(receiver) }
  }

  /** Follow as an async iterator; it ends when the loop is left, and raises what the server refuses. */
  async *follow(selector: Selector): AsyncGenerator<Message> {
    const messages: Message[] = []
    let failure: ApiError | undefined
    let notify = () => {}
    const subscription = this.subscribe(selector, {
      onMessage: (message) => void (messages.push(message), notify()),
      onError: (error) => void ((failure = error), notify()),
    })
    try {
      for (;;) {
        while (messages.length) yield messages.shift()!
        if (failure) throw failure
        await new Promise<void>((resolve) => (notify = resolve))
      }
    } finally {
      subscription.close()
    }
  }

  close(): void {
    this.#receivers.clear()
    this.#session?.close()
    this.#wake?.()
    this.#show('closed')
  }

  #makeReceiver(id: string, selector: Selector, handlers: Handlers<Message>): Receiver {
    const format = this.#format
    const isLive = () => this.#receivers.has(id)
    const pass = (message: Message | null) => {
      if (message !== null && isLive()) handlers.onMessage(message)
    }
    const receiver: Receiver = {
      id,
      selector,
      cursor: selector.after,
      takeRaw: (raw) => pass(format.fromSocket(raw)),
      takeEvent: (stream, event) => {
        if (selector.job === undefined || event.subject === selector.job) pass(format.fromEvent(stream, event, receiver.cursor ?? event.id))
      },
      takeSnapshot: (view) => isLive() && handlers.onSnapshot?.(view),
      fail: (error) => {
        if (this.#receivers.delete(id)) handlers.onError?.(error)
        if (this.#receivers.size === 0) this.#session?.close()
      },
    }
    return receiver
  }

  #drop(receiver: Receiver): void {
    if (!this.#receivers.delete(receiver.id)) return
    this.#session?.remove(receiver)
    if (this.#receivers.size === 0) this.#session?.close()
  }

  /** Keep a connection while there are subscriptions. */
  async #run(): Promise<void> {
    this.#isRunning = true
    let failures = 0
    while (this.#receivers.size > 0) {
      this.#show(failures === 0 && this.#status !== 'open' ? 'connecting' : 'reconnecting')
      const { opened, error } = await this.#connect()
      if (this.#receivers.size === 0) break
      if (error !== undefined && isFinal(error)) this.#failAll(error)
      failures = opened ? 0 : failures + 1
      if (!opened) this.#chooseTransport()
      this.#show('reconnecting')
      await this.#pause(failures)
    }
    this.#isRunning = false
    this.#show('idle')
  }

  async #connect(): Promise<{ opened: boolean; error?: ApiError }> {
    const isSocket = this.#transport === 'ws'
    const options = {
      connection: this.#connection,
      path: this.#format.path,
      namespace: this.#options.namespace ?? 'nq',
      WebSocket: this.#options.WebSocket ?? globalThis.WebSocket,
      silenceMs: this.#options.silenceMs ?? 45_000,
      onOpen: () => {
        this.#hasSocketWorked ||= isSocket
        this.#show('open')
      },
    }
    const session = (this.#session = isSocket ? new SocketSession(options) : new SseSession(options))
    for (const receiver of this.#receivers.values()) session.add(receiver)
    const result = await session.ended
    this.#session = undefined
    return result
  }

  /** A proxy may let no WebSocket through. One that worked before is only lost for a while. */
  #chooseTransport(): void {
    if ((this.#options.transport ?? 'auto') !== 'auto' || this.#hasSocketWorked) return
    this.#transport = this.#transport === 'ws' ? 'sse' : 'ws'
  }

  #failAll(error: ApiError): void {
    for (const receiver of [...this.#receivers.values()]) receiver.fail(error)
  }

  /** Wait before the next attempt, longer each time, and not at the same moment as all other clients. */
  #pause(failures: number): Promise<void> {
    const longest = Math.min(this.#options.maxDelayMs ?? 10_000, FIRST_DELAY_MS * 2 ** Math.min(failures, 10))
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, longest * (0.5 + Math.random() / 2))
      this.#wake = () => void (clearTimeout(timer), resolve())
    })
  }

  #show(status: StreamStatus): void {
    if (this.#status === 'closed' || this.#status === status) return
    this.#status = status
    this.#options.onStatus?.(status)
  }
}

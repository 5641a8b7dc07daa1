// All subscriptions of a stream on one WebSocket.

import { ApiError } from '../rest/errors.js'
import { toCommand } from './selector.js'
import { Watchdog, type Receiver, type Session, type SessionOptions } from './session.js'

export class SocketSession implements Session {
  readonly ended: Promise<{ opened: boolean; error?: ApiError }>
  readonly #receivers = new Map<string, Receiver>()
  readonly #options: SessionOptions
  readonly #watchdog: Watchdog
  #socket: WebSocket | undefined
  #isOpen = false
  #isClosed = false
  #end!: (result: { opened: boolean; error?: ApiError }) => void

  constructor(options: SessionOptions) {
    this.#options = options
    this.#watchdog = new Watchdog(options.silenceMs, () => this.close())
    this.ended = new Promise((resolve) => (this.#end = resolve))
    this.#connect().catch((problem) => this.#finish(problem))
  }

  add(receiver: Receiver): void {
    this.#receivers.set(receiver.id, receiver)
    if (this.#isOpen) this.#subscribe(receiver)
  }

  remove(receiver: Receiver): void {
    if (this.#receivers.delete(receiver.id) && this.#isOpen) this.#send({ op: 'unsubscribe', id: receiver.id })
  }

  close(): void {
    this.#isClosed = true
    this.#socket?.close()
    this.#finish()
  }

  async #connect(): Promise<void> {
    const { connection, path, WebSocket: Socket, onOpen } = this.#options
    if (Socket === undefined) throw new ApiError(0, 'no_websocket', 'this platform has no WebSocket; pass one as an option')
    this.#watchdog.reset()
    // A browser cannot send headers with a WebSocket, so the token buys a ticket for one connection.
    const ticket = connection.hasToken ? `?ticket=${encodeURIComponent((await connection.request('POST', '/api/_tickets')).ticket)}` : ''
    if (this.#isClosed) return
    const socket = new Socket(connection.url.replace(/^http/, 'ws') + path + ticket)
    this.#socket = socket
    socket.onopen = () => {
      this.#isOpen = true
      this.#watchdog.reset()
      onOpen()
      for (const receiver of this.#receivers.values()) this.#subscribe(receiver)
    }
    socket.onmessage = (message) => {
      this.#watchdog.reset()
      if (!this.#isClosed) this.#take(JSON.parse(String(message.data)))
    }
    socket.onclose = () => this.#finish()
    socket.onerror = () => this.#finish()
  }

  #subscribe(receiver: Receiver): void {
    this.#send(toCommand(receiver.id, receiver.selector, this.#options.namespace, receiver.cursor))
  }

  #send(command: object): void {
    if (this.#socket?.readyState === 1) this.#socket.send(JSON.stringify(command))
  }

  #take(message: Record<string, any>): void {
    const receiver = this.#receivers.get(message.sub ?? message.id)
    if (receiver === undefined) return // of a subscription that was closed meanwhile
    if (message.sub !== undefined) {
      receiver.cursor = message.cursor
      receiver.takeRaw(message)
    } else if (message.op === 'cursor') {
      receiver.cursor = message.cursor
    } else if (message.op === 'snapshot') {
      receiver.cursor = message.record.lastEvent ?? ''
      receiver.takeSnapshot(message.record)
    } else if (message.op === 'error') {
      this.#receivers.delete(receiver.id)
      receiver.fail(new ApiError(400, message.error.code, message.error.message))
    }
  }

  #finish(problem?: unknown): void {
    this.#watchdog.stop()
    const error = problem instanceof ApiError ? problem : undefined
    this.#end({ opened: this.#isOpen, ...(error && { error }) })
  }
}

// Server-sent events by `fetch`, which sends the token as a header; one request for each subscription.

import { ApiError } from '../rest/errors.js'
import { streamName, toPath } from './selector.js'
import { isFinal, Watchdog, type Receiver, type Session, type SessionOptions } from './session.js'

export interface Frame {
  id: string | undefined
  name: string
  data: string
}

export class SseSession implements Session {
  readonly ended: Promise<{ opened: boolean; error?: ApiError }>
  readonly #options: SessionOptions
  readonly #requests = new Map<string, AbortController>()
  #hasOpened = false
  #end!: (result: { opened: boolean; error?: ApiError }) => void

  constructor(options: SessionOptions) {
    this.#options = options
    this.ended = new Promise((resolve) => (this.#end = resolve))
  }

  add(receiver: Receiver): void {
    const abort = new AbortController()
    this.#requests.set(receiver.id, abort)
    this.#follow(receiver, abort).catch((problem) => this.#lose(receiver, abort, problem))
  }

  remove(receiver: Receiver): void {
    this.#requests.get(receiver.id)?.abort()
    this.#requests.delete(receiver.id)
  }

  close(error?: ApiError): void {
    for (const abort of this.#requests.values()) abort.abort()
    this.#requests.clear()
    this.#end({ opened: this.#hasOpened, ...(error && { error }) })
  }

  async #follow(receiver: Receiver, abort: AbortController): Promise<void> {
    const { connection, namespace, silenceMs, onOpen } = this.#options
    const path = toPath(receiver.selector, namespace, receiver.cursor)
    const watchdog = new Watchdog(silenceMs, () => this.close())
    watchdog.reset()
    try {
      const response = await connection.fetch(path, { headers: { accept: 'text/event-stream' }, signal: abort.signal })
      this.#hasOpened = true
      onOpen()
      for await (const frame of readFrames(response.body!, () => watchdog.reset())) {
        if (abort.signal.aborted) return
        this.#take(receiver, frame)
      }
    } finally {
      watchdog.stop()
    }
    this.close() // the server ended it
  }

  #take(receiver: Receiver, frame: Frame): void {
    if (frame.id !== undefined) receiver.cursor = frame.id
    if (frame.name === 'snapshot') receiver.takeSnapshot(JSON.parse(frame.data))
    if (frame.name !== 'message') return
    const name = streamName(receiver.selector, this.#options.namespace)
    const body = JSON.parse(frame.data)
    if (name === undefined) receiver.takeEvent(body.stream, body.record)
    else receiver.takeEvent(name, body)
  }

  #lose(receiver: Receiver, abort: AbortController, problem: unknown): void {
    if (abort.signal.aborted) return
    const error = problem instanceof ApiError ? problem : new ApiError(0, 'unreachable', String(problem))
    if (!isFinal(error)) return this.close(error)
    this.#requests.delete(receiver.id)
    receiver.fail(error)
  }
}

/** Yield the messages of a response with server-sent events; `onData` is called for every piece, heartbeats included. */
export async function* readFrames(body: ReadableStream<Uint8Array>, onData: () => void = () => {}): AsyncGenerator<Frame> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as TransformStream<Uint8Array, string>).getReader()
  let rest = ''
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      onData()
      const blocks = (rest + value).split('\n\n')
      rest = blocks.pop()!
      for (const block of blocks) {
        const frame = parseFrame(block)
        if (frame !== undefined) yield frame
      }
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}

function parseFrame(block: string): Frame | undefined {
  let id: string | undefined
  let name = 'message'
  const data: string[] = []
  for (const line of block.split('\n')) {
    const [field, value] = /^([^:]*):? ?(.*)$/s.exec(line)!.slice(1) as [string, string]
    if (field === 'id') id = value
    else if (field === 'event') name = value
    else if (field === 'data') data.push(value)
  }
  return id === undefined && data.length === 0 ? undefined : { id, name, data: data.join('\n') }
}

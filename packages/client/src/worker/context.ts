// `ctx`: what a handler may do.

import type { EventRecord } from '../events.js'
import type { Duration, RetryPolicy } from './config.js'

/** A durable call: await it, or pass it to `ctx.all` or `ctx.first`. */
export type DurableCall<Value> = Promise<Value>

export interface Logger {
  (message: string, fields?: Record<string, unknown> | Error): void
  debug(message: string, fields?: Record<string, unknown> | Error): void
  info(message: string, fields?: Record<string, unknown> | Error): void
  warn(message: string, fields?: Record<string, unknown> | Error): void
  error(message: string, fields?: Record<string, unknown> | Error): void
  log(level: string, message: string, fields?: Record<string, unknown> | Error): void
  child(fields: Record<string, unknown>): Logger
}

export type StateKey = string | string[]

export interface State {
  /** Return the value of a key; `fallback`, or null, if it has none. */
  get<Value = any>(key: StateKey, fallback?: Value | null): Promise<Value | null>
  set(key: StateKey, value: unknown, options?: { ttl?: Duration }): Promise<void>
  delete(key: StateKey): Promise<void>
  list(prefix?: StateKey, options?: { limit?: number }): Promise<{ keys: string[]; values: Record<string, any> }>
  /** Change a value atomically: `updater(previous)` returns the new one. */
  patch<Value = any>(
    key: StateKey, updater: (previous: Value | null) => Value | Promise<Value>, options?: { ttl?: Duration; name?: string },
  ): Promise<Value>
}

/** What can be put: a text, bytes, a Blob, or chunks of them. */
export type BlobContent =
  | string | ArrayBuffer | ArrayBufferView | Blob | ReadableStream<Uint8Array>
  | Iterable<string | Uint8Array> | AsyncIterable<string | Uint8Array>

export interface BlobInfo {
  key: string
  size: number
  contentType: string
  /** In hex; missing if another program has put the blob. */
  sha256?: string
  modifiedAt?: string
}

/** Files and other large data, in the worker's blob store. */
export interface Blobs {
  /** Put a blob at once, and return it. What the key held before is replaced. */
  put(key: string, data: BlobContent, options?: { contentType?: string }): Promise<BlobInfo>
  /** Return a blob as bytes. In Node they are a Buffer. */
  get(key: string): Promise<Uint8Array>
  /** Yield a blob in parts. */
  stream(key: string): AsyncIterable<Uint8Array>
  /** Return size, type and hash of a blob. */
  info(key: string): Promise<BlobInfo>
  /** Delete a blob; return false if there was none. */
  delete(key: string): Promise<boolean>
  /** Return a URL that works without a token until it expires. */
  url(key: string, options?: { expires?: Duration; method?: 'GET' | 'PUT' }): Promise<string>
}

export interface EventWait {
  kind?: string
  match?: Record<string, unknown>
  where?: (event: EventRecord) => boolean
  timeout?: Duration
  name?: string
  past?: boolean
}

export interface Trigger<Data = any> {
  readonly id: string
  readonly name: string
  readonly token: string
  readonly url: string
  /** Wait until the trigger is fired; return its data. */
  wait(): DurableCall<Data>
}

export interface TriggerOptions {
  name?: string
  type?: 'webhook' | 'user' | 'api'
  payload?: unknown
  schema?: Record<string, unknown>
  timeout?: Duration
  signed?: string
  signedId?: 'trigger' | 'any'
}

export interface Waits {
  time(until: Duration | Date, options?: { name?: string }): DurableCall<null>
  event(kind: string, options?: EventWait): DurableCall<EventRecord>
  event(options: EventWait & { kind: string }): DurableCall<EventRecord>
  trigger(name?: string, options?: TriggerOptions): Promise<Trigger>
  trigger(options: TriggerOptions): Promise<Trigger>
}

export interface RunOptions {
  key?: string
  timeout?: Duration
  onFailure?: 'raise' | 'return'
  onTimeout?: 'cancel' | 'abandon'
  name?: string
  priority?: number
  correlationId?: string
  tags?: Record<string, string>
}

export interface LaunchOptions {
  key?: string
  delay?: Duration
  priority?: number
  correlationId?: string
}

/** The value itself, and a function that returns it. */
export type CallableText = (() => string) & { toString(): string }

export interface WorkerContext<Input = any> {
  readonly input: Input
  readonly jobId: string
  readonly queue: string
  readonly queueName: string
  readonly attempt: number
  readonly runId: string | null
  readonly flow: string | null
  readonly flowId: string | null
  readonly flowName: string | null
  readonly step: string | null
  readonly stepKey: string | null
  readonly n: number
  /** The config of the node, and the ids of its inputs that were skipped; for the executor of a node. */
  readonly config: any
  readonly skipped: string[]
  readonly correlationId: CallableText
  /** The W3C `traceparent` of this attempt's span, if the worker traces: the parent of spans of your own. */
  readonly traceparent?: string
  /** The event, or the trigger's data, of a declared wait. */
  readonly awaited: any
  /** Aborted when the run is cancelled, or its time is up. */
  readonly signal: AbortSignal
  readonly cancelled: boolean
  readonly logger: Logger
  readonly log: Logger
  readonly state: State
  readonly shared: State
  readonly blob: Blobs
  readonly await: Waits
  readonly wait: Waits

  /** Emit an event when the attempt commits. */
  emit(kind: string, data?: unknown, options?: { tags?: string[] }): void
  emit(event: { kind?: string; type?: string; data?: unknown; correlationId?: string | CallableText; tags?: string[] }): void
  progress(value: unknown): void
  partial(chunk: unknown): void
  idempotencyKey(name?: string): string
  /** Run a function once: its result is recorded, and returned when the handler runs again. */
  run<Value>(
    name: string, fn: () => Value | Promise<Value>, options?: { retry?: number | RetryPolicy; timeout?: Duration },
  ): DurableCall<Value>
  call<Result = any>(flow: string, input?: unknown, options?: RunOptions): DurableCall<Result>
  callMany<Result = any>(flow: string, inputs: unknown[], options?: RunOptions): DurableCall<Result[]>
  all<Values extends readonly unknown[]>(calls: { [K in keyof Values]: DurableCall<Values[K]> }): Promise<Values>
  first(calls: Record<string, DurableCall<any>>, options?: { name?: string }): Promise<[string, any]>
  now(): Promise<Date>
  uuid(): Promise<string>
  random(): Promise<number>
  enqueue(queue: string, input?: unknown, options?: LaunchOptions & { name?: string; retry?: number | RetryPolicy; orderKey?: string }): Promise<string>
  start(flow: string, input?: unknown, options?: LaunchOptions & { tags?: Record<string, string> }): Promise<string>
  childrenValues(): Promise<Record<string, any>>
  failedChildren(): Promise<Record<string, any>>
  removeChildren(): Promise<unknown>
}

/** The default export of a worker file. */
export type WorkerHandler<Input = any, Result = unknown> = (input: Input, ctx: WorkerContext<Input>) => Result | Promise<Result>

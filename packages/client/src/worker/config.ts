// The config of a worker file. Numbers are milliseconds.

import type { EventRecord } from '../events.js'

/** Milliseconds, or a text such as "90s", "1h30m" or "7 days". */
export type Duration = number | string

export interface RetryPolicy {
  /** The number of tries, the first one included. */
  attempts?: number
  backoff?: { type?: 'exponential' | 'fixed'; delayMs?: number; maxDelayMs?: number; jitter?: boolean }
  /** Names or codes of the errors to retry; empty for all. */
  retriableErrors?: string[]
  onFail?: 'dlq' | 'drop'
}

/** The run that a subscription decides about. */
export interface RunFacts {
  flow: string
  correlationId: string
  [name: string]: any
}

/** An event that starts a step. A worker with Node evaluates `when` and `map`. */
export interface SubscriptionConfig<Data = any> {
  kind?: string
  eventKind?: string
  stream?: 'flow' | 'global' | (string & {})
  when?: ((event: EventRecord<Data>, run: RunFacts) => boolean | Promise<boolean>) | Record<string, unknown>
  map?: (event: EventRecord<Data>, run: RunFacts) => unknown
}

/** What starts a step, and what it emits. */
export interface FlowConfig {
  id?: string | string[]
  role?: 'main' | 'step'
  step?: string
  emits?: string | string[]
  triggers?: string | string[]
  subscriptions?: SubscriptionConfig[]
  mode?: 'once' | 'each' | 'all'
  version?: number | string
  accepts?: string[]
  events?: Record<string, unknown>
  startOn?: string | SubscriptionConfig | (string | SubscriptionConfig)[]
  webhook?: unknown
  compensation?: unknown
  onChange?: 'continue' | 'fail' | 'drain' | (string & {})
  attributes?: Record<string, string>
}

/** A wait before (or after) the handler. */
export interface AwaitConfig {
  type: 'time' | 'event' | 'trigger' | 'webhook'
  delay?: Duration | ((input: any, context: any) => Duration)
  kind?: string
  event?: string
  match?: Record<string, unknown> | ((input: any, context: any) => Record<string, unknown>)
  where?: (event: EventRecord) => boolean
  timeout?: Duration
  payload?: unknown
  [name: string]: unknown
}

/** A JSON schema, or a schema object with the Standard Schema interface, such as zod's. */
export type Schema = Record<string, unknown> | { readonly '~standard': unknown }

/** `export const config = defineQueueConfig({ … })`. */
export interface QueueConfig<Input = any> {
  queue?: string
  flow?: FlowConfig
  step?: string
  emits?: string | string[]
  triggers?: string | string[]
  subscriptions?: SubscriptionConfig[]
  mode?: 'once' | 'each' | 'all'
  /** A function of this file, or its name; by default the default export. */
  handler?: string | ((input: Input, ctx: any) => unknown)
  await?: AwaitConfig
  wait?: AwaitConfig
  /** A cron expression, an interval such as "15m", or one of both with options. */
  schedule?: string | { cron?: string; every?: Duration; tz?: string; input?: unknown; [name: string]: unknown }
  cron?: string
  concurrency?: number
  maxActive?: number
  callConcurrency?: number
  rateLimit?: { max: number; duration: Duration } | string
  /** The path of a field, or a function that a worker with Node calls before it adds the job. */
  rateKey?: string | ((input: Input) => unknown)
  orderKey?: string
  retry?: number | RetryPolicy
  retryPolicy?: RetryPolicy
  timeout?: Duration
  timeoutMs?: number
  /** Run the handler on a worker thread: it may block. By default as the setting `node_threads` says. */
  useWorkerThreads?: boolean
  priority?: number
  /** `'auto'`, the path of a field such as `'customer.id'`, or a function that a worker with Node calls before it starts the work. */
  idempotencyKey?: 'auto' | (string & {}) | ((input: Input) => string | number | Promise<string | number>)
  inputSchema?: Schema
  outputSchema?: Schema
  unknownFields?: 'refuse' | 'ignore' | (string & {})
  dlq?: { enabled?: boolean; queue?: string }
  /** The type of node that this file executes, and a schema of the config of such nodes. */
  node?: string | { type: string; config?: Schema }
  /** The circuit breaker of an executor, shared by all workers. */
  breaker?: { failures?: number; openFor?: Duration; key?: string }
  keepCompleted?: unknown
  keepFailed?: unknown
  removeOnComplete?: unknown
  removeOnFail?: unknown
}

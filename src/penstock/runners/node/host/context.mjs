// `ctx`: what a handler may do. Notices are sent at once, calls wait for the worker's answer.

import { Blobs } from './blobs.mjs'
import { AttemptCancelled, CallError } from './penstock.mjs'
import { show, toMs } from './values.mjs'

/** A durable call. It starts by itself at the end of the turn, unless `ctx.all` or `ctx.first` takes it before. */
export class DurableCall {
  #run
  #site
  #started = null

  constructor(run, frame, site) {
    this.frame = frame
    this.#run = run
    this.#site = site
    queueMicrotask(() => this.#started ?? this.#start().catch(() => {}))
  }

  #start() {
    return (this.#started ??= this.#run.call({ type: 'await', call: this.frame }, this.#site))
  }

  take() {
    if (this.#started) throw new Error('this durable call runs already; pass it to ctx.all or ctx.first directly')
    this.#started = Promise.resolve()
    return this.frame
  }

  then(resolve, reject) {
    return this.#start().then(resolve, reject)
  }

  catch(reject) {
    return this.then(undefined, reject)
  }

  finally(done) {
    return this.#start().finally(done)
  }
}

/** One attempt in this host: its calls, its functions, its signal. */
export class Attempt {
  #send
  #calls = new Map()
  #functions = []
  #numbers = 0
  #pending = []
  #isFlushing = false
  #branched = false
  #last = 0  // the number of the call before
  #arrived = 0  // frames that this turn of the event loop has brought
  #cause = 0  // the call whose answer is all that this turn has brought
  #abort = new AbortController()
  isOver = false

  constructor(send) {
    this.#send = send
  }

  get signal() {
    return this.#abort.signal
  }

  notify(frame) {
    this.#check()
    this.#send(frame)
  }

  #check() {
    if (this.#abort.signal.aborted) throw this.#abort.signal.reason
    if (this.isOver) throw new Error('the attempt is over, so its ctx can no longer record anything; await everything a handler starts')
  }

  /** Send a request and return its answer. Requests of one turn are sent together, so that branches are recognised. */
  async call(request, site) {
    this.#check()
    const id = ++this.#numbers
    const loose = (this.#last && this.#cause !== this.#last) || undefined
    this.#last = id
    const answer = new Promise((resolve, reject) => this.#calls.set(id, { resolve, reject }))
    this.#pending.push({ type: 'call', id, request, site, loose })
    this.#flushSoon()
    return answer
  }

  #flushSoon() {
    if (this.#isFlushing) return
    this.#isFlushing = true
    setImmediate(() => this.#flush())
  }

  #flush() {
    this.#isFlushing = false
    if (this.isOver) return
    const branch = this.#calls.size > 1
    for (const frame of this.#pending.splice(0)) this.#request(branch ? { ...frame, branch } : frame)
    if (branch || (this.#branched && this.#calls.size)) this.#send({ type: 'blocked', calls: [...this.#calls.keys()] })
    this.#branched = branch
  }

  #request(frame) {
    try {
      this.#send(frame)
    } catch (problem) {  // it has no JSON form, or is too large
      this.#calls.get(frame.id)?.reject(problem)
      this.#calls.delete(frame.id)
    }
  }

  number(fn) {
    if (typeof fn !== 'function') throw new TypeError(`expected a function, got ${show(fn)}`)
    return this.#functions.push(fn) - 1
  }

  execute(number, value) {
    this.#arrive(0)
    return this.#functions[number](value)
  }

  /**
   * Remember what this turn of the event loop has brought, until all that follows from it has run. A call that is made
   * meanwhile follows from the answer; of any other, nobody knows which branch of the handler makes it.
   */
  #arrive(cause) {
    this.#cause = this.#arrived++ ? 0 : cause
    if (this.#arrived > 1) return
    queueMicrotask(() => process.nextTick(() => {  // after the last microtask
      this.#arrived = 0
      this.#cause = 0
    }))
  }

  answer(id, value, error) {
    this.#arrive(id)
    const call = this.#calls.get(id)
    if (!call) return
    this.#calls.delete(id)
    if (error) call.reject(new CallError(error, id))
    else call.resolve(value)
    if (this.#calls.size) this.#flushSoon()
  }

  /** Stop for good: nothing that the handler still does is sent. Its promises stay pending after a suspension. */
  end() {
    this.isOver = true
    this.#calls.clear()
  }

  cancel(reason) {
    const problem = new AttemptCancelled(reason)
    const calls = [...this.#calls.values()]
    this.end()
    this.#abort.abort(problem)
    for (const call of calls) call.reject(problem)
  }
}

const HOST = new URL('.', import.meta.url).pathname

/** Return `file:line` of the handler that makes a call. */
function here() {
  const limit = Error.stackTraceLimit
  Error.stackTraceLimit = 12
  const lines = new Error().stack.split('\n')
  Error.stackTraceLimit = limit
  const line = lines.slice(1).find((one) => !one.includes(HOST) && !one.includes('node:'))
  const found = line && /(?:\(|at (?:async )?)(?:file:\/\/)?([^()\s]+):(\d+):\d+\)?$/.exec(line)
  return found ? `${decodeURIComponent(found[1]).split('?')[0]}:${found[2]}` : undefined
}

const toKey = (key) => (Array.isArray(key) ? key.map(String).join(':') : key)

class State {
  #run
  #shared

  constructor(run, shared) {
    this.#run = run
    this.#shared = shared || undefined
  }

  /** Return the value of a key; `fallback`, or null, if it has none. */
  async get(key, fallback = null) {
    const found = await this.#run.call({ type: 'state.get', key: toKey(key), shared: this.#shared })
    return found.found ? found.value : fallback
  }

  /** Write a value with the commit. A wrong one is thrown at once: the promise may be ignored. */
  set(key, value, options = {}) {
    this.#run.notify({ type: 'state.set', key: toKey(key), value: value ?? null, ttlMs: toMs(options.ttl, 'ttl'), shared: this.#shared })
    return Promise.resolve()
  }

  delete(key) {
    this.#run.notify({ type: 'state.delete', key: toKey(key), shared: this.#shared })
    return Promise.resolve()
  }

  /** Return the keys that start with `prefix`, and their values. */
  async list(prefix = '', options = {}) {
    const values = await this.#run.call({ type: 'state.list', prefix: toKey(prefix), limit: options.limit ?? 100, shared: this.#shared })
    return { keys: Object.keys(values), values }
  }

  /** Change a value atomically: `updater(previous)` returns the new one. */
  async patch(key, updater, options = {}) {
    const ttlMs = toMs(options.ttl, 'ttl')
    const request = { type: 'state.patch', key: toKey(key), function: this.#run.number(updater), ttlMs, name: options.name, shared: this.#shared }
    return this.#run.call(request, here())
  }
}

class Trigger {
  #run

  constructor(run, found) {
    this.#run = run
    this.id = found.id
    this.name = found.name
    this.token = found.token
    this.url = found.url
  }

  /** A result or an event must not show the token by accident. */
  toJSON() {
    return { id: this.id, name: this.name }
  }

  /** Wait until the trigger is fired; return its data. */
  wait() {
    return new DurableCall(this.#run, { type: 'wait.trigger', trigger: this.id }, here())
  }
}

class Waits {
  #run

  constructor(run) {
    this.#run = run
  }

  /** Wait for a duration (milliseconds, or a text such as "1h"), or until a Date. */
  time(until, options = {}) {
    const span = until instanceof Date ? { untilMs: until.getTime() } : { delayMs: toMs(until, 'ctx.await.time') ?? 0 }
    return new DurableCall(this.#run, { type: 'wait.time', ...span, name: options.name }, here())
  }

  /** Wait for an event: `event({ kind, match, where, timeout })`, or `event(kind, options)`. */
  event(kind, options = {}) {
    const all = typeof kind === 'object' && kind !== null ? kind : { ...options, kind }
    const where = all.where === undefined ? undefined : this.#run.number(all.where)
    const frame = {
      type: 'wait.event', kind: all.kind ?? all.eventKind, match: all.match, where,
      timeoutMs: toMs(all.timeout, 'timeout'), name: all.name, past: all.past,
    }
    return new DurableCall(this.#run, frame, here())
  }

  /** Make a trigger: `trigger({ type, payload, timeout })`, or `trigger(name, options)`; then `await trigger.wait()`. */
  async trigger(name, options = {}) {
    const all = typeof name === 'object' && name !== null ? name : { ...options, name }
    const request = {
      type: 'trigger', name: all.name ?? 'trigger', kind: all.type, payload: all.payload, schema: all.schema,
      timeoutMs: toMs(all.timeout, 'timeout'), signed: all.signed, signedId: all.signedId,
    }
    const found = await this.#run.call(request, here())
    const secret = await this.#run.call({ type: 'trigger.token', trigger: found.id })
    return new Trigger(this.#run, { ...found, ...secret })
  }
}

const LEVELS = { debug: 'debug', info: 'info', warn: 'warning', warning: 'warning', error: 'error' }

function makeLogger(run, bindings = {}) {
  const log = (level, message, fields) => {
    const more = fields instanceof Error ? { error: fields.message } : fields
    run.notify({ type: 'log', level: LEVELS[level] ?? 'info', message: String(message), fields: { ...bindings, ...more } })
  }
  const logger = (message, fields) => log('info', message, fields)
  for (const level of Object.keys(LEVELS)) logger[level] = (message, fields) => log(level, message, fields)
  logger.log = (level, message, fields) => log(level, message, fields)
  logger.child = (more) => makeLogger(run, { ...bindings, ...more })
  return logger
}

/** The value itself, and a function that returns it: the specs write `ctx.correlationId()`. */
function callable(text) {
  const same = () => text
  return Object.assign(same, { toString: same, toJSON: same, valueOf: same, [Symbol.toPrimitive]: same })
}

/** Return the `ctx` of a task. */
export function makeContext(run, task, input) {
  const durable = (frame) => new DurableCall(run, frame, here())
  const launch = (type, target, input, options) => {
    const { delay, ...rest } = options
    return run.call({ type, ...target, input, delayMs: toMs(delay, 'delay'), ...rest })
  }
  const callRun = (flow, input, { timeout, ...rest }, many) =>
    durable({ type: 'call.run', flow, input, many, timeoutMs: toMs(timeout, 'timeout'), ...rest })
  const logger = makeLogger(run)
  const live = {
    log: (data) => (typeof data === 'object' && data !== null ? logger.log(data.level, data.msg ?? data.message, data.fields) : logger(data)),
    progress: (value) => run.notify({ type: 'progress', value }),
    partial: (chunk) => run.notify({ type: 'partial', chunk }),
  }
  const waits = new Waits(run)
  return {
    input,
    jobId: task.job,
    queue: task.queue,
    queueName: task.queue,
    attempt: task.attempt,
    runId: task.run ?? null,
    flow: task.flow ?? null,
    flowId: task.flow ?? null,
    flowName: task.flow ?? null,
    step: task.step ?? null,
    config: task.node?.config ?? null,
    skipped: task.node?.skipped ?? [],
    stepKey: task.step ?? null,
    n: task.n ?? 1,
    correlationId: callable(task.correlationId ?? ''),
    traceparent: task.traceparent,
    awaited: task.awaited ?? null,
    signal: run.signal,
    get cancelled() {
      return run.signal.aborted
    },
    logger,
    log: logger,
    state: new State(run, false),
    shared: new State(run, true),
    blob: new Blobs(run),
    await: waits,
    wait: waits,

    emit(kind, data, options = {}) {
      const event = typeof kind === 'object' && kind !== null ? kind : { kind, data, tags: options.tags }
      if (event.kind === undefined && live[event.type]) return live[event.type](event.data)
      const { tags, correlationId } = event
      run.notify({ type: 'emit', kind: event.kind ?? event.type, data: event.data ?? null, correlationId: correlationId?.toString(), tags })
    },
    progress: live.progress,
    partial: live.partial,
    idempotencyKey: (name = '') => (name ? `${task.scope}.${name}` : task.scope),

    /** Run a function once: its result is recorded, and returned when the handler runs again. */
    run(name, fn, options = {}) {
      const { retry, timeout } = options
      return durable({ type: 'run', name, function: run.number(fn), retry, timeoutMs: toMs(timeout, 'timeout') })
    },
    call: (flow, input, options = {}) => callRun(flow, input, options),
    callMany: (flow, inputs, options = {}) => callRun(flow, inputs, options, true),
    all: (calls) => run.call({ type: 'all', calls: calls.map((one) => one.take()) }, here()),
    first(calls, options = {}) {
      const frames = Object.fromEntries(Object.entries(calls).map(([key, one]) => [key, one.take()]))
      return run.call({ type: 'first', calls: frames, name: options.name }, here())
    },
    now: async () => new Date(await run.call({ type: 'value', of: 'now' })),
    uuid: () => run.call({ type: 'value', of: 'uuid' }),
    random: () => run.call({ type: 'value', of: 'random' }),
    enqueue: (queue, input, options = {}) => launch('enqueue', { queue }, input, options),
    start: (flow, input, options = {}) => launch('start', { flow }, input, options),
    childrenValues: () => run.call({ type: 'children', what: 'values' }),
    failedChildren: () => run.call({ type: 'children', what: 'failed' }),
    removeChildren: () => run.call({ type: 'children', what: 'remove' }),
  }
}

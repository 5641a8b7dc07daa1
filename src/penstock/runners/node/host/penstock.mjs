// What a worker file imports from 'penstock'.

/** Return the config of a worker file as it is; it gives editors the types. */
export const defineQueueConfig = (config) => config
export const defineFunctionConfig = defineQueueConfig

/** Return a handler with its config, to be the default export: `export default defineFunction({ queue }, handle)`. */
export function defineFunction(config, handle) {
  if (typeof config === 'function') return config
  const { handler, ...rest } = config
  const fn = handle ?? handler
  if (typeof fn !== 'function') {
    throw new TypeError('defineFunction requires a function: defineFunction({ queue: "mail" }, async (input, ctx) => …)')
  }
  return Object.assign(fn, { config: rest })
}

/** Marks what the executor of a node returns if it is more than data. */
export const NODE_OUTCOME = Symbol.for('penstock.node.outcome')

/** Return it from the executor of a node: the node is skipped. */
export const skip = (reason = '') => ({ [NODE_OUTCOME]: 'skip', reason })

/** Return it from the executor of a node: the attempt failed. `retry` is false, or the delay of the next attempt. */
export const fail = (reason, { retry = true } = {}) => ({ [NODE_OUTCOME]: 'fail', reason, retry })

/** Return it from the executor of a node: of the nodes after it, only these follow. */
export const next = (nodes, data = null) => ({ [NODE_OUTCOME]: 'next', nodes: [nodes].flat(), data })

export class PenstockError extends Error {
  constructor(message, options) {
    super(message, options)
    this.name = this.constructor.name
    Object.assign(this, options)
  }
}

/** The job fails at once, without retries. */
export class Permanent extends PenstockError {}

/** The job is retried after `after` (milliseconds, or a text such as "2h"). */
export class Retry extends PenstockError {}

/** The job goes back to its queue, which starts nothing for `after`. No attempt is counted. */
export class RateLimited extends PenstockError {}

/** What a `ctx` call raised in the worker; `name` and `code` say what. */
export class CallError extends PenstockError {
  constructor(error, answer) {
    super(error.message ?? '')
    this.name = error.name
    this.code = error.code
    Object.defineProperty(this, 'answer', { value: answer })
  }
}

/** The reason of `ctx.signal`: the run was cancelled, its time is up, or the worker stops. */
export class AttemptCancelled extends PenstockError {
  constructor(reason) {
    super(`the attempt was cancelled: ${reason}`)
    this.code = 'cancelled'
  }
}

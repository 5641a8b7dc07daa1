// The errors by which a handler decides about its retry. The host knows them by their names.

/** Base of the errors of this package that a handler throws. */
export class PenstockError extends Error {
  constructor(message?: string, options: ErrorOptions & Record<string, unknown> = {}) {
    super(message, options)
    this.name = new.target.name
    const { cause: _cause, ...rest } = options
    Object.assign(this, rest)
  }
}

/** The job fails at once, without retries. */
export class Permanent extends PenstockError {}

/** The job is retried after `after` (milliseconds, or a text such as "2h"). */
export class Retry extends PenstockError {
  declare readonly after?: number | string
}

/** The job goes back to its queue, which starts nothing for `after`. No attempt is counted. */
export class RateLimited extends PenstockError {
  declare readonly after?: number | string
}

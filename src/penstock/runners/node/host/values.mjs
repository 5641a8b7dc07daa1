// Values and errors as JSON, and durations as milliseconds.

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 }

/** Return milliseconds: a number counts them, a text such as "90s", "1h30m" or "7 days" has units. */
export function toMs(value, what) {
  if (value === undefined || value === null) return undefined
  if (typeof value === 'number' && Number.isFinite(value) && value >= 0) return Math.round(value)
  const parts = typeof value === 'string' ? [...value.matchAll(/(\d+(?:\.\d+)?)\s*(ms|[smhdw])[a-z]*\s*/gi)] : []
  if (parts.length && parts.map((part) => part[0]).join('') === value.trimStart()) {
    return Math.round(parts.reduce((sum, [, number, unit]) => sum + number * UNITS[unit.toLowerCase()], 0))
  }
  throw new TypeError(`${what} must be a number of milliseconds or a text such as "90s" or "1h", got ${show(value)}`)
}

export function show(value) {
  try {
    const text = JSON.stringify(value) ?? String(value)
    return text.length > 80 ? `${text.slice(0, 77)}…` : text
  } catch {
    return String(value)
  }
}

/** Raised for a value that JSON cannot express; the worker raises its own error of this name. */
export class NotJSON extends Error {
  name = 'NotJSON'
  code = 'not_json'
}

function refuse(key, value) {
  if (!key.isWellFormed()) throw new NotJSON('a key has half of a surrogate pair, which UTF-8 cannot express')
  if (typeof value === 'string' ? value.isWellFormed() : typeof value === 'boolean') return value
  const where = key ? `the value of ${JSON.stringify(key)}` : 'the value'
  if (typeof value === 'number' && !Number.isFinite(value)) {
    throw new NotJSON(`${where} is ${value}, which is not a JSON number`)
  }
  if (typeof value === 'bigint') {
    if (value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER) return Number(value)
    throw new NotJSON(`${where} is ${value}n, too large for a JSON number; use String(…)`)
  }
  if (typeof value === 'string') throw new NotJSON(`${where} has half of a surrogate pair, which UTF-8 cannot express; use toWellFormed()`)
  if (typeof value === 'function' || typeof value === 'symbol') {
    throw new NotJSON(`${where} is a ${typeof value}, which has no JSON form`)
  }
  return value
}

/** Return JSON text. Raise NotJSON for what other languages would read differently. */
export function toJson(value) {
  try {
    return JSON.stringify(value, refuse)
  } catch (problem) {
    if (problem instanceof NotJSON) throw problem
    throw new NotJSON(String(problem?.message ?? problem).split('\n')[0])  // a cycle, or a toJSON that raises
  }
}

const MAX_TEXT_CHARS = 64_000

/** Return a text that fits into a frame and has a UTF-8 form. */
function shorten(text) {
  return text.slice(0, MAX_TEXT_CHARS).toWellFormed()
}

/** Return an exception as data. */
export function toError(problem) {
  if (typeof problem !== 'object' || problem === null) {
    return { name: 'Error', message: `the handler threw ${show(problem)}; throw an Error` }
  }
  const bases = []
  for (let proto = Object.getPrototypeOf(problem); proto && proto !== Object.prototype; proto = Object.getPrototypeOf(proto)) {
    const name = proto.constructor?.name
    if (name && name !== 'Error' && name !== problem.name) bases.push(name)
  }
  const after = problem.after ?? problem.retryAfter
  const code = problem.code ?? (problem.cause && typeof problem.cause === 'object' ? problem.cause.code : undefined)
  const message = String(problem.message ?? problem)
  return {
    name: String(problem.name || problem.constructor?.name || 'Error'),
    message: shorten(message),
    bases,
    code: code === undefined || code === null ? undefined : String(code),
    stack: typeof problem.stack === 'string' ? shorten(withoutHost(problem.stack.replace(message, () => shorten(message)))) : undefined,
    afterMs: after === undefined || after === null ? undefined : readAfter(after),
    retriable: typeof problem.retriable === 'boolean' ? problem.retriable : undefined,
    answer: problem.answer,
  }
}

function readAfter(after) {
  try {
    return toMs(after, 'after')
  } catch {
    return undefined
  }
}

const HOST = new URL('.', import.meta.url).href
const HOST_PATH = decodeURIComponent(new URL('.', import.meta.url).pathname)

/** Leave out the lines of this host and of Node itself. */
function withoutHost(stack) {
  const lines = stack.split('\n')
  return lines
    .filter((line) => !/^\s+at /.test(line) || !(line.includes(HOST) || line.includes(HOST_PATH) || line.includes('node:internal')))
    .join('\n')
}

/** Let `new Error(message, { code, retriable, retryAfter })` keep these options, as the specs write it. */
export function keepErrorOptions() {
  const Original = globalThis.Error
  const Keeping = new Proxy(Original, {
    construct(target, args, newTarget) {
      const made = Reflect.construct(target, args, newTarget)
      const options = args[1]
      if (typeof options === 'object' && options !== null) {
        for (const name of ['code', 'retriable', 'retryAfter']) {
          if (options[name] !== undefined && !(name in made)) {
            Object.defineProperty(made, name, { value: options[name], writable: true, configurable: true, enumerable: true })
          }
        }
      }
      return made
    },
  })
  Original.prototype.constructor = Keeping
  globalThis.Error = Keeping
}

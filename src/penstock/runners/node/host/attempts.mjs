// The attempts of one thread: the host's main thread, or a worker thread of it.

import { Attempt, makeContext } from './context.mjs'
import { configOf, exportsOf, handlerOf, load } from './modules.mjs'
import { NODE_OUTCOME, Permanent, Retry } from './penstock.mjs'
import { toError, toJson } from './values.mjs'

const attempts = new Map()
let write
let maxBytes

/** Send frames of at most `frameBytes` with this function, which gets lines of JSON. */
export function open(writeLine, frameBytes = 2 ** 20) {
  write = writeLine
  maxBytes = frameBytes
}

/** Send a frame. */
export function send(number, frame) {
  const line = toJson([number, frame])
  if (line.length > maxBytes / 4 && Buffer.byteLength(line) > maxBytes) {
    throw Object.assign(new Error(`a ${frame.type} frame of ${Buffer.byteLength(line)} bytes is larger than ${maxBytes / 2 ** 20} MB; store the data elsewhere and pass a reference`), { name: 'PayloadTooLarge' })
  }
  write(line, number, frame.type)
}

async function run(number, task) {
  const attempt = new Attempt((frame) => attempts.get(number) === attempt && send(number, frame))
  attempts.set(number, attempt)
  try {
    const exports = exportsOf(await load(task.handler.file))
    const handler = handlerOf(exports)
    if (typeof handler !== 'function') throw new TypeError(`${task.handler.file} has no handler: export default async function (input, ctx) {…}`)
    const config = configOf(exports)
    const input = await check(config.inputSchema, task.input ?? null, `the input of '${task.handler.name}'`)
    if (attempts.get(number) !== attempt) return  // it was cancelled meanwhile: its handler must not start
    const result = await handler(input, makeContext(attempt, task, input))
    end(number, attempt, { type: 'done', result: await settle(task, result ?? null, (data) => check(config.outputSchema, data, `the result of '${task.handler.name}'`)) })
  } catch (problem) {
    end(number, attempt, { type: 'error', error: toError(problem) })
  }
}

/** Return the result in the form that is stored: what the executor of a node returns may be more than data. */
async function settle(task, result, checked) {
  const kind = task.node && result !== null && typeof result === 'object' ? result[NODE_OUTCOME] : undefined
  if (kind === 'skip') return { $penstock: 'skip', reason: result.reason }
  if (kind === 'fail') throw toFailure(result)
  if (kind !== 'next') {
    if (task.node && result !== null && typeof result === 'object' && '$penstock' in result) throw new Permanent("an executor cannot return an object with the key '$penstock'; it is reserved")
    return checked(result)
  }
  const known = task.node.followers ?? []
  const wrong = result.nodes.find((id) => !known.includes(id))
  if (wrong !== undefined) throw new Permanent(`next names '${wrong}', which does not follow this node; nodes after it: ${known.join(', ') || 'none'}`)
  return { $penstock: 'next', nodes: result.nodes, data: await checked(result.data ?? null) }
}

function toFailure({ reason, retry }) {
  if (retry === false) return new Permanent(reason)
  if (retry !== true) return new Retry(reason, { after: retry })
  return Object.assign(new Error(reason), { name: 'NodeFailed', code: 'node_failed' })
}

/** Send how the handler ended, unless the worker has given the attempt up. */
function end(number, attempt, frame) {
  if (attempts.get(number) !== attempt) return
  try {
    send(number, frame)
  } catch (problem) {
    send(number, { type: 'error', error: toError(problem) })
  }
  attempt.end()
  attempts.delete(number)
}

/** Validate with a schema object such as zod's. The worker has checked a JSON schema already. */
async function check(schema, value, what) {
  const validate = schema?.['~standard']?.validate
  if (!validate) return value
  const found = await validate(value)
  if (!found.issues) return found.value
  const [first] = found.issues
  const place = (first.path ?? []).map((part) => part?.key ?? part).join('.')
  throw Object.assign(new Error(`${what} is invalid${place ? ` at ${place}` : ''}: ${first.message}`), { name: 'SchemaViolation', code: 'schema_violation' })
}

async function execute(number, { id, function: index, value }) {
  const attempt = attempts.get(number)
  if (!attempt) return
  await reply(number, 'executed', { id }, () => attempt.execute(index, value), () => attempts.get(number) === attempt)
}

/** Send what a function returns, or why it cannot be sent. */
async function reply(number, type, more, call, isWanted = () => true) {
  try {
    const value = (await call()) ?? null
    if (isWanted()) send(number, { type, ...more, value })
  } catch (problem) {
    if (isWanted()) send(number, { type, ...more, error: toError(problem) })
  }
}

/** Call a function of a config, such as subscriptions[0].when. A key is made of the input as the handler gets it. */
async function evaluate(number, { file, path, values }) {
  await reply(number, 'evaluated', {}, async () => {
    const config = configOf(exportsOf(await load(file)))
    if (path.length === 1) values[0] = await check(config.inputSchema, values[0], `the input for ${path[0]}`)
    let found = config
    for (const part of path) found = found[part]
    return found(...values)
  })
}

function giveUp(number, act) {
  const attempt = attempts.get(number)
  attempts.delete(number)
  if (attempt) act(attempt)
  send(number, { type: 'released' })
}

/** Do what a frame of the worker asks for. */
export function take(number, frame) {
  switch (frame.type) {
    case 'run': return void run(number, frame.task)
    case 'answer': return attempts.get(number)?.answer(frame.id, frame.value, frame.error)
    case 'execute': return void execute(number, frame)
    case 'suspend': return giveUp(number, (attempt) => attempt.end())
    case 'cancel': return giveUp(number, (attempt) => attempt.cancel(frame.reason))
    case 'evaluate': return void evaluate(number, frame)
    case 'ping': return send(number, { type: 'heartbeat', rssMb: process.memoryUsage.rss() / 2 ** 20 })
  }
}

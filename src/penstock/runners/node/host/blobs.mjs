// `ctx.blob`: the worker has the blob store, and gets and sends parts of blobs in base64.

import { show, toMs } from './values.mjs'

const PART_BYTES = 512 * 1024

function checkText(value, what) {
  if (typeof value !== 'string') throw new TypeError(`${what} must be a text, got ${show(value)}`)
  return value
}

/** Return bytes of a chunk without copying them. */
function toBytes(chunk) {
  if (typeof chunk === 'string') {
    if (!chunk.isWellFormed()) throw new TypeError('a chunk of a blob has half of a surrogate pair; use toWellFormed()')
    return Buffer.from(chunk)
  }
  if (ArrayBuffer.isView(chunk)) return Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
  if (chunk instanceof ArrayBuffer || chunk instanceof SharedArrayBuffer) return Buffer.from(chunk)
  throw new TypeError(`the chunks of a blob must be texts or bytes, got ${show(chunk)}`)
}

async function* split(data) {
  const source = data instanceof Blob ? data.stream() : data
  const isWhole = typeof source === 'string' || ArrayBuffer.isView(source) || source instanceof ArrayBuffer
  if (!isWhole && !source?.[Symbol.asyncIterator] && !source?.[Symbol.iterator]) {
    throw new TypeError(`a blob is a text, bytes, a Blob, a stream or an iterable of chunks, got ${show(data)}`)
  }
  for await (const chunk of isWhole ? [source] : source) {
    const bytes = toBytes(chunk)
    for (let start = 0; start < bytes.length; start += PART_BYTES) yield bytes.subarray(start, start + PART_BYTES)
  }
}

/** The blobs of one attempt. */
export class Blobs {
  #run

  constructor(run) {
    this.#run = run
  }

  /** Put a blob at once, and return it. What the key held before is replaced. */
  async put(key, data, options = {}) {
    const parts = split(data)
    const next = async () => {
      const { value, done } = await parts.next()
      return done ? null : value.toString('base64')
    }
    const { contentType } = options
    if (contentType !== undefined) checkText(contentType, 'contentType')
    return this.#run.call({ type: 'blob.put', key: checkText(key, 'a key'), function: this.#run.number(next), contentType })
  }

  /** Return a blob as bytes. */
  async get(key) {
    const parts = []
    for await (const part of this.stream(key)) parts.push(part)
    return Buffer.concat(parts)
  }

  /** Yield a blob in parts. */
  async *stream(key) {
    let found = await this.#run.call({ type: 'blob.read', key: checkText(key, 'a key') })
    try {
      while (found.part !== null) {
        yield Buffer.from(found.part, 'base64')
        found = await this.#run.call({ type: 'blob.read', key, read: found.read })
      }
    } finally {
      if (found.part !== null && !this.#run.isOver) this.#run.notify({ type: 'blob.close', read: found.read })
    }
  }

  /** Return size, type and hash of a blob. */
  info(key) {
    return this.#run.call({ type: 'blob.info', key: checkText(key, 'a key') })
  }

  /** Delete a blob; return false if there was none. */
  delete(key) {
    return this.#run.call({ type: 'blob.delete', key: checkText(key, 'a key') })
  }

  /** Return a URL that works without a token until it expires. */
  async url(key, options = {}) {
    const { expires, method = 'GET' } = options
    const request = { type: 'blob.url', key: checkText(key, 'a key'), method: checkText(method, 'method') }
    return this.#run.call({ ...request, expiresMs: toMs(expires, 'expires') })
  }
}

// The REST client: one typed method for each operation of the HTTP API.

import { ApiError, toApiError } from './errors.js'
import { OPERATIONS, type Operations } from './operations.js'

export interface ClientOptions {
  /** Where the server is, such as `https://jobs.example.com`. By default the page's own origin. */
  url?: string
  /** A token of `penstock tokens add`, or a function that returns one for each request. */
  token?: string | (() => string | Promise<string>)
  /** Headers to add to each request. */
  headers?: Record<string, string>
  /** Instead of the global `fetch`. */
  fetch?: typeof fetch
}

type Name = keyof Operations
type Signal = { signal?: AbortSignal }
type QueryPart<Query> = {} extends Query ? { query?: Query } : { query: Query }

/** What an operation takes: the parts of its path by name, `query`, `body` and `signal`. */
export type Arguments<K extends Name> =
  Operations[K]['path'] & QueryPart<Operations[K]['query']> & Operations[K]['body'] & Signal

export type Answer<K extends Name> = Operations[K]['answer']

type Method<K extends Name> = {} extends Arguments<K>
  ? (options?: Arguments<K>) => Promise<Answer<K>>
  : (options: Arguments<K>) => Promise<Answer<K>>

/** The operations of the API, by name: `await client.getRun({ id })`. */
export type Client = { readonly [K in Name]: Method<K> } & { readonly connection: Connection }

/** Return a client of a server. Errors are `ApiError`, with the code that the server sent. */
export function createClient(options: ClientOptions = {}): Client {
  const connection = new Connection(options)
  const client: Record<string, unknown> = { connection }
  for (const [name, [method, path]] of Object.entries(OPERATIONS)) {
    client[name] = (given: Record<string, any> = {}) => connection.request(method, path, given)
  }
  return client as unknown as Client
}

/** Where requests go, and who makes them. */
export class Connection {
  readonly url: string
  readonly #options: ClientOptions

  constructor(options: ClientOptions = {}) {
    this.#options = options
    this.url = (options.url ?? globalThis.location?.origin ?? 'http://127.0.0.1:8765').replace(/\/+$/, '')
  }

  get hasToken(): boolean {
    return this.#options.token !== undefined
  }

  /** Send a request and return its decoded answer; raise ApiError for any status but 2xx. */
  async request(method: string, path: string, given: Record<string, any> = {}): Promise<any> {
    const { query, body, signal, ...names } = given
    const isRaw = body instanceof Blob || body instanceof Uint8Array
    const init: RequestInit = { method, signal: signal ?? null }
    if (body !== undefined) init.body = isRaw ? (body as BodyInit) : JSON.stringify(body)
    const headers: Record<string, string> = body === undefined || isRaw ? {} : { 'content-type': 'application/json' }
    const response = await this.fetch(fillPath(path, names) + toQuery(query), { ...init, headers })
    const type = response.headers.get('content-type') ?? ''
    return type.includes('json') && !type.includes('ndjson') ? response.json() : response.text()
  }

  /** Fetch a path with the token; raise ApiError for any status but 2xx. */
  async fetch(path: string, init: Omit<RequestInit, 'headers'> & { headers?: Record<string, string> } = {}): Promise<Response> {
    const { token, fetch = globalThis.fetch } = this.#options
    const headers: Record<string, string> = { accept: 'application/json', ...this.#options.headers, ...init.headers }
    if (token !== undefined) headers.authorization = `Bearer ${typeof token === 'function' ? await token() : token}`
    let response: Response
    try {
      response = await fetch(this.url + path, { ...init, headers })
    } catch (problem) {
      if (init.signal?.aborted) throw problem
      throw new ApiError(0, 'unreachable', `${this.url} does not answer; check the address and that \`penstock serve\` runs`, { cause: problem })
    }
    if (!response.ok) throw await toApiError(response)
    return response
  }
}

function fillPath(path: string, names: Record<string, unknown>): string {
  return path.replace(/{(\w+)}/g, (_whole, name: string) => {
    const value = names[name]
    if (typeof value !== 'string' || value === '') {
      throw new TypeError(`${name} must be a text that is not empty, got ${JSON.stringify(value)}`)
    }
    return encodeURIComponent(value)
  })
}

/** Return the query string; lists repeat their name, null and undefined are left out. */
export function toQuery(query: Record<string, unknown> = {}): string {
  const found = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) found.append(name, String(one))
    }
  }
  const text = found.toString()
  return text && `?${text}`
}

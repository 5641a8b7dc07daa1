// Penstock for TypeScript: types of worker files, the reducers, the REST client and live streams.

export { isReserved, RESERVED_PREFIXES } from './events.js'
export type { EventRecord } from './events.js'
export * from './reducers/index.js'
export { createClient } from './rest/client.js'
export type { Answer, Arguments, Client, ClientOptions } from './rest/client.js'
export { ApiError } from './rest/errors.js'
export type * as api from './rest/operations.js'
export { createEventStream, createQueueStream, LiveStream } from './streams/index.js'
export type * from './streams/index.js'
export * from './worker/index.js'

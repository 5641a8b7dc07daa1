// What a worker file calls: the functions return what they get, with its types.

import type { QueueConfig } from './config.js'
import type { WorkerHandler } from './context.js'

/** Return the config of a worker file as it is; it gives editors the types. */
export const defineQueueConfig = <Input = any>(config: QueueConfig<Input>): QueueConfig<Input> => config

export const defineFunctionConfig = defineQueueConfig

export type DefinedFunction<Input, Result> = WorkerHandler<Input, Result> & { config: QueueConfig<Input> }

/** Return a handler with its config, to be the default export: `export default defineFunction({ queue }, handle)`. */
export function defineFunction<Input = any, Result = unknown>(
  config: QueueConfig<Input> & { handler?: WorkerHandler<Input, Result> } | WorkerHandler<Input, Result>,
  handle?: WorkerHandler<Input, Result>,
): DefinedFunction<Input, Result> | WorkerHandler<Input, Result> {
  if (typeof config === 'function') return config
  const { handler, ...rest } = config
  const fn = handle ?? handler
  if (typeof fn !== 'function') {
    throw new TypeError('defineFunction requires a function: defineFunction({ queue: "mail" }, async (input, ctx) => …)')
  }
  return Object.assign(fn, { config: rest })
}

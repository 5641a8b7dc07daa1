/** One immutable record of a stream. `id` is `<ms>-<seq>`: the cursor everywhere, gapless in its stream. */
export interface EventRecord<Data = any> {
  id: string
  ts: string
  kind: string
  subject: string
  flow?: string | null
  step?: string | null
  trigger?: string | null
  correlationId?: string | null
  data?: Data
  meta?: Record<string, any> | null
}

/** Prefixes of the kinds that only the engine emits. */
export const RESERVED_PREFIXES = [
  'flow.', 'step.', 'call.', 'job.', 'trigger.', 'schema.', 'buffer.', 'schedule.', 'state.', 'audit.',
  'webhook.', 'node.', 'dag.', 'entity.',
] as const

/** Return whether the engine emits events of this kind. */
export const isReserved = (kind: string): boolean => RESERVED_PREFIXES.some((prefix) => kind.startsWith(prefix))

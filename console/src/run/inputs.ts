// What a step received. The start of a step records its input only if no event of the stream has it already.

import type { Attempt } from './fold'

export interface Subscription { eventKind: string; when?: string }

/** Return the input of an attempt; undefined if the stream does not tell which of several events it was. */
export function inputOf(attempt: Attempt | undefined, subscriptions: Subscription[] | undefined): unknown {
  if (!attempt) return undefined
  if ('input' in attempt) return attempt.input
  const kinds = subscriptions?.length ? new Set(subscriptions.map((one) => one.eventKind)) : undefined
  const found = (attempt.causes ?? []).filter((event) => !kinds || kinds.has(event.kind))
  if (found.length === 1) return found[0]!.data ?? null
  if (!kinds || subscriptions!.some((one) => one.when)) return undefined
  return found[attempt.nth] ? found[attempt.nth]!.data ?? null : undefined
}

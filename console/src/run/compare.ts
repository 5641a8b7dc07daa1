// Where two runs part.

import type { EventRecord } from 'penstock'
import { differences } from './diff'

export interface Difference {
  at: number
  a: EventRecord | undefined
  b: EventRecord | undefined
  paths: string[]
}

const OWN = new Set(['duration', 'nextRetryAt', 'startedAt', 'resumeAt', 'until', 'jobId', 'deadLetter'])

/** Return the first event that differs, by kind, step or data. Times and ids of a run are its own. */
export function firstDifference(a: EventRecord[], b: EventRecord[]): Difference | undefined {
  for (let at = 0; at < Math.max(a.length, b.length); at++) {
    const [left, right] = [a[at], b[at]]
    if (!left || !right || left.kind !== right.kind || left.step !== right.step) return { at, a: left, b: right, paths: [] }
    const paths = differences(left.data, right.data).filter((path) => !OWN.has(/[\w-]+$/.exec(path)?.[0] ?? ''))
    if (paths.length) return { at, a: left, b: right, paths }
  }
  return undefined
}

// From time to place: by the clock, or with idle time folded.

import type { Row } from './fold'

export interface Scale {
  /** 0 to 1. */
  place: (at: number) => number
  folds: { at: number; ms: number }[]
  from: number
  to: number
}

const BUSY = new Set(['queue', 'run', 'commit', 'limit'])
const FOLD = 0.03

export function wallScale(from: number, to: number): Scale {
  const span = Math.max(to - from, 1)
  return { place: (at) => clamp((at - from) / span), folds: [], from, to }
}

/** Return a scale on which stretches in which nothing runs have the same small width. */
export function foldedScale(rows: Iterable<Row>, from: number, to: number): Scale {
  const busy = merge([...rows].flatMap((row) => row.segments.filter((one) => BUSY.has(one.kind)).map((one) => [one.from, one.to ?? to] as const)))
  const total = busy.reduce((sum, [start, end]) => sum + (end - start), 0)
  const least = Math.max(1000, total * 0.15)
  const gaps: [number, number][] = []
  let end = from
  for (const [start, stop] of [...busy, [to, to] as const]) {
    if (start - end > least) gaps.push([end, start])
    end = Math.max(end, stop)
  }
  if (!gaps.length) return wallScale(from, to)
  const idle = gaps.reduce((sum, [a, b]) => sum + (b - a), 0)
  const unit = (1 - FOLD * gaps.length) / Math.max(to - from - idle, 1)
  const place = (at: number): number => {
    let found = 0
    let last = from
    for (const [a, b] of gaps) {
      if (at <= a) return clamp(found + (at - last) * unit)
      found += (a - last) * unit
      if (at < b) return clamp(found + ((at - a) / (b - a)) * FOLD)
      found += FOLD
      last = b
    }
    return clamp(found + (at - last) * unit)
  }
  return { place, folds: gaps.map(([a, b]) => ({ at: place((a + b) / 2), ms: b - a })), from, to }
}

const clamp = (value: number): number => Math.min(1, Math.max(0, value))

function merge(parts: (readonly [number, number])[]): [number, number][] {
  const found: [number, number][] = []
  for (const [from, to] of [...parts].sort((a, b) => a[0] - b[0])) {
    const last = found.at(-1)
    if (last && from <= last[1]) last[1] = Math.max(last[1], to)
    else found.push([from, to])
  }
  return found
}

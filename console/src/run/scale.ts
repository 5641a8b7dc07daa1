// From time to place: by the clock, or with idle time folded.

import type { Row } from './fold'

export interface Scale {
  /** 0 to 1. */
  place: (at: number) => number
  folds: { at: number; ms: number; from: number; to: number }[]
  from: number
  to: number
}

const BUSY = new Set(['queue', 'run', 'commit', 'limit'])
const FOLD = 0.08
const MOST_FOLDED = 0.4
/** Steps between the ticks of an axis, in milliseconds. */
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000].map((s) => s * 1000)]
const TICKS = 6
const APART = 0.09

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
  const fold = Math.min(FOLD, MOST_FOLDED / gaps.length)
  const unit = (1 - fold * gaps.length) / Math.max(to - from - idle, 1)
  const place = (at: number): number => {
    let found = 0
    let last = from
    for (const [a, b] of gaps) {
      if (at <= a) return clamp(found + (at - last) * unit)
      found += (a - last) * unit
      if (at < b) return clamp(found + ((at - a) / (b - a)) * fold)
      found += fold
      last = b
    }
    return clamp(found + (at - last) * unit)
  }
  return { place, folds: gaps.map(([a, b]) => ({ at: place((a + b) / 2), ms: b - a, from: a, to: b })), from, to }
}

/** Return the ticks of an axis: the time since the start, at round numbers, apart from each other and from folds. */
export function ticks(scale: Scale): { at: number; ms: number }[] {
  const span = scale.to - scale.from
  if (!(span > 0)) return []
  const drawn = span - scale.folds.reduce((sum, one) => sum + one.ms, 0)
  const step = STEPS.find((one) => drawn / one <= TICKS) ?? STEPS.at(-1)!
  const found: { at: number; ms: number }[] = []
  const add = (ms: number): void => {
    const time = scale.from + ms
    const at = scale.place(time)
    if (scale.folds.some((one) => (time > one.from && time < one.to) || Math.abs(one.at - at) < APART)) return
    if (at <= 1 - APART / 2 && at - (found.at(-1)?.at ?? -1) >= APART) found.push({ at, ms })
  }
  // A folded stretch may be years long: count on from the end of each.
  let start = 0
  for (const { from, to } of [...scale.folds, { from: scale.to, to: scale.to }]) {
    for (let ms = Math.ceil(start / step) * step; ms <= from - scale.from; ms += step) add(ms)
    start = to - scale.from
  }
  return found
}

const clamp = (value: number): number => Math.min(1, Math.max(0, value))

/** Return stretches of time without the overlaps. */
export function merge(parts: (readonly [number, number])[]): [number, number][] {
  const found: [number, number][] = []
  for (const [from, to] of [...parts].sort((a, b) => a[0] - b[0])) {
    const last = found.at(-1)
    if (last && from <= last[1]) last[1] = Math.max(last[1], to)
    else found.push([from, to])
  }
  return found
}

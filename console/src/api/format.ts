// Times, durations and values as people read them.

import { ref } from 'vue'

/** The present moment, once a second, for ages. */
export const now = ref(Date.now())
if (typeof document !== 'undefined') setInterval(() => document.hidden || (now.value = Date.now()), 1000)

const UNITS: [number, string][] = [[86_400_000, 'd'], [3_600_000, 'h'], [60_000, 'm'], [1000, 's']]

/** Return a duration with its two largest units: `2m 3s`. */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return '–'
  if (ms < 0) return '0 ms'
  if (ms < 1000) return `${Math.round(ms)} ms`
  if (ms < 10_000) return `${(ms / 1000).toFixed(2)} s`
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`
  const found: string[] = []
  let rest = Math.round(ms / 1000) * 1000
  for (const [size, unit] of UNITS) {
    const count = Math.floor(rest / size)
    rest -= count * size
    if (count) found.push(`${count}${unit}`)
    if (found.length === 2) break
  }
  return found.join(' ')
}

export const timeOf = (text: string | null | undefined): number => (text ? Date.parse(text) : NaN)

/** Return how long ago a moment was, or how soon it is. */
export function age(text: string | null | undefined, at = now.value): string {
  if (!text) return '–'
  const ms = at - Date.parse(text)
  if (Math.abs(ms) < 1000) return 'now'
  const [size, unit] = UNITS.find(([one]) => Math.abs(ms) >= one) ?? [1000, 's']
  const count = Math.floor(Math.abs(ms) / size)
  return ms > 0 ? `${count}${unit} ago` : `in ${count}${unit}`
}

// A formatter is slow to make and quick to use: lists format thousands of times.
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' })
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium', hour12: false } as Intl.DateTimeFormatOptions)

export const clock = (text: string | null | undefined): string => (text ? `${CLOCK.format(new Date(text))}.${String(new Date(text).getMilliseconds()).padStart(3, '0')}` : '–')

export const moment = (text: string | null | undefined): string => (text ? MOMENT.format(new Date(text)) : '–')

/** Return a sentence of the server without the command it ends with, and with a capital. */
export function withoutCommand(text: string): string {
  const found = text.replace(/\s*[(;][^(;`]*`[^`]*`\)?\.?$/, '')
  return found.charAt(0).toUpperCase() + found.slice(1)
}

/** Return a text with its times as the clocks here show them. */
export const localTimes = (text: string): string => text.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, (found) => moment(found))

/** Return a time as the clocks of a zone show it. */
export const momentIn = (text: string, zone: string): string =>
  new Date(text).toLocaleString(undefined, { weekday: 'short', year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', hour12: false, timeZone: zone, timeZoneName: 'short' })

export const count = (value: number | null | undefined): string => (value ?? 0).toLocaleString('en')

export const plural = (value: number, one: string, many = `${one}s`): string => `${count(value)} ${value === 1 ? one : many}`

/** Return a value on one line, cut to a length. */
export function brief(value: unknown, length = 120): string {
  const text = typeof value === 'string' ? value : JSON.stringify(value) ?? ''
  return text.length > length ? `${text.slice(0, length)}…` : text
}

/** Return a hue for an id: the same id has the same tint everywhere. */
export function hue(id: string): number {
  let hash = 0
  for (let at = 0; at < id.length; at++) hash = (hash * 31 + id.charCodeAt(at)) | 0
  return Math.abs(hash) % 360
}

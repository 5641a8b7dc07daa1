// A schedule in words, and notes about daylight saving.

import { duration } from '../api/format'

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday']

const MONTHS = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October', 'November', 'December']
const ordinal = (number: number): string => `${number}${{ 2: 'nd', 3: 'rd' }[number] ?? 'th'}`

/** Return when a schedule fires, in words where the rule is simple. */
export function inWords(one: { everyMs?: number | null; cron?: string | null; at?: string | null; tz?: string }): string {
  if (one.everyMs) return `every ${duration(one.everyMs).replace(/\.0+ /, ' ')}`
  if (one.at) return `once at ${one.at}`
  if (!one.cron) return 'never'
  const [minute, hour, day, month, weekday, ...rest] = one.cron.trim().split(/\s+/)
  const zone = one.tz && one.tz !== 'UTC' ? ` in ${one.tz}` : ' UTC'
  const simple = !rest.length && day === '*' && month === '*'
  const number = /^\d+$/
  if (simple && weekday === '*' && minute === '*' && hour === '*') return 'every minute'
  const step = /^\*\/(\d+)$/.exec(minute ?? '')
  if (simple && weekday === '*' && step && hour === '*') return `every ${step[1]} minutes`
  if (simple && weekday === '*' && number.test(minute!) && hour === '*') return `every hour at minute ${minute}`
  if (simple && number.test(minute!) && number.test(hour ?? '')) {
    const time = `${hour!.padStart(2, '0')}:${minute!.padStart(2, '0')}`
    if (weekday === '*') return `every day at ${time}${zone}`
    if (weekday === '1-5') return `Monday to Friday at ${time}${zone}`
    if (number.test(weekday ?? '')) return `every ${DAYS[Number(weekday) % 7]} at ${time}${zone}`
  }
  if (!rest.length && number.test(minute!) && number.test(hour ?? '')) {
    const time = `at ${hour!.padStart(2, '0')}:${minute!.padStart(2, '0')}${zone}`
    const days = /^\d(,\d)+$/.test(weekday ?? '') ? weekday!.split(',').map((one) => DAYS[Number(one) % 7]) : undefined
    if (day === '*' && month === '*' && days) return `every ${days.slice(0, -1).join(', ')} and ${days.at(-1)} ${time}`
    const months = /^\*\/(\d+)$/.exec(month ?? '')
    if (number.test(day!) && weekday === '*') {
      if (month === '*') return `on day ${day} of every month ${time}`
      if (months) return `on day ${day} of every ${ordinal(Number(months[1]))} month ${time}`
      if (number.test(month!) && MONTHS[Number(month) - 1]) return `every year on ${day} ${MONTHS[Number(month) - 1]} ${time}`
    }
  }
  return `cron ${one.cron}${zone}`
}

function offset(text: string, tz: string): number {
  const parts = Object.fromEntries(new Intl.DateTimeFormat('en-US', { timeZone: tz, hourCycle: 'h23', year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric', second: 'numeric' }).formatToParts(new Date(text)).map((part) => [part.type, Number(part.value)]))
  return Date.UTC(parts.year!, parts.month! - 1, parts.day!, parts.hour!, parts.minute!, parts.second!) - Math.floor(Date.parse(text) / 1000) * 1000
}

/** Return a note if the clocks change between two slots. */
export function dstNote(slot: string, before: string | undefined, tz = 'UTC'): string {
  if (!before || tz === 'UTC') return ''
  const change = offset(slot, tz) - offset(before, tz)
  return change === 0 ? '' : `clocks go ${change > 0 ? 'forward' : 'back'} ${duration(Math.abs(change))} before this slot`
}

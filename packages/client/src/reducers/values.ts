// Values of events: what is of an unexpected type, as in a damaged event, counts as missing.

export type Values = Record<string, any>

/** An object without a prototype: names such as "constructor" are plain keys. */
export const dict = <T>(): Record<string, T> => Object.create(null)

export const valuesOf = (value: unknown): Values =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Values) : {}

export const get = (values: Values, key: string): any => (Object.hasOwn(values, key) ? values[key] : undefined)

export function text(values: Values, key: string): string | undefined {
  const found = get(values, key)
  return typeof found === 'string' ? found : undefined
}

export function integer(values: Values, key: string): number | undefined {
  const found = get(values, key)
  return Number.isInteger(found) ? found : undefined
}

export function names(values: Values, key: string): string[] {
  const found = get(values, key)
  return Array.isArray(found) ? found.filter((name) => typeof name === 'string') : []
}

/** Return the members that are not null or missing. */
export function present<T extends Values>(values: T): T {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined && value !== null)) as T
}

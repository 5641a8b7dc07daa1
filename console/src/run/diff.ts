// Where two JSON values differ.

/** Return the paths of the values that differ, such as `$.lines[0].sku`; at most `limit`. */
export function differences(before: unknown, after: unknown, limit = 500): string[] {
  const found: string[] = []
  compare(before, after, '$', found, limit)
  return found
}

const isContainer = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null

function compare(before: unknown, after: unknown, path: string, found: string[], limit: number): void {
  if (found.length >= limit || Object.is(before, after)) return
  if (!isContainer(before) || !isContainer(after) || Array.isArray(before) !== Array.isArray(after)) return void found.push(path)
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const below = Array.isArray(after) ? `${path}[${key}]` : /^[A-Za-z_]\w*$/.test(key) ? `${path}.${key}` : `${path}[${JSON.stringify(key)}]`
    if (!Object.hasOwn(before, key) || !Object.hasOwn(after, key)) found.push(below)
    else compare(before[key], after[key], below, found, limit)
  }
}

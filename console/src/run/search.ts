// The typed search: `flow:shop status:failed step:charge data.orderId:7 since:1h timeout`.

export interface RunFilter {
  flow?: string
  status?: string
  step?: string
  error?: string
  since?: string
  until?: string
  parent?: string
  correlationId?: string
  tags: Record<string, string>
  attributes: Record<string, string>
  where?: unknown
}

export const STATUSES = ['running', 'waiting', 'paused', 'compensating', 'completed', 'failed', 'compensated', 'cancelled']
export const QUALIFIERS = [
  { key: 'flow', text: 'name of the flow' },
  { key: 'status', text: STATUSES.join(', ') },
  { key: 'step', text: 'a step that failed' },
  { key: 'error', text: 'words of the error' },
  { key: 'since', text: '1h, 2d or a time' },
  { key: 'until', text: '1h, 2d or a time' },
  { key: 'data.', text: 'a value of the input, data.orderId:7' },
  { key: 'tag.', text: 'a tag, tag.team:ops' },
  { key: 'attribute.', text: 'an attribute of the flow' },
  { key: 'correlation', text: 'correlation id' },
  { key: 'parent', text: 'the run that started them' },
]
const WORD = /(?:[^\s"]+|"(?:[^"\\]|\\.)*")+/g

/** Read a search. Words without a qualifier are words of the error. */
export function parseSearch(text: string): { filter: RunFilter; problems: string[] } {
  const filter: RunFilter = { tags: {}, attributes: {} }
  const problems: string[] = []
  const words: string[] = []
  for (const word of text.match(WORD) ?? []) {
    const colon = word.indexOf(':')
    if (colon < 1) words.push(unquote(word))
    else apply(filter, problems, word.slice(0, colon), unquote(word.slice(colon + 1)))
  }
  if (words.length) filter.error = [filter.error, ...words].filter(Boolean).join(' ')
  return { filter, problems }
}

function apply(filter: RunFilter, problems: string[], key: string, value: string): void {
  if (value === '') return void problems.push(`${key}: has no value yet`)
  if (key.startsWith('data.')) return void (filter.where = nest(filter.where ?? {}, key.slice(5).split('.'), literal(value)))
  if (key.startsWith('tag.')) return void (filter.tags[key.slice(4)] = value)
  if (key.startsWith('attribute.')) return void (filter.attributes[key.slice(10)] = value)
  if (key === 'correlation') return void (filter.correlationId = value)
  if (key === 'status' && !STATUSES.includes(value)) return void problems.push(`status:${value} is not one of ${STATUSES.join(', ')}`)
  if (['flow', 'status', 'step', 'error', 'since', 'until', 'parent'].includes(key)) return void ((filter as any)[key] = value)
  problems.push(`${key}: is no qualifier; there are ${QUALIFIERS.map((one) => one.key).join(', ')}`)
}

const unquote = (text: string): string => text.replace(/"((?:[^"\\]|\\.)*)"/g, (_whole, inner: string) => inner.replace(/\\(.)/g, '$1'))

function literal(text: string): unknown {
  if (text === 'true' || text === 'false') return text === 'true'
  if (text === 'null') return null
  return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text
}

function nest(where: any, [key, ...rest]: string[], value: unknown): unknown {
  return { ...where, [key!]: rest.length ? nest(where[key!] ?? {}, rest, value) : value }
}

/** Return the query of `GET /api/_run` for a filter. */
export function toQuery({ tags, attributes, where, ...plain }: RunFilter): Record<string, unknown> {
  const pairs = (values: Record<string, string>) => Object.entries(values).map(([name, value]) => `${name}=${value}`)
  return { ...plain, tag: pairs(tags), attribute: pairs(attributes), ...(where === undefined ? {} : { where: JSON.stringify(where) }) }
}

/** Return the body of a bulk action for a filter. */
export function toBody({ tags, attributes, ...rest }: RunFilter): Record<string, unknown> {
  return { ...rest, ...(Object.keys(tags).length ? { tags } : {}), ...(Object.keys(attributes).length ? { attributes } : {}) }
}

/** Return completions for the word before the cursor. */
export function complete(text: string, flows: string[], steps: string[]): { insert: string; text: string }[] {
  const word = /\S*$/.exec(text)![0]
  const colon = word.indexOf(':')
  if (colon < 0) return QUALIFIERS.filter((one) => one.key.startsWith(word)).map((one) => ({ insert: one.key.endsWith('.') ? one.key : `${one.key}:`, text: one.text }))
  const [key, start] = [word.slice(0, colon), word.slice(colon + 1)]
  const values = { flow: flows, status: STATUSES, step: steps, since: ['15m', '1h', '24h', '7d'], until: ['1h', '24h'] }[key] ?? []
  return values.filter((one) => one.startsWith(start) && one !== start).map((one) => ({ insert: `${key}:${/\s/.test(one) ? JSON.stringify(one) : one} `, text: '' }))
}

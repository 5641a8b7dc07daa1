// What worker files define, as data: functions become markers that name them.

import { pathToFileURL } from 'node:url'
import { createRequire } from 'node:module'

import { configOf, exportsOf, handlerOf, load, sourcesOf } from './modules.mjs'
import { toError } from './values.mjs'

/** Describe one file. A file that cannot be imported is described by its error. */
export async function describe(file) {
  try {
    const exports = exportsOf(await load(file))
    const config = configOf(exports)
    if (typeof config !== 'object' || config === null) throw new TypeError(`config must be an object, got ${typeof config}`)
    const handler = handlerOf(exports)
    return {
      file,
      sources: sourcesOf(file),
      queue: exports.queue ?? null,
      config: await plain(config, [], file),
      hasConfig: exports.config !== undefined || exports.default?.config !== undefined,
      hasHandler: typeof handler === 'function',
      name: handler?.name ?? '',
    }
  } catch (problem) {
    const error = toError(problem)
    const where = new RegExp(`${file.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}:(\\d+)`).exec(`${error.message}\n${error.stack ?? ''}`)
    return { file, sources: sourcesOf(file), error: { name: error.name, message: error.message, line: where ? Number(where[1]) : 0 } }
  }
}

async function plain(value, path, file) {
  if (typeof value === 'function') return path.at(-1) === 'handler' ? undefined : { $function: path, parameters: value.length }
  if (value instanceof Date) return value.toISOString()
  if (typeof value !== 'object' || value === null) return typeof value === 'bigint' ? Number(value) : value
  if (value['~standard'] || typeof value.safeParse === 'function') return { $schema_object: await toJsonSchema(value, file, path.at(-1)) }
  if (Array.isArray(value)) return Promise.all(value.map((item, index) => plain(item, [...path, index], file)))
  const entries = await Promise.all(Object.entries(value).map(async ([key, item]) => [key, await plain(item, [...path, key], file)]))
  return Object.fromEntries(entries.filter(([key, item]) => item !== undefined && !(path.length === 0 && key === 'handler')))
}

/** `z.coerce` takes values of every type: only zod itself can check them. */
function allowCoercion({ zodSchema, jsonSchema }) {
  if (zodSchema._zod?.def?.coerce) for (const key of Object.keys(jsonSchema)) if (key !== 'default') delete jsonSchema[key]
}

/** Return a schema object as JSON schema, if its library offers that; the host validates inputs and results with the object itself. */
async function toJsonSchema(schema, file, name) {
  const isChecked = name === 'inputSchema' || name === 'outputSchema'
  const override = (part) => {
    allowCoercion(part)
    dropLookaround(part.jsonSchema, isChecked)
  }
  try {
    const zod = await import(pathToFileURL(createRequire(file).resolve('zod')).href)
    const convert = zod.toJSONSchema ?? zod.z?.toJSONSchema
    return convert ? convert(schema, { io: 'input', unrepresentable: 'any', override }) : null
  } catch {
    return null
  }
}

/** Drop the pattern of a format such as zod's of an email, and every one that the host checks: patterns that look around take too long. */
function dropLookaround(schema, isChecked) {
  if ((isChecked || schema.format) && /\(\?<?[=!]|\\[1-9k]/.test(schema.pattern ?? '')) delete schema.pattern
}

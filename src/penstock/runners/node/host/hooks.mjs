// Module hooks: find 'penstock', files without an extension and tsconfig paths; strip types. They run on a thread of their own.

import { existsSync, readFileSync, statSync } from 'node:fs'
import module from 'node:module'
import path from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import vm from 'node:vm'

const OURS = new Set(['penstock', '#imports', 'nuxt-queue', 'nuxt-queue/runtime'])
const EXTENSIONS = ['.ts', '.mts', '.js', '.mjs', '.cjs', '.json']
const COMPILED = { '.js': '.ts', '.mjs': '.mts', '.cjs': '.cts' }
const MISSING = new Set(['ERR_MODULE_NOT_FOUND', 'ERR_UNSUPPORTED_DIR_IMPORT', 'MODULE_NOT_FOUND'])
const ESM = /^\s*(?:import\b(?!\s*\()|export\b)/m

let options = {}

export function initialize(data) {
  options = data
}

export async function resolve(specifier, context, next) {
  if (OURS.has(specifier)) {
    if (specifier === '#imports' || specifier === 'penstock') {
      try {
        return await next(specifier, context)
      } catch {}  // the project defines no such import, or has not installed the npm package
    }
    return { url: options.api, format: 'module', shortCircuit: true }
  }
  const found = await find(specifier, context, next)
  if (found.url.startsWith('file:') && context.parentURL && !found.url.includes('/node_modules/')) {
    options.port?.postMessage([context.parentURL, found.url])
  }
  return found
}

async function find(specifier, context, next) {
  for (const file of pathsOf(specifier, context.parentURL)) {
    const found = asFile(file)
    if (found) return next(pathToFileURL(found).href, context)
  }
  try {
    return await next(specifier, context)
  } catch (problem) {
    const isPath = /^(?:\.{0,2}\/|file:)/.test(specifier)
    if (!isPath || !MISSING.has(problem.code) || !context.parentURL?.startsWith('file:')) throw problem
    const found = asFile(fileURLToPath(new URL(specifier, context.parentURL)))
    if (!found) throw problem
    return next(pathToFileURL(found).href, context)
  }
}

/** Return the file that a path without its extension, with that of its compiled form, or of a folder stands for. */
function asFile(base) {
  const { ext } = path.parse(base)
  const candidates = [base, ...EXTENSIONS.map((one) => base + one), ...EXTENSIONS.map((one) => path.join(base, `index${one}`))]
  if (COMPILED[ext]) candidates.push(base.slice(0, -ext.length) + COMPILED[ext])
  return candidates.find((file) => existsSync(file) && statSync(file).isFile())
}

const configs = new Map()

/** Return the files that the `paths` of the nearest tsconfig.json name for a specifier. */
function pathsOf(specifier, parent) {
  if (!parent?.startsWith('file:') || parent.includes('/node_modules/') || /^(?:\.|\/|node:|file:)/.test(specifier)) return []
  const config = nearestConfig(path.dirname(fileURLToPath(parent)))
  for (const [pattern, targets] of config?.patterns ?? []) {
    const star = pattern.indexOf('*')
    if (star < 0) {
      if (pattern === specifier) return targets
      continue
    }
    const [head, tail] = [pattern.slice(0, star), pattern.slice(star + 1)]
    if (specifier.length >= head.length + tail.length && specifier.startsWith(head) && specifier.endsWith(tail)) {
      const middle = specifier.slice(head.length, specifier.length - tail.length)
      return targets.map((target) => target.replace('*', () => middle))
    }
  }
  return config?.baseUrl ? [path.join(config.baseUrl, specifier)] : []
}

function nearestConfig(folder) {
  if (configs.has(folder)) return configs.get(folder)
  const file = path.join(folder, 'tsconfig.json')
  const parent = path.dirname(folder)
  const found = existsSync(file) ? readConfig(file) : parent === folder ? null : nearestConfig(parent)
  configs.set(folder, found)
  return found
}

function readConfig(file, depth = 0) {
  const folder = path.dirname(file)
  const text = readFileSync(file, 'utf8')
  const config = vm.runInNewContext(`(${text}\n)`, {}, { filename: file })  // JSON with comments and trailing commas
  const { baseUrl, paths } = config.compilerOptions ?? {}
  let inherited = null
  for (const name of [config.extends ?? []].flat()) {
    if (!name.startsWith('.') || depth > 8) continue  // of a package: it cannot know the project's paths
    const base = asFile(path.join(folder, name))
    if (base) inherited = readConfig(base, depth + 1)
  }
  const root = baseUrl === undefined ? inherited?.baseUrl : path.join(folder, baseUrl)
  const from = root ?? folder
  const patterns = paths
    ? Object.entries(paths).sort(([a], [b]) => b.length - a.length).map(([pattern, to]) => [pattern, to.map((one) => path.resolve(from, one))])
    : inherited?.patterns ?? []
  return { baseUrl: root, patterns }
}

export async function load(url, context, next) {
  if (!url.startsWith('file:') || url.includes('/node_modules/')) return next(url, context)
  const file = fileURLToPath(url)
  if (/\.(?:ts|mts)$/.test(file)) {
    return { format: 'module', source: await strip(readFileSync(file, 'utf8'), file), shortCircuit: true }
  }
  if (file.endsWith('.js') && context.format !== 'module') {
    const source = readFileSync(file, 'utf8')
    if (ESM.test(source)) return { format: 'module', source, shortCircuit: true }
  }
  return next(url, context)
}

let stripTypes = null

/** Remove the types. Positions stay the same; code for enums and the like is generated with a source map. */
async function strip(source, file) {
  stripTypes ??= await findStripper()
  try {
    return stripTypes(source, 'strip', file)
  } catch (problem) {
    if (!/Unsupported|UNSUPPORTED/.test(problem.code ?? '')) throw syntaxError(problem, file)
  }
  try {
    return stripTypes(source, 'transform', file)
  } catch (problem) {
    throw syntaxError(problem, file)
  }
}

async function findStripper() {
  if (module.stripTypeScriptTypes) {
    return (source, mode, file) =>
      module.stripTypeScriptTypes(source, { mode, sourceUrl: file, ...(mode === 'transform' && { sourceMap: true }) })
  }
  if (!options.stripper) {
    throw new Error(`Node ${process.version} cannot strip types itself; use Node 22.13 or newer, or let Penstock install amaro`)
  }
  const { default: amaro } = await import(pathToFileURL(options.stripper))
  return (source, mode, filename) => {
    const isStrip = mode === 'strip'
    const { code, map } = amaro.transformSync(source, { mode: isStrip ? 'strip-only' : 'transform', sourceMap: !isStrip, filename })
    return map ? `${code}\n//# sourceMappingURL=data:application/json;base64,${Buffer.from(map).toString('base64')}` : code
  }
}

function syntaxError(problem, file) {
  const line = problem.startLine ?? /:(\d+)/.exec(problem.stack ?? '')?.[1]
  const place = line ? `${file}:${line}` : file
  return new SyntaxError(`${place}: ${problem.message.split('\n')[0]}`)
}

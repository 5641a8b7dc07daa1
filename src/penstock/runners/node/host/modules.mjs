// Worker files as modules, and which project files each of them imports.

import module from 'node:module'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { MessageChannel, receiveMessageOnPort } from 'node:worker_threads'

const { port1: received, port2: port } = new MessageChannel()
received.unref()
const imports = new Map()

/** Install the hooks; `stripper` is the file of amaro, for a Node that cannot strip types itself. */
export function install(stripper) {
  const api = new URL('./penstock.mjs', import.meta.url).href
  module.register('./hooks.mjs', { parentURL: import.meta.url, data: { port, api, stripper }, transferList: [port] })
}

const loaded = new Map()

/** Import a worker file once. */
export function load(file) {
  let found = loaded.get(file)
  if (!found) {
    found = import(pathToFileURL(file).href)
    loaded.set(file, found)
  }
  return found
}

/** Return the file and the project files that it imports, directly or through others. */
export function sourcesOf(file) {
  for (let message; (message = receiveMessageOnPort(received)); ) {
    const [parent, child] = message.message
    if (!imports.has(parent)) imports.set(parent, new Set())
    imports.get(parent).add(child)
  }
  const seen = new Set([pathToFileURL(file).href])
  for (const one of seen) for (const child of imports.get(one) ?? []) seen.add(child)
  return [...seen].map((url) => fileURLToPath(url))
}

/** Return the exports of a module; those of a CommonJS file are its `module.exports`. */
export function exportsOf(found) {
  const inner = found.default
  const isCommon = inner && typeof inner === 'object' && ('default' in inner || 'config' in inner || 'handle' in inner || 'queue' in inner)
  return isCommon ? { ...found, ...inner, default: inner.default ?? inner.handle } : found
}

/** Return the config of a worker file: its export, or that of defineFunction. */
export function configOf(exports) {
  return exports.config ?? exports.default?.config ?? {}
}

/** Return the handler of a worker file, and its name. */
export function handlerOf(exports) {
  const declared = configOf(exports).handler
  if (typeof declared === 'function') return declared
  if (typeof declared === 'string') return exports[declared]
  return typeof exports.default === 'function' ? exports.default : exports.handle
}

// The host: runs the handlers of worker files, many at once. It talks to its worker by JSON lines `[number, frame]`
// on a file descriptor of their own: what a handler prints is never read as a frame.

import net from 'node:net'
import fs from 'node:fs'
import { Worker } from 'node:worker_threads'

import { open, send, take } from './attempts.mjs'
import { describe } from './describe.mjs'
import { install } from './modules.mjs'
import { Threads } from './threads.mjs'
import { keepErrorOptions } from './values.mjs'

const [mode, fd, settings] = process.argv.slice(2)
const options = JSON.parse(settings)

keepErrorOptions()
install(options.stripper)

if (mode === 'describe') {
  const found = []
  for (const file of options.files) found.push(await describe(file))
  fs.writeFileSync(Number(fd), JSON.stringify(found))
  process.exit(0)  // a module may hold a connection open
}

new Worker(new URL('./watchdog.mjs', import.meta.url), { workerData: { parent: process.ppid }, stdout: false }).unref()

const socket = new net.Socket({ fd: Number(fd), readable: true, writable: true })
let outgoing = []

/** Write a line. Lines of one turn are one write. */
function write(line) {
  if (outgoing.push(line) === 1) setImmediate(flush)
}

function flush() {
  const lines = outgoing
  outgoing = []
  socket.write(`${lines.join('\n')}\n`)
}

open(write, options.frameBytes)
const threads = new Threads(options, write, send)

let rest = []  // of a line that has not ended
socket.setEncoding('utf8')
socket.on('data', (text) => {
  if (!text.includes('\n')) return void rest.push(text)
  const lines = (rest.join('') + text).split('\n')
  rest = [lines.pop()]
  for (const line of lines) {
    const [number, frame] = JSON.parse(line)
    if (!threads.take(number, frame)) take(number, frame)
  }
})
socket.on('close', () => process.exit(0))
socket.on('error', () => process.exit(0))

// A promise that nobody awaits must not end the handlers of other jobs.
process.on('unhandledRejection', (problem) => console.error('penstock: unhandled rejection in a worker file:', problem))
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => {})  // the worker decides when the host ends

send(0, { type: 'ready', rssMb: process.memoryUsage.rss() / 2 ** 20 })

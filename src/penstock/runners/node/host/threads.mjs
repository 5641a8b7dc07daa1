// Worker threads: a handler that blocks, or ends, its thread does not disturb the handlers of the others.

import os from 'node:os'
import { Worker } from 'node:worker_threads'

const STOP_TIMEOUT_MS = 500  // the worker kills the whole host after 1 s

/** Runs attempts on threads. Handlers ask for one with `useWorkerThreads`; a setting gives one to all the others. */
export class Threads {
  #options
  #write
  #send
  #threads = new Set()
  #byNumber = new Map()

  constructor(options, write, send) {
    this.#options = options
    this.#write = write
    this.#send = send
  }

  /** Pass a frame to the thread of its attempt; return whether it has one. */
  take(number, frame) {
    if (frame.type === 'run') {
      if (!(frame.task.handler.thread ?? this.#options.threads > 0)) return false
      const thread = this.#choose()
      this.#byNumber.set(number, thread)
      thread.numbers.add(number)
    }
    const thread = this.#byNumber.get(number)
    if (!thread) return false
    thread.worker.postMessage([number, frame])
    if (frame.type === 'cancel') this.#expectRelease(thread, number)
    return true
  }

  #choose() {
    const most = this.#options.threads || os.availableParallelism()
    const [idlest] = [...this.#threads].sort((a, b) => a.numbers.size - b.numbers.size)
    return idlest && (idlest.numbers.size === 0 || this.#threads.size >= most) ? idlest : this.#start()
  }

  #start() {
    const { stripper, memoryMb, frameBytes } = this.#options
    const worker = new Worker(new URL('./thread.mjs', import.meta.url), {
      workerData: { stripper, frameBytes },
      ...(memoryMb && { resourceLimits: { maxOldGenerationSizeMb: memoryMb } }),
    })
    const thread = { worker, numbers: new Set(), stopping: new Map(), problem: null }
    worker.on('message', ([line, number, type]) => this.#receive(thread, line, number, type))
    worker.on('error', (problem) => (thread.problem = problem))
    worker.on('exit', (code) => this.#bury(thread, thread.problem ?? `exit code ${code}`))
    this.#threads.add(thread)
    return thread
  }

  #receive(thread, line, number, type) {
    if (!thread.numbers.has(number)) return
    if (type === 'done' || type === 'error' || type === 'released') this.#forget(thread, number)
    this.#write(line)
  }

  #forget(thread, number) {
    clearTimeout(thread.stopping.get(number))
    thread.stopping.delete(number)
    thread.numbers.delete(number)
    this.#byNumber.delete(number)
  }

  /** End a thread that does not let an attempt go: a handler blocks it. */
  #expectRelease(thread, number) {
    thread.stopping.set(number, setTimeout(() => {
      this.#threads.delete(thread)
      this.#forget(thread, number)
      this.#send(number, { type: 'released' })
      thread.problem ??= 'a handler that was cancelled blocked it'
      thread.worker.terminate()
    }, STOP_TIMEOUT_MS))
  }

  /** Fail the attempts of a thread that has ended: they are retried. */
  #bury(thread, why) {
    this.#threads.delete(thread)
    for (const number of [...thread.numbers]) {
      const isStopped = thread.stopping.has(number)
      this.#forget(thread, number)
      const message = `the thread that ran the handler ended: ${why?.message ?? why}`
      this.#send(number, isStopped ? { type: 'released' } : { type: 'error', error: { name: 'RunnerLost', message } })
    }
  }
}

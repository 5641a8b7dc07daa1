// Worker threads: a handler that blocks, or ends, its thread does not disturb the handlers of the others.

import os from 'node:os'
import { Worker } from 'node:worker_threads'

const STOP_TIMEOUT_MS = 500  // the worker kills the whole host after 1 s
const TAKE_TIMEOUT_MS = 1000  // what a stopped handler still does must not block its thread longer

/** Call a function later, after the messages that came before: the host's own thread may have been busy. */
function setTimer(ms, act) {
  setTimeout(() => setImmediate(act), ms)
}

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
      this.#assign(this.#choose(), number, frame)
    }
    const thread = this.#byNumber.get(number)
    if (!thread) return false
    thread.worker.postMessage([number, frame])
    if (frame.type === 'cancel') this.#expectRelease(thread, number)
    return true
  }

  #assign(thread, number, run) {
    if (thread.hasStopped && thread.numbers.size === 0) this.#expectTaken(thread, number)
    this.#byNumber.set(number, thread)
    thread.numbers.add(number)
    thread.untaken.set(number, run)
  }

  /** End an idle thread that takes no task: a handler that was stopped before still runs there, and blocks it. */
  #expectTaken(thread, number) {
    setTimer(TAKE_TIMEOUT_MS, () => {
      if (thread.untaken.has(number)) this.#end(thread, 'a handler that was stopped before blocked it')
    })
  }

  #end(thread, why) {
    this.#threads.delete(thread)
    thread.problem ??= why
    thread.worker.terminate()
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
    const thread = { worker, numbers: new Set(), untaken: new Map(), stopping: new Set(), hasTaken: false, hasStopped: false, problem: null }
    worker.on('message', ([line, number, type]) => this.#receive(thread, line, number, type))
    worker.on('error', (problem) => (thread.problem = problem))
    worker.on('exit', (code) => this.#bury(thread, thread.problem ?? `exit code ${code}`))
    this.#threads.add(thread)
    return thread
  }

  #receive(thread, line, number, type) {
    if (!thread.numbers.has(number)) return
    if (type === 'taken') return this.#noteTaken(thread, number)
    if (type === 'released') thread.hasStopped = true
    if (type === 'done' || type === 'error' || type === 'released') this.#forget(thread, number)
    this.#write(line)
  }

  #noteTaken(thread, number) {
    thread.hasTaken = true  // one that ends before it takes anything ends each time
    thread.untaken.delete(number)
  }

  #forget(thread, number) {
    thread.stopping.delete(number)
    thread.untaken.delete(number)
    thread.numbers.delete(number)
    this.#byNumber.delete(number)
  }

  /** End a thread that does not let an attempt go: a handler blocks it. */
  #expectRelease(thread, number) {
    if (thread.stopping.has(number)) return
    thread.stopping.add(number)
    setTimer(STOP_TIMEOUT_MS, () => {
      if (!thread.stopping.has(number)) return
      this.#forget(thread, number)
      this.#send(number, { type: 'released' })
      this.#end(thread, 'a handler that was cancelled blocked it')
    })
  }

  /** Fail the attempts of a thread that has ended: they are retried. Those that it did not take run on another thread. */
  #bury(thread, why) {
    this.#threads.delete(thread)
    for (const number of [...thread.numbers]) {
      const isStopped = thread.stopping.has(number)
      const run = thread.hasTaken && thread.untaken.get(number)
      this.#forget(thread, number)
      if (run && !isStopped) {
        this.take(number, run)
        continue
      }
      const message = `the thread that ran the handler ended: ${why?.message ?? why}`
      this.#send(number, isStopped ? { type: 'released' } : { type: 'error', error: { name: 'RunnerLost', message } })
    }
  }
}

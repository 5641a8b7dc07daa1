// One worker thread of the host: the same attempts, with frames by messages.

import { parentPort, workerData } from 'node:worker_threads'

import { open, take } from './attempts.mjs'
import { install } from './modules.mjs'
import { keepErrorOptions } from './values.mjs'

keepErrorOptions()
install(workerData.stripper)
open((line, number, type) => parentPort.postMessage([line, number, type]), workerData.frameBytes)
parentPort.on('message', ([number, frame]) => {
  if (frame.type === 'run') parentPort.postMessage(['', number, 'taken'])
  take(number, frame)
})
process.on('unhandledRejection', (problem) => console.error('penstock: unhandled rejection in a worker file:', problem))

// Ends the process when the worker that started it is gone, even if a handler blocks the main thread.

import { workerData } from 'node:worker_threads'

setInterval(() => {
  if (process.ppid !== workerData.parent) process.kill(process.pid, 'SIGKILL')
}, 500)

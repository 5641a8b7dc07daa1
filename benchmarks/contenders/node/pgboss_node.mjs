// pg-boss for Node.
import { readFileSync } from 'node:fs'
import { PgBoss } from 'pg-boss'
import { runContender } from './entry.mjs'

const version = JSON.parse(readFileSync(new URL('./node_modules/pg-boss/package.json', import.meta.url))).version
const CHUNK = 1000

async function boss({ url }) {
  const one = new PgBoss({ connectionString: url, supervise: false, schedule: false, useListenNotify: true })
  one.on('error', (problem) => console.error(String(problem)))
  await one.start()
  return one
}

async function producer(args) {
  const one = await boss(args)
  await one.createQueue('noop', { notify: true })
  return async (sent) => {
    for (let i = 0; i < sent.length; i += CHUNK) {
      await one.insert('noop', sent.slice(i, i + CHUNK).map((sent) => ({ data: { sent } })))
    }
  }
}

async function work(args, tally) {
  const one = await boss(args)
  if (args.scenario === 'pickup') {
    await one.work('noop', { notifyPollingIntervalSeconds: 5 }, async (jobs) => jobs.forEach((job) => tally.hit(job.data.sent)))
    return
  }
  // What work() does, without its pauses.
  for (;;) {
    const jobs = await one.fetch('noop', { batchSize: args.level })
    for (const job of jobs) tally.hit(job.data.sent)
    if (jobs.length) await one.complete('noop', jobs.map((job) => job.id))
    else await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

await runContender({ name: 'pg-boss (Node)', version,
  settings: `Node ${process.version}; a loop of fetch and complete, batches as large as the concurrency (its work() without the ` +
    'pauses); for pick-up work() with LISTEN/NOTIFY' }, producer, work)

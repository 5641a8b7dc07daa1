// BullMQ for Node, the original implementation.
import { readFileSync } from 'node:fs'
import { Queue, Worker } from 'bullmq'
import { runContender } from './entry.mjs'

const version = JSON.parse(readFileSync(new URL('./node_modules/bullmq/package.json', import.meta.url))).version
const CHUNK = 500
const connection = ({ url }) => {
  const { hostname, port } = new URL(url)
  return { host: hostname, port: Number(port), maxRetriesPerRequest: null }
}

async function producer(args) {
  const queue = new Queue('noop', { connection: connection(args) })
  return async (sent) => {
    for (let i = 0; i < sent.length; i += CHUNK) {
      await queue.addBulk(sent.slice(i, i + CHUNK).map((one) => ({ name: 'noop', data: { sent: one } })))
    }
  }
}

function work(args, tally) {
  new Worker('noop', async (job) => (tally.hit(job.data.sent), job.data.sent),
    { connection: connection(args), concurrency: args.level })
}

await runContender({ name: 'BullMQ (Node)', version,
  settings: `Node ${process.version}, ioredis, finished jobs kept as installed; jobs added by addBulk` }, producer, work)

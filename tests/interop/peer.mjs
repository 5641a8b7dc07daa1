// The other program: BullMQ for Node. Reads one command a line, answers one line of JSON each; events come as they are.
import { createInterface } from 'node:readline'
import { FlowProducer, Queue, QueueEvents, Worker } from 'bullmq'

const connection = { host: '127.0.0.1', port: Number(process.argv[2]), db: Number(process.argv[3]), maxRetriesPerRequest: null }
const open = []
const keep = (one) => (open.push(one), one)
const queues = new Map()
const queue = (name) => queues.get(name) ?? queues.set(name, keep(new Queue(name, { connection }))).get(name)
const say = (what) => process.stdout.write(JSON.stringify(what) + '\n')

const commands = {
  add: async ({ queue: q, name, data, opts }) => (await queue(q).add(name, data, opts)).id,
  counts: async ({ queue: q }) => queue(q).getJobCounts(),
  job: async ({ queue: q, id }) => {
    const state = await queue(q).getJobState(id) // first: what is read after it is at least as new
    const job = await queue(q).getJob(id)
    return job && { name: job.name, data: job.data, returnvalue: job.returnvalue, failedReason: job.failedReason,
      progress: job.progress, state, priority: job.priority, opts: job.opts }
  },
  pause: async ({ queue: q }) => queue(q).pause(),
  resume: async ({ queue: q }) => queue(q).resume(),
  paused: async ({ queue: q }) => queue(q).isPaused(),
  schedule: async ({ queue: q, id, when, name, data }) => (await queue(q).upsertJobScheduler(id, when, { name, data })).id,
  work: async ({ queue: q, fail }) => {
    const worker = keep(new Worker(q, async (job) => {
      if (fail) throw new Error('no')
      return { seen: job.data, by: 'node' }
    }, { connection }))
    worker.on('error', (problem) => say({ error: String(problem) }))
    await worker.waitUntilReady()
  },
  events: async ({ queue: q }) => {
    // From the start: by default it begins with what comes after its first read, and being ready does not wait for that.
    const events = keep(new QueueEvents(q, { connection, lastEventId: '0-0' }))
    for (const kind of ['added', 'waiting', 'active', 'completed', 'failed', 'progress', 'delayed']) {
      events.on(kind, (args) => say({ event: kind, ...args }))
    }
    await events.waitUntilReady()
  },
  flow: async ({ tree }) => (await keep(new FlowProducer({ connection })).add(tree)).job.id,
  bind: async ({ queue: q }) => {
    const worker = keep(new Worker(q, async (job) => ({ values: await job.getChildrenValues(),
      failed: await job.getIgnoredChildrenFailures() }), { connection }))
    worker.on('error', (problem) => say({ error: String(problem) }))
    await worker.waitUntilReady()
  },
  dependencies: async ({ queue: q, id }) => (await queue(q).getJob(id)).getDependenciesCount(),
  children: async ({ queue: q, id }) => (await queue(q).getJob(id)).getChildrenValues(),
}

for await (const line of createInterface({ input: process.stdin })) {
  const { verb, ...given } = JSON.parse(line)
  try {
    say({ reply: (await commands[verb](given)) ?? null })
  } catch (problem) {
    say({ error: String(problem) })
  }
}
await Promise.all(open.map((one) => one.close()))
process.exit(0)

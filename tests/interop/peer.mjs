// The other program: BullMQ for Node. Reads one command per line and answers each with one line of JSON; prints events as they occur.
import { createInterface } from 'node:readline'
import { FlowProducer, Queue, QueueEvents, Worker } from 'bullmq'

const connection = { host: '127.0.0.1', port: Number(process.argv[2]), db: Number(process.argv[3]), maxRetriesPerRequest: null }
const open = []
const keep = (one) => (open.push(one), one)
const queues = new Map()
const queue = (name) => queues.get(name) ?? queues.set(name, keep(new Queue(name, { connection }))).get(name)
const send = (message) => process.stdout.write(JSON.stringify(message) + '\n')

// The dashboard's own API, without a server: routes by method and path, called as a server would.
const board = async (names) => {
  const { createBullBoard } = await import('@bull-board/api')
  const { BullMQAdapter } = await import('@bull-board/api/bullMQAdapter')
  const kept = {}
  const setters = ['setQueues', 'setViewsPath', 'setStaticPath', 'setUIConfig', 'setEntryRoute', 'setErrorHandler', 'setApiRoutes']
  const serverAdapter = Object.fromEntries(setters.map((name) => [name, (...args) => ((kept[name] = args), serverAdapter)]))
  createBullBoard({ queues: names.map((name) => new BullMQAdapter(queue(name))), serverAdapter })
  return (method, path, args) => {
    const route = kept.setApiRoutes[0].find((one) => [one.method].flat().includes(method) && [one.route].flat().includes(path))
    return route.handler({ queues: kept.setQueues[0], query: {}, params: {}, body: {}, headers: {}, uiConfig: {}, ...args })
  }
}

const commands = {
  board: async ({ queue: q, method, path, ...args }) => (await (await board([q]))(method, path, args)).body,
  add: async ({ queue: q, name, data, opts }) => (await queue(q).add(name, data, opts)).id,
  counts: async ({ queue: q }) => queue(q).getJobCounts(),
  job: async ({ queue: q, id }) => {
    const state = await queue(q).getJobState(id) // first: what is read after it is at least as new
    const job = await queue(q).getJob(id)
    return job && { name: job.name, data: job.data, returnvalue: job.returnvalue, failedReason: job.failedReason,
      progress: job.progress, state, priority: job.priority, opts: job.opts, attemptsMade: job.attemptsMade,
      stacktrace: job.stacktrace, deduplicationId: job.deduplicationId }
  },
  pause: async ({ queue: q }) => queue(q).pause(),
  resume: async ({ queue: q }) => queue(q).resume(),
  paused: async ({ queue: q }) => queue(q).isPaused(),
  schedulers: ({ queue: q }) => queue(q).getJobSchedulers(),
  unschedule: ({ queue: q, id }) => queue(q).removeJobScheduler(id),
  schedule: async ({ queue: q, id, when, name, data }) => (await queue(q).upsertJobScheduler(id, when, { name, data })).id,
  logs: async ({ queue: q, id }) => queue(q).getJobLogs(id),
  metrics: async ({ queue: q, of }) => (await queue(q).getMetrics(of)).meta.count,
  hold: async ({ queue: q, ms }) => queue(q).rateLimit(ms),
  held: async ({ queue: q }) => queue(q).getRateLimitTtl(),
  dedupe: async ({ queue: q, key }) => queue(q).getDeduplicationJobId(key),
  work: async ({ queue: q, fail, limiter }) => {
    const worker = keep(new Worker(q, async (job) => {
      if (fail) throw new Error('no')
      return { seen: job.data, by: 'node' }
    }, { connection, limiter }))
    worker.on('error', (problem) => send({ error: String(problem) }))
    await worker.waitUntilReady()
  },
  events: async ({ queue: q }) => {
    // From the start: by default it begins with what comes after its first read, and being ready does not wait for that.
    const events = keep(new QueueEvents(q, { connection, lastEventId: '0-0' }))
    for (const kind of ['added', 'waiting', 'active', 'completed', 'failed', 'progress', 'delayed', 'deduplicated']) {
      events.on(kind, (args) => send({ event: kind, ...args }))
    }
    await events.waitUntilReady()
  },
  flow: async ({ tree }) => (await keep(new FlowProducer({ connection })).add(tree)).job.id,
  bind: async ({ queue: q }) => {
    const worker = keep(new Worker(q, async (job) => ({ values: await job.getChildrenValues(),
      failed: await job.getIgnoredChildrenFailures() }), { connection }))
    worker.on('error', (problem) => send({ error: String(problem) }))
    await worker.waitUntilReady()
  },
  dependencies: async ({ queue: q, id }) => (await queue(q).getJob(id)).getDependenciesCount(),
  children: async ({ queue: q, id }) => (await queue(q).getJob(id)).getChildrenValues(),
}

for await (const line of createInterface({ input: process.stdin })) {
  const { verb, ...args } = JSON.parse(line)
  try {
    send({ reply: (await commands[verb](args)) ?? null })
  } catch (problem) {
    send({ error: String(problem) })
  }
}
await Promise.all(open.map((one) => one.close()))
process.exit(0)

// The other program: pg-boss for Node. Reads one command per line, answers each with one line of JSON, and reports the jobs that it ran.
import { createInterface } from 'node:readline'
import { PgBoss } from 'pg-boss'

const boss = new PgBoss({ connectionString: process.argv[2], schema: process.argv[3] })
const send = (message) => process.stdout.write(JSON.stringify(message) + '\n')
boss.on('error', (problem) => send({ error: String(problem) }))

const commands = {
  create: async ({ queue, options }) => boss.createQueue(queue, options),
  send: async ({ queue, data, options }) => boss.send(queue, data, options),
  job: async ({ queue, id }) => (await boss.findJobs(queue, { id }))[0],
  jobs: async ({ queue }) => boss.findJobs(queue),
  schedule: async ({ queue, cron, data, options }) => boss.schedule(queue, cron, data, options),
  schedules: async () => boss.getSchedules(),
  work: async ({ queue, fail }) => boss.work(queue, { pollingIntervalSeconds: 0.5 }, async ([job]) => {
    send({ event: 'worked', queue, jobId: job.id, data: job.data })
    if (fail) throw new Error('not in Node either')
    return { by: 'node' }
  }),
}

await boss.start()
for await (const line of createInterface({ input: process.stdin })) {
  const { verb, ...args } = JSON.parse(line)
  try {
    send({ reply: (await commands[verb](args)) ?? null })
  } catch (problem) {
    send({ error: String(problem) })
  }
}
await boss.stop({ graceful: false })
process.exit(0)

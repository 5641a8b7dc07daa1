// The other program: pg-boss for Node. Reads one command a line, answers one line of JSON each, and reports the jobs it worked on.
import { createInterface } from 'node:readline'
import { PgBoss } from 'pg-boss'

const boss = new PgBoss({ connectionString: process.argv[2], schema: process.argv[3] })
const say = (what) => process.stdout.write(JSON.stringify(what) + '\n')
boss.on('error', (problem) => say({ error: String(problem) }))

const commands = {
  create: async ({ queue, options }) => boss.createQueue(queue, options),
  send: async ({ queue, data, options }) => boss.send(queue, data, options),
  job: async ({ queue, id }) => (await boss.findJobs(queue, { id }))[0],
  jobs: async ({ queue }) => boss.findJobs(queue),
  schedule: async ({ queue, cron, data, options }) => boss.schedule(queue, cron, data, options),
  schedules: async () => boss.getSchedules(),
  work: async ({ queue, fail }) => boss.work(queue, { pollingIntervalSeconds: 0.5 }, async ([job]) => {
    say({ event: 'worked', queue, jobId: job.id, data: job.data })
    if (fail) throw new Error('not in Node either')
    return { by: 'node' }
  }),
}

await boss.start()
for await (const line of createInterface({ input: process.stdin })) {
  const { verb, ...given } = JSON.parse(line)
  try {
    say({ reply: (await commands[verb](given)) ?? null })
  } catch (problem) {
    say({ error: String(problem) })
  }
}
await boss.stop({ graceful: false })
process.exit(0)

// contenders/entry.py and tally.py in JavaScript: the command line of a contender and the report it prints.
import { spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'

const MARK = '#> '
const LIMIT_S = 10 // the rate of a slower contender is computed from this time
const WARM = -1

// The clock that all processes of the machine share, in seconds.
export const clock = () => Number(process.hrtime.bigint()) / 1e9
const cpu = () => Object.values(process.cpuUsage()).reduce((a, b) => a + b) / 1e6
export const sendReport = (fields) => process.stdout.write(MARK + JSON.stringify(fields) + '\n')

export function parseArguments() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { n: { type: 'string' }, dir: { type: 'string' }, url: { type: 'string' }, level: { type: 'string' },
      worker: { type: 'boolean' } },
  })
  return { scenario: positionals[0], n: Number(values.n), url: values.url, level: Number(values.level), worker: values.worker }
}

export class Tally {
  constructor({ n, scenario }) {
    this.n = n
    this.scenario = scenario
    this.limit = scenario === 'jobs' ? LIMIT_S : LIMIT_S + n * 0.5
    this.waits = []
  }

  hit(sent) {
    if (sent === WARM) return sendReport({ ready: true })
    const now = clock()
    if (!this.waits.length) {
      this.first = now
      this.cpu = cpu()
      setTimeout(() => this.end(), this.limit * 1000)
    }
    this.last = now
    this.waits.push(now - sent)
    if (this.waits.length === this.n) this.end()
  }

  end() {
    const { first, last, waits } = this
    sendReport({ count: waits.length, first, last, cpu: cpu() - this.cpu, waits: this.scenario === 'pickup' ? waits : [] })
    process.exit(0)
  }
}

function worker() {
  const child = spawn(process.argv[0], [...process.argv.slice(1), '--worker'], { stdio: ['ignore', 'pipe', 'inherit'] })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  return async () => {
    for (let next = await lines.next(); !next.done; next = await lines.next()) {
      if (next.value.startsWith(MARK)) return JSON.parse(next.value.slice(MARK.length))
    }
    throw new Error('the worker process ended early')
  }
}

async function jobs(args, add) {
  const since = clock()
  await add(Array.from({ length: args.n }, (_, i) => i))
  const seconds = clock() - since
  const report = await worker()()
  return { per_s: (report.count - 1) / (report.last - report.first), cpu_us: (report.cpu / report.count) * 1e6,
    enqueue_per_s: args.n / seconds }
}

async function pickup(args, add) {
  const readReport = worker()
  await add([WARM])
  await readReport()
  for (let i = 0; i < args.n; i++) {
    await new Promise((resolve) => setTimeout(resolve, 40 + Math.random() * 80))
    await add([clock()])
  }
  const waits = (await readReport()).waits.sort((a, b) => a - b)
  const at = (share) => waits[Math.min(waits.length - 1, Math.floor(waits.length * share))] * 1000
  return { p50_ms: at(0.5), p99_ms: at(0.99) }
}

export async function runContender(about, producer, work) {
  const args = parseArguments()
  if (args.worker) return work(args, new Tally(args))
  const add = await producer(args)
  sendReport({ about, metrics: await { jobs, pickup }[args.scenario](args, add) })
  process.exit(0)
}

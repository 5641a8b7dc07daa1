// Sends billing messages with BullMQ: node producer.mjs redis://localhost:6379/0 < messages.jsonl
import { createInterface } from 'node:readline'
import { Queue } from 'bullmq'

const at = new URL(process.argv[2] ?? 'redis://localhost:6379/0')
const connection = { host: at.hostname, port: Number(at.port || 6379), db: Number(at.pathname.slice(1) || 0) }
const billing = new Queue('billing', { connection })

for await (const line of createInterface({ input: process.stdin })) {
  const { name, urn, payload } = JSON.parse(line)
  await billing.add(name, { urn, payload }, { attempts: 3, backoff: { type: 'exponential', delay: 30000 } })
}
await billing.close()

import { writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
export const queue = 'stop-node'
export default async (file: string, ctx: any) => {
  try {
    await sleep(60_000, undefined, { signal: ctx.signal })
  } finally {
    writeFileSync(file, String(Date.now() / 1000))
  }
}

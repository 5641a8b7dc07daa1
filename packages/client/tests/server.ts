// A real `penstock serve` with a worker, on a store in a file, in a process of its own.

import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export const PENSTOCK = process.env.PENSTOCK ?? 'penstock'

const WORKERS = `
import asyncio
from penstock import Context, flow, job, step


@flow("order", emits=["order.paid"])
async def pay(order: dict, ctx: Context) -> dict:
    ctx.log("paying", order=order["id"])
    ctx.progress(50)
    ctx.partial("half")
    ctx.emit("order.paid", {"id": order["id"]})
    return {"paid": True}


@step(flow="order", on="order.paid")
async def ship(event: dict, ctx: Context) -> str:
    confirmed = await ctx.wait.event("order.confirmed")
    return f"shipped {event['id']} to {confirmed.data['to']}"


@job(queue="mail")
async def mail(to: str, ctx: Context) -> str:
    ctx.log("sending")
    return f"sent to {to}"


@job(queue="broken", retry=1)
async def broken(input: dict) -> None:
    raise ValueError("no such address")
`

export class Server {
  readonly folder = mkdtempSync(join(tmpdir(), 'penstock-client-'))
  url = ''
  #process: ChildProcess | undefined
  #port = 0

  constructor(private readonly files: Record<string, string> = { 'shop.py': WORKERS }) {
    mkdirSync(join(this.folder, 'workers'))
    for (const [name, text] of Object.entries(this.files)) writeFileSync(join(this.folder, 'workers', name), text)
  }

  /** Run a command of the command line and return what it prints. */
  async command(...args: string[]): Promise<string> {
    const child = spawn(PENSTOCK, args, { cwd: this.folder, env: this.#env() })
    let text = ''
    child.stdout.on('data', (piece) => (text += piece))
    child.stderr.on('data', (piece) => (text += piece))
    const code = await new Promise((resolve) => child.on('close', resolve))
    if (code !== 0) throw new Error(`penstock ${args.join(' ')} failed: ${text}`)
    return text
  }

  async start(): Promise<this> {
    this.#port ||= await freePort()
    this.url = `http://127.0.0.1:${this.#port}`
    const child = spawn(PENSTOCK, ['serve', '--worker', '--port', String(this.#port)], { cwd: this.folder, env: this.#env() })
    this.#process = child
    let text = ''
    child.stdout!.on('data', (piece) => (text += piece))
    child.stderr!.on('data', (piece) => (text += piece))
    await until(async () => {
      if (child.exitCode !== null) throw new Error(`penstock serve ended: ${text}`)
      return fetch(`${this.url}/health`).then((answer) => answer.ok, () => false)
    })
    return this
  }

  /** End the server; by SIGKILL as a crash does. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    const child = this.#process
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    const ended = new Promise((resolve) => child.on('close', resolve))
    child.kill(signal)
    await ended
  }

  async remove(): Promise<void> {
    await this.stop('SIGKILL')
    rmSync(this.folder, { recursive: true, force: true })
  }

  #env(): NodeJS.ProcessEnv {
    return { ...process.env, PENSTOCK_URL: `sqlite:///${join(this.folder, 'store.db')}`, PENSTOCK_DIR: join(this.folder, 'workers') }
  }
}

/** Wait until a condition holds; fail with its last state after half a minute. */
export async function until(condition: () => unknown, what = 'the condition'): Promise<void> {
  const end = Date.now() + 30_000
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`${what} did not hold within 30 s`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as { port: number }
      probe.close(() => resolve(port))
    })
  })
}

// server/worker/image/resize.ts
export const queue = 'image-resize' // optional; else derived

export interface WorkerInput { url: string; width: number }

export default async function handle(input: WorkerInput, ctx: RunContext) {
  ctx.emit({ type: 'log', data: 'Starting resize' })
  // ... work ...
  ctx.emit({ type: 'progress', data: 50 })
  return { ok: true, result: { url: '...' } }
}

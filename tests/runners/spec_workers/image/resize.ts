import { defineQueueConfig } from '#imports'
// server/worker/image/resize.ts
export const queue = 'image-resize'
export const config = defineQueueConfig({
  flow: {
    id: 'image-pipeline',
    role: 'main',           // 'main' | 'step'
    step: 'resize',         // logical step name
    emits: ['resize.requested','resize.progress','resize.completed','resize.failed']
  }
})

export default async function handle(input, ctx) {
  const corr = ctx.correlationId()
  ctx.emit({ kind: 'resize.requested', data: { url: input.url }, correlationId: corr })
  // work...
  ctx.emit({ kind: 'resize.progress', data: { pct: 50 }, correlationId: corr })
  // done
  ctx.emit({ kind: 'resize.completed', data: { url: '...' }, correlationId: corr })
  return { ok: true }
}

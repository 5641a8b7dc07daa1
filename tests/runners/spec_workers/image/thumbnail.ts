// server/worker/image/thumbnail.ts
import { defineQueueConfig } from '#imports'

export const queue = 'image-thumbnail'
export const config = defineQueueConfig({
  flow: {
    id: 'image-pipeline',
    role: 'step',
    step: 'thumbnail',
    // triggers DSL (simplified): listen to events and enqueue this step
    // Defaults: from='flow', input=event.data, jobId=`${corr}:${step}` for idempotency
    triggers: 'resize.completed'
  }
})

export default async function handle(input, ctx) {
  const corr = ctx.correlationId()
  const thumb = await makeThumb(input.url)
  ctx.state.set(['thumb', corr], { url: thumb })
  ctx.emit({ kind: 'thumbnail.completed', data: { url: thumb }, correlationId: corr })
  return { ok: true }
}
import '../_world'

// Cuts the middle square out of the resized picture.

import { readFile, writeFile } from 'node:fs/promises'

import { defineQueueConfig } from 'penstock'

interface Resized { file: string; width: number; height: number }

export const queue = 'image-thumbnail'
export const config = defineQueueConfig({
  flow: {
    id: 'image-pipeline',
    role: 'step',
    step: 'thumbnail',
    triggers: 'resize.completed',
    emits: ['thumbnail.completed'],
  },
})

export default async function handle(input: Resized, ctx: any) {
  const corr = ctx.correlationId()
  const side = Math.min(input.width, input.height)
  const picture = await readFile(input.file)
  const pixels = picture.subarray(picture.length - 3 * input.width * input.height)
  const [left, top] = [Math.floor((input.width - side) / 2), Math.floor((input.height - side) / 2)]
  const rows = Array.from({ length: side }, (_, y) => {
    const start = 3 * ((top + y) * input.width + left)
    return pixels.subarray(start, start + 3 * side)
  })
  const file = input.file.replace('.resized.ppm', '.thumb.ppm')
  await writeFile(file, Buffer.concat([Buffer.from(`P6\n${side} ${side}\n255\n`), ...rows]))
  ctx.state.set(['thumb', corr], { file })
  ctx.emit({ kind: 'thumbnail.completed', data: { file }, correlationId: corr })
  return { ok: true, file, side }
}

// In step handler
export default async function myStep(input, ctx) {
  ctx.logger.info('Starting work...')
  
  // Wait for 5 seconds
  await ctx.await.time(5000)
  
  // Or wait until specific time
  await ctx.await.time(new Date('2025-10-30T12:00:00Z'))
  
  ctx.logger.info('Resumed after wait')
  return { done: true }
}

// Emits:
// 1. step.started
// 2. step.await.time { resumeAt: "2025-10-29T12:00:05Z" }
// 3. (5 seconds pass)
// 4. step.resumed { reason: "Time reached", awaitDuration: 5000 }
// 5. step.completed
export const config = { flow: { id: 'my-step', role: 'main' } }

export default async function stepWithTimeout(input, ctx) {
  try {
    const result = await ctx.await.event({
      kind: 'data.ready',
      timeout: 30000,  // 30 second timeout
    })
    return result
  } catch (error) {
    if (error.code === 'AWAIT_TIMEOUT') {
      // Handle timeout
      ctx.logger.warn('Timed out waiting for event')
      return { timedOut: true }
    }
    throw error
  }
}

// On timeout:
// 1. step.await.timeout { awaitType: "event", duration: 30000 }
// 2. step.failed or step.completed (depending on error handling)
export const config = { flow: { id: 'with-timeout', role: 'main' } }

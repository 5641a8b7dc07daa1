export default async function resilientStep(input, ctx) {
  try {
    // This might fail and retry
    const data = await fetchData()
    
    // Wait for approval
    const approval = await ctx.await.trigger({
      type: 'webhook',
      timeout: 24 * 60 * 60 * 1000
    })
    
    return { data, approval }
  } catch (error) {
    // Retry policy applies to both fetch and await failures
    throw error
  }
}

// Possible event sequences:
// Success: started → completed
// Retry: started → failed → retry → started → completed
// Await: started → await.trigger → resumed → completed
// Retry + Await: started → failed → retry → started → await.trigger → resumed → completed
export const config = { flow: { id: 'resilient', role: 'main' }, retry: 3 }
import '../_world'

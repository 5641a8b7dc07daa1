export default async function webhookStep(input, ctx) {
  // Generate trigger ID and URL
  const trigger = await ctx.await.trigger({
    type: 'webhook',                       // 'webhook' | 'user' | 'api'
    payload: { orderId: input.orderId },   // Data to include in trigger
    timeout: 7 * 24 * 60 * 60 * 1000,     // 7 day timeout
  })
  
  // trigger.id can be used to construct webhook URL:
  // POST /api/_flows/triggers/{trigger.id}
  
  // Execution pauses here until webhook is called
  const webhookData = await trigger.wait()
  
  return { webhookData }
}

// Emits:
// 1. step.started
// 2. step.await.trigger { triggerId: "abc-123", triggerType: "webhook", timeout: 604800000 }
// 3. (wait for POST /api/_flows/triggers/abc-123)
// 4. step.resumed { reason: "Webhook received", awaitDuration: 120000 }
// 5. step.completed
export const config = { flow: { id: 'webhook', role: 'main' } }

export default async function approvalStep(input, ctx) {
  // Wait for approval event
  const approvalEvent = await ctx.await.event({
    kind: 'approval.granted',              // Event kind to wait for
    where: (e) => e.data.orderId === input.orderId,  // Optional filter
    timeout: 24 * 60 * 60 * 1000,         // 24 hour timeout
  })
  
  return { approved: approvalEvent.data.approved }
}

// Emits:
// 1. step.started
// 2. step.await.event { eventKind: "approval.granted", timeout: 86400000 }
// 3. (wait for event)
// 4. step.resumed { reason: "Event received", awaitDuration: 42000 }
// 5. step.completed
export const config = { flow: { id: 'approval', role: 'main' } }

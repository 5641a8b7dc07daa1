// server/queues/create-order.ts
export const config = {
  step: 'create-order',
  queue: 'orders',
  retryPolicy: { attempts: 3, backoff: { type: 'exponential', delayMs: 1000 } },
  // This step emits events that other steps can subscribe to
  emits: ['order.created']
}

export default async function createOrder(input, ctx) {
  const order = await db.createOrder(input)
  
  // Emit event for other steps to react
  ctx.emit({ kind: 'order.created', data: { orderId: order.id, total: order.total } })
  
  return { orderId: order.id }
}
import '../_world'

// server/queues/fulfill-order.ts
export const config = {
  step: 'fulfill-order',
  queue: 'fulfillment',
  
  subscriptions: [
    {
      eventKind: 'order.paid',
      map: (event) => ({ orderId: event.data.orderId })
    }
  ],
  
  emits: ['order.fulfilled']
}

export default async function fulfillOrder(input, ctx) {
  await shipOrder(input.orderId)
  
  ctx.emit({ kind: 'order.fulfilled', data: { orderId: input.orderId } })
  
  return { fulfilled: true }
}
import '../_world'

// server/queues/wait-for-payment.ts
export const config = {
  step: 'wait-for-payment',
  queue: 'payments',
  
  // Subscribe to events - this step can be part of ANY flow
  subscriptions: [
    {
      eventKind: 'order.created',
      when: (event, ctx) => event.data.requiresPayment === true,
      map: (event) => ({
        orderId: event.data.orderId,
        amount: event.data.total
      })
    }
  ],
  
  // Declarative await - parseable for diagrams!
  await: {
    type: 'event',
    eventKind: 'payment.confirmed',
    where: (event, ctx) => event.data.orderId === ctx.input.orderId,
    timeout: 24 * 60 * 60 * 1000, // 24 hours
    onTimeout: 'cancel-order' // Optional: step to run on timeout
  },
  
  emits: ['order.paid', 'payment.timeout']
}

export default async function waitForPayment(input, ctx) {
  // Engine automatically handles await based on config
  // This handler runs AFTER payment.confirmed event arrives
  
  ctx.logger.info(`Payment confirmed for order ${input.orderId}`)
  
  // Emit success event
  ctx.emit({ kind: 'order.paid', data: { orderId: input.orderId } })
  
  return { paid: true, orderId: input.orderId }
}

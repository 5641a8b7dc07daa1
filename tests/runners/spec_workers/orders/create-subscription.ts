export const config = { step: 'create-subscription', emits: ['order.created'] }

export default async function createSubscription(input, ctx) {
  ctx.emit({ kind: 'order.created', data: { orderId: input.id, total: 9, requiresPayment: true } })
}

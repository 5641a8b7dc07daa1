export const queue = 'steps'
export const config = { flow: { id: 'three', role: 'step', step: 'two', triggers: 'one.done', emits: ['two.done'] } }
export default async (input: unknown, ctx: any) => { ctx.emit('two.done') }

export const queue = 'steps'
export const config = { flow: { id: 'three', role: 'main', step: 'one', emits: ['one.done'] } }
export default async (input: unknown, ctx: any) => { ctx.emit('one.done') }

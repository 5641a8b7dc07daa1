export const queue = 'steps'
export const config = { flow: { id: 'three', role: 'step', step: 'three', triggers: 'two.done' } }
export default async (input: unknown, ctx: any) => { return null }

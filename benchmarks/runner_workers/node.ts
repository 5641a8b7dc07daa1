export const queue = 'node'
export default async (input: unknown) => input

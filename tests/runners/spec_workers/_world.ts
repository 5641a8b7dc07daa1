// What the worker files of the specs call without importing it.
let tries = 0
Object.assign(globalThis, {
  db: { createOrder: async (input: any) => ({ id: input.id, total: 12 }) },
  shipOrder: async () => {},
  makeThumb: async (url: string) => `${url}?thumb`,
  fetchData: async () => {
    if (++tries < 2) throw new Error('down')
    return { rows: 3 }
  },
})

import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

const client = fileURLToPath(new URL('../packages/client/src/index.ts', import.meta.url))

export default defineConfig({
  resolve: { alias: { penstock: client } },
  test: { environment: 'node' },
})

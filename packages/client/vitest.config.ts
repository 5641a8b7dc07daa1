import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['tests/**/*.test.{ts,tsx}'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Node 20 has WebSocket behind a flag; later ones have it without.
    execArgv: ['--experimental-websocket'],
    maxWorkers: 1,
  },
})

import { fileURLToPath } from 'node:url'
import vue from '@vitejs/plugin-vue'
import { defineConfig } from 'vite'

const client = fileURLToPath(new URL('../packages/client/src/index.ts', import.meta.url))

export default defineConfig({
  base: './', // the server writes <base> into the page: the same build works at any place
  plugins: [vue({ features: { optionsAPI: false } })],
  resolve: { alias: { penstock: client } },
  define: { __VUE_OPTIONS_API__: 'false', __VUE_PROD_DEVTOOLS__: 'false' },
  build: { target: 'es2022', modulePreload: { polyfill: false }, assetsInlineLimit: 0, reportCompressedSize: false },
  server: { proxy: { '/api': { target: 'http://127.0.0.1:8765', ws: true } } },
})

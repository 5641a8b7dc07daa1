// Keys: two letters go to a page, one letter acts on the page that is shown.

import { onScopeDispose, ref } from 'vue'
import { router } from '../router'

export const paletteShown = ref(false)
export const keysShown = ref(false)

export interface Key {
  key: string
  text: string
  act: () => void
}

const ofPage = ref<Key[]>([])
export const pageKeys = ofPage

const PAGES: Record<string, string> = { o: 'overview', r: 'runs', f: 'flows', n: 'entities', q: 'queues', d: 'letters', w: 'waits', s: 'schedules', e: 'events', k: 'workers', l: 'alerts', a: 'audit', ',': 'settings' }

/** Add keys while the component lives. */
export function useKeys(keys: Key[]): void {
  ofPage.value = [...ofPage.value, ...keys]
  onScopeDispose(() => (ofPage.value = ofPage.value.filter((one) => !keys.includes(one))))
}

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || ['INPUT', 'TEXTAREA', 'SELECT'].includes(target.tagName))

/** Listen to keys; called once by the shell. */
export function installKeys(): void {
  let isGoing = false
  window.addEventListener('keydown', (event) => {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === 'k') {
      event.preventDefault()
      paletteShown.value = !paletteShown.value
      return
    }
    if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target) || document.querySelector('[role=dialog]')) return
    if (isGoing) {
      isGoing = false
      const page = PAGES[event.key]
      if (page) return void (event.preventDefault(), router.push({ name: page }))
    }
    if (event.key === 'g') return void (isGoing = true, setTimeout(() => (isGoing = false), 1200))
    if (event.key === '?') return void (keysShown.value = true)
    const found = ofPage.value.findLast((one) => one.key === event.key)
    if (found) (event.preventDefault(), found.act())
  })
}

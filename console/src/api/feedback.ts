// Toasts: the outcome of an action, or the reason why it was refused.

import { ApiError } from 'penstock'
import { reactive } from 'vue'
import type { RouteLocationRaw } from 'vue-router'

export interface Toast {
  id: number
  state: 'ok' | 'error'
  text: string
  code?: string
  to?: RouteLocationRaw
  link?: string
}

export const toasts = reactive<Toast[]>([])
let numbers = 0

export function toast(text: string, more: Partial<Toast> = {}): void {
  const id = ++numbers
  toasts.push({ id, state: 'ok', text, ...more })
  setTimeout(() => dismiss(id), more.state === 'error' ? 12_000 : 6_000)
}

export function dismiss(id: number): void {
  const at = toasts.findIndex((one) => one.id === id)
  if (at >= 0) toasts.splice(at, 1)
}

export function showError(problem: unknown): void {
  if (problem instanceof ApiError) toast(problem.message, { state: 'error', code: problem.code })
  else toast(String(problem), { state: 'error' })
}

/** Do something; a failure becomes a toast. Return whether it worked. */
export async function attempt(work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work()
    return true
  } catch (problem) {
    showError(problem)
    return false
  }
}

/** Copy a text to the clipboard. */
export async function copy(text: string, what = 'Copied'): Promise<void> {
  try {
    await navigator.clipboard.writeText(text)
    toast(what)
  } catch {
    toast('The browser did not allow to copy; the text is selected in the page.', { state: 'error' })
  }
}

// Lists that stay still while somebody reads them: rows change in place, new ones wait for a click.

import { shallowRef, watch, type Ref, type ShallowRef } from 'vue'

const SCROLLED_PX = 40

/** Whether somebody reads a list: the pointer is over it, it has the focus, or the page is scrolled. */
export function isRead(list: HTMLElement | undefined): boolean {
  if (!list) return false
  return list.matches(':hover') || list.contains(document.activeElement) || (list.closest('main')?.scrollTop ?? 0) > SCROLLED_PX
}

export interface Pinned<Row> {
  shown: ShallowRef<Row[]>
  /** Rows that arrived while the list was read. */
  fresh: ShallowRef<Row[]>
  /** Rows that are shown and no longer there. */
  gone: ShallowRef<Set<string>>
  /** Show what is there now. */
  showFresh: () => void
  /** Show what is there after the reader's own action. */
  settle: () => void
}

/** Pin the rows of a list. A change of `by` is another list. */
export function usePinned<Row>(list: Ref<HTMLElement | undefined>, found: () => Row[] | undefined, idOf: (row: Row) => string, by: () => unknown = () => ''): Pinned<Row> {
  const shown = shallowRef<Row[]>([])
  const fresh = shallowRef<Row[]>([])
  const gone = shallowRef(new Set<string>())
  let isSettling = true
  const showFresh = (): void => {
    shown.value = found() ?? []
    fresh.value = []
    gone.value = new Set()
  }
  watch(by, () => ((isSettling = true), (shown.value = []), (fresh.value = [])))
  watch(found, (rows) => {
    if (!rows) return
    if (isSettling || !shown.value.length || !isRead(list.value)) return (isSettling = false), showFresh()
    const now = new Map(rows.map((row) => [idOf(row), row]))
    const known = new Set(shown.value.map(idOf))
    shown.value = shown.value.map((row) => now.get(idOf(row)) ?? row)
    gone.value = new Set([...known].filter((id) => !now.has(id)))
    fresh.value = rows.filter((row) => !known.has(idOf(row)))
  }, { immediate: true })
  return { shown, fresh, gone, showFresh, settle: () => void (isSettling = true) }
}

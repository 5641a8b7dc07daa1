// The runs of a search: a page that follows the server, with older runs below it.

import type { api as types } from 'penstock'
import { computed, ref, shallowRef, watch, type Ref } from 'vue'
import { attempt } from '../api/feedback'
import { RUN_KINDS, useLive } from '../api/live'
import { isRead } from '../api/pinned'
import { api } from '../api/session'
import { parseSearch, toQuery } from './search'

export const PAGE = 100
const OLDER = 500

export function useRunList(query: () => string, list: Ref<HTMLElement | undefined>) {
  const filter = computed(() => toQuery(parseSearch(query()).filter))
  const cursor = ref(-1)
  const shown = shallowRef<types.RunSummary[]>([])
  const next = ref<string | null>()
  const fresh = shallowRef<types.RunSummary[]>([])
  const gone = shallowRef(new Set<string>())
  let isSettling = true
  let isLoading = false

  const page = useLive(() => api.listRuns({ query: { ...filter.value, limit: PAGE } }), { on: { kinds: RUN_KINDS }, by: query })
  watch(query, () => ((shown.value = []), (fresh.value = []), (gone.value = new Set()), (cursor.value = -1), (isSettling = true)))
  watch(page.data, (found) => {
    if (!found) return
    const isReading = shown.value.length > 0 && !isSettling && (cursor.value >= 0 || isRead(list.value))
    isSettling = false
    if (!isReading) return adopt(found)
    // Rows change in place; new ones wait for a click, so that nothing moves under the reader's eye.
    const now = new Map(found.items.map((run) => [run.id, run]))
    const known = new Set(shown.value.map((run) => run.id))
    const oldest = found.next ? found.items.at(-1)?.startedAt ?? '' : ''
    shown.value = shown.value.map((run) => now.get(run.id) ?? run)
    gone.value = new Set(shown.value.filter((run) => run.startedAt > oldest && !now.has(run.id)).map((run) => run.id))
    fresh.value = found.items.filter((run) => !known.has(run.id))
  })
  function adopt(found: types.RunPage): void {
    const now = new Set(found.items.map((run) => run.id))
    const isJoined = shown.value.some((run) => now.has(run.id)) // otherwise there are runs between the page and what is shown
    const oldest = found.items.at(-1)?.startedAt ?? ''
    const older = found.next && isJoined ? shown.value.filter((run) => !now.has(run.id) && run.startedAt <= oldest) : []
    shown.value = [...found.items, ...older]
    if (!older.length) next.value = found.next
    fresh.value = []
    gone.value = new Set()
  }
  const showFresh = (): void => {
    if (page.data.value) adopt(page.data.value)
    cursor.value = -1
    list.value?.closest('main')?.scrollTo({ top: 0 })
  }
  const more = async (): Promise<void> => {
    if (isLoading || !next.value) return
    isLoading = true
    const of = query()
    await attempt(async () => {
      const found = await api.listRuns({ query: { ...filter.value, limit: OLDER, before: next.value } })
      if (of !== query()) return
      shown.value = [...shown.value, ...found.items]
      next.value = found.next
    })
    isLoading = false
  }
  return { page, cursor, shown, fresh, gone, next, showFresh, more, settle: () => void (isSettling = true) }
}

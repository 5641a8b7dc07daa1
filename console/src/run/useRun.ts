// The events of a run, loaded once and then followed live, and the fold of them at the chosen moment.

import { ApiError, type EventRecord } from 'penstock'
import { computed, onScopeDispose, ref, shallowRef } from 'vue'
import { isHidden, isPaused } from '../api/live'
import { api, events as stream, session } from '../api/session'
import { Fold, foldFirst } from './fold'

const PAGE = 1000

export const seqOf = (id: string): number => Number(id.slice(id.indexOf('-') + 1))

export function useRun(id: string, at: () => number | undefined) {
  const events: EventRecord[] = []
  const live = new Fold()
  const version = ref(0)
  const error = ref<ApiError>()
  const isLoaded = ref(false)
  const dag = shallowRef<any>()
  const arrived: EventRecord[] = []
  let close = (): void => {}
  let isOver = false
  let frame = 0

  const take = (found: EventRecord[]): void => {
    for (const event of found) {
      const seq = seqOf(event.id)
      if (events.length && seq <= seqOf(events.at(-1)!.id)) continue
      events.push(event)
      live.apply(event)
    }
    version.value++
  }
  const flush = (): void => {
    frame = 0
    if (isPaused.value) return void (frame = window.setTimeout(flush, 300))
    take(arrived.splice(0))
  }
  const load = async (): Promise<void> => {
    try {
      let after: string | null | undefined = undefined
      do {
        const page: { items: EventRecord[]; next?: string | null } = await api.readTimeline({ id, query: { after, limit: PAGE } })
        if (isOver) return
        take(page.items)
        after = page.next
      } while (after)
      // A run of a flow records the queue of its first step; one of a dag has none.
      if (events[0]?.data?.queue === undefined) dag.value = await api.getDagOfRun({ run: id }).catch(() => undefined)
      if (isOver) return
      isLoaded.value = true
      const name = `${session.namespace}:${dag.value ? 'dag' : 'flow'}:${id}`
      const subscription = stream().subscribe({ stream: name, after: events.at(-1)?.id ?? '' }, {
        onMessage: ({ event }) => {
          arrived.push(event)
          frame ||= isHidden.value ? window.setTimeout(flush, 200) : requestAnimationFrame(flush)
        },
        onError: (problem) => (error.value = problem),
      })
      close = () => subscription.close()
    } catch (problem) {
      error.value = problem instanceof ApiError ? problem : new ApiError(0, 'console', String(problem))
    }
  }
  void load()
  onScopeDispose(() => ((isOver = true), close(), cancelAnimationFrame(frame), clearTimeout(frame)))

  let kept: { at: number; fold: Fold } | undefined
  /** The fold to show, in a new object for each change. */
  const shown = computed(() => {
    const number = version.value
    const seq = at()
    if (seq === undefined || seq >= events.length) return { fold: live, number }
    if (kept === undefined || kept.at > seq) kept = { at: seq, fold: foldFirst(events, seq) }
    while (kept.at < seq) kept.fold.apply(events[kept.at++]!)
    return { fold: kept.fold, number: -seq - 1 }
  })
  return { events, version, shown, live, error, isLoaded, dag }
}

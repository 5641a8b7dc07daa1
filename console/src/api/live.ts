// Data that follows the server: loaded, then loaded again when an event of a kind it depends on arrives.

import { ApiError, type Selector } from 'penstock'
import { onScopeDispose, ref, shallowRef, watch, type Ref, type ShallowRef } from 'vue'
import { events, session } from './session'

/** Whether pages follow the server. The button in the bar pauses all of them. */
export const isPaused = ref(false)
export const isHidden = ref(document.hidden)
document.addEventListener('visibilitychange', () => (isHidden.value = document.hidden))

export interface Live<Value> {
  data: ShallowRef<Value | undefined>
  error: Ref<ApiError | undefined>
  isLoading: Ref<boolean>
  reload: () => Promise<void>
}

export interface LiveOptions {
  /** Load again after an event of these kinds; without `kinds`, after any event of the selector. */
  on?: Selector | (() => Selector | undefined)
  /** Load again after this many milliseconds, too. */
  every?: number
  /** At most one load in this many milliseconds. */
  pace?: number
  /** Load again when this changes. */
  by?: () => unknown
}

/** Load a value and keep it up to date while the component lives, the tab is visible and nobody paused. */
export function useLive<Value>(load: () => Promise<Value>, options: LiveOptions = {}): Live<Value> {
  const data = shallowRef<Value>()
  const error = ref<ApiError>()
  const isLoading = ref(false)
  let asked = 0
  let isStale = false
  let lastAt = 0
  let timer: ReturnType<typeof setTimeout> | undefined

  const reload = async (): Promise<void> => {
    const number = ++asked
    isLoading.value = true
    isStale = false
    lastAt = performance.now()
    try {
      const value = await load()
      if (number === asked) (data.value = value), (error.value = undefined)
    } catch (problem) {
      if (number === asked) error.value = problem instanceof ApiError ? problem : new ApiError(0, 'console', String(problem))
    } finally {
      if (number === asked) isLoading.value = false
    }
  }
  const request = (): void => {
    if (isPaused.value || isHidden.value) return void (isStale = true)
    if (timer !== undefined) return
    const wait = Math.max(0, (options.pace ?? 700) - (performance.now() - lastAt))
    timer = setTimeout(() => ((timer = undefined), void reload()), wait)
  }
  const every = options.every ? setInterval(request, options.every) : undefined
  watch([isPaused, isHidden], () => isStale && request())
  watch(() => session.stream, (now, before) => now === 'open' && before === 'reconnecting' && request())
  if (options.on) follow(options.on, request)
  // What happened between the load and the start of the subscription sent no message.
  const late = options.on ? setTimeout(request, 1500) : undefined
  watch(() => options.by?.(), () => void reload())
  void reload()
  onScopeDispose(() => {
    clearInterval(every)
    clearTimeout(timer)
    clearTimeout(late)
    asked++
  })
  return { data, error, isLoading, reload }
}

function follow(on: NonNullable<LiveOptions['on']>, request: () => void): void {
  let close = (): void => {}
  const start = (): void => {
    close()
    const selector = typeof on === 'function' ? on() : on
    if (!selector) return
    const subscription = events().subscribe({ backfill: 0, ...selector }, { onMessage: request, onError: () => {} })
    close = () => subscription.close()
  }
  start()
  if (typeof on === 'function') watch(on, (now, before) => JSON.stringify(now) !== JSON.stringify(before) && start())
  onScopeDispose(() => close())
}

export const RUN_KINDS = ['flow.started', 'flow.completed', 'flow.failed', 'flow.cancelled', 'flow.compensated', 'flow.compensating', 'flow.paused', 'flow.resumed', 'flow.reopened', 'flow.forked', 'step.await.event', 'step.await.trigger', 'step.await.time', 'step.await.call', 'step.resumed', 'step.await.timeout']
export const JOB_KINDS = ['job.added', 'job.active', 'job.completed', 'job.failed', 'job.cancelled', 'job.returned', 'step.started', 'step.completed', 'step.failed', 'step.redriven', 'step.retry']
export const WAIT_KINDS = ['step.await.event', 'step.await.trigger', 'step.await.time', 'step.await.call', 'step.resumed', 'step.await.timeout', 'step.await.cancelled', 'flow.cancelled']
export const LETTER_KINDS = ['step.failed', 'job.failed', 'step.redriven', 'job.added', 'flow.reopened']
export const ENTITY_KINDS = ['entity.created', 'entity.received', 'entity.transitioned', 'entity.kept', 'entity.refused', 'entity.failed', 'entity.closed', 'entity.paused', 'entity.resumed']

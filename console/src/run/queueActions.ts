// Actions on a queue that two pages have.

import type { api as types } from 'penstock'
import { plural } from '../api/format'
import { api } from '../api/session'
import type { Action } from '../components/ActionDialog.vue'

/** Pause a queue, or resume it: what it has now says what would happen. */
export function pauseAction(queue: types.QueueView): Action {
  const { name } = queue
  const has = async () => (await api.getQueue({ queue: name })).counts
  if (queue.paused) return { title: `Resume ${name}`, button: 'Resume', preview: async () => `${plural((await has()).waiting ?? 0, 'waiting job')} would start as slots are free.`, act: async () => (await api.resumeQueue({ queue: name }), { text: `${name} continues.` }) }
  return { title: `Pause ${name}`, button: 'Pause', preview: async () => {
    const { waiting = 0, active = 0 } = await has()
    return `${plural(active, 'running job')} would end as usual, ${plural(waiting, 'waiting job')} and those that come would stay until the queue is resumed.`
  }, act: async () => (await api.pauseQueue({ queue: name }), { text: `${name} is paused.` }) }
}

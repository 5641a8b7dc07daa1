// From a folded state to what people see, and back from the snapshot that a server sends.

import { newFlowState, newStepState, type FlowState, type RunStatus, type StepState } from './state.js'
import { dict, text, valuesOf } from './values.js'

/** Return `waiting` for a running run whose open steps all wait, and its status for any other. */
export function displayStatus(state: FlowState): RunStatus {
  if (state.status !== 'running') return state.status
  const statuses = Object.values(state.steps).map((step) => step.status)
  if (statuses.some((one) => ['pending', 'running', 'retrying', 'timeout'].includes(one))) return 'running'
  return statuses.includes('waiting') ? 'waiting' : 'running'
}

/** Return a copy with what follows from the state: the status that people see, counts, and the first wait. */
export function viewOf(state: FlowState): FlowState {
  const steps = Object.values(state.steps)
  const waiting = steps.find((step) => step.status === 'waiting')
  const data = valuesOf(waiting?.awaitData)
  return {
    ...copy(state),
    status: displayStatus(state),
    logsCount: state.logs.length,
    lastLogLevel: state.logs.at(-1)?.level,
    lastEventAt: state.lastEvent && new Date(Number(state.lastEvent.split('-')[0])).toISOString(),
    waitingFor: waiting?.awaitType,
    waitStep: waiting && (waiting.n === 1 ? waiting.step : `${waiting.step}#${waiting.n}`),
    waitUntil: text(data, 'resumeAt') ?? text(data, 'until'),
    waitTrigger: text(data, 'triggerId'),
  }
}

/** Return the state that a server's view of a run was made of, to apply further events to. */
export function stateOf(view: Partial<FlowState>): FlowState {
  const state = copy({ ...newFlowState(), ...view })
  if (state.status === 'waiting') state.status = 'running'
  return state
}

/** Return a copy that shares no container with the original, so that a view is never changed after it was shown. */
function copy(state: FlowState): FlowState {
  const steps = dict<StepState>()
  for (const [key, step] of Object.entries(state.steps)) {
    const whole = { ...newStepState(step.step, step.n), ...step }
    const calls = Object.assign(dict(), Object.fromEntries(Object.entries(whole.calls).map(([name, call]) => [name, { ...call }])))
    steps[key] = { ...whole, partials: [...whole.partials], alsoAwaits: [...whole.alsoAwaits], calls }
  }
  const { emitted, logs, unreadableEvents } = state
  const lists = { emitted: [...emitted], logs: [...logs], unreadableEvents: [...unreadableEvents] }
  return { ...state, ...lists, steps, state: Object.assign(dict(), state.state) }
}

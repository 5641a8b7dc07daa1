// The graph of a run: the flow's diagram with the state of each step, or what the events show.

import { duration } from '../api/format'
import type { Fold } from './fold'
import type { GraphEdge, GraphNode } from './layout'

interface Diagram { nodes: any[]; edges: any[] }
const ORDER = ['failed', 'timeout', 'running', 'retrying', 'waiting', 'pending', 'cancelled', 'completed', 'skipped']

/** Return the declared wait of a node in words. */
function waitOf(node: any): string | undefined {
  if (!node.await) return undefined
  const what = node.await.eventKind ?? node.await.type
  return `⏱ ${what}${node.await.timeout ? `, ${typeof node.await.timeout === 'number' ? duration(node.await.timeout) : node.await.timeout}` : ''}`
}

/** Return the nodes and edges of a flow or a dag. */
export function diagramGraph(diagram: Diagram | undefined): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const nodes = (diagram?.nodes ?? []).map((node) => ({ id: String(node.id), label: String(node.label ?? node.id), kind: String(node.type ?? 'step'), wait: waitOf(node) }))
  const edges = (diagram?.edges ?? []).filter((edge) => edge.from !== edge.to).map((edge) => ({
    from: String(edge.from), to: String(edge.to), label: edge.condition ? `${edge.label ?? ''} if ${edge.condition}` : edge.label, kind: edge.type ?? (edge.label?.includes('compensated') ? 'compensation' : ''),
  }))
  return { nodes, edges }
}

/** Return the graph with the states of a run. */
export function runGraph(fold: Fold, diagram: Diagram | undefined): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const { nodes, edges } = diagramGraph(diagram)
  const byStep = new Map<string, Record<string, number>>()
  for (const step of Object.values(fold.state.steps)) {
    const counts = byStep.get(step.step) ?? {}
    counts[step.status] = (counts[step.status] ?? 0) + 1
    byStep.set(step.step, counts)
  }
  const known = new Set(nodes.map((node) => node.id))
  for (const step of byStep.keys()) if (!known.has(step)) nodes.push({ id: step, label: step, kind: 'step', wait: undefined })
  const links = new Set(edges.map((edge) => `${edge.from}\n${edge.to}`))
  for (const edge of fold.edges.values()) if (!links.has(`${edge.from}\n${edge.to}`)) edges.push({ ...edge, label: undefined, kind: '' })
  return {
    edges,
    nodes: nodes.map((node) => {
      const counts = byStep.get(node.id)
      if (!counts) return node
      const total = Object.values(counts).reduce((sum, one) => sum + one, 0)
      const step = fold.state.steps[node.id]
      const tries = step && step.attempt > 1 ? `attempt ${step.attempt}` : undefined
      const note = tries ?? (step?.duration !== undefined ? duration(step.duration) : undefined)
      return { ...node, state: ORDER.find((one) => counts[one]), ...(total > 1 ? { counts, note: `${total}×` } : { note }) }
    }),
  }
}

// The state chart of a type of entities, as a graph.

import { count } from '../api/format'
import type { GraphEdge, GraphNode } from './layout'

interface Chart { nodes: { id: string; type: string }[]; edges: { from: string; to: string; label: string }[] }

/** Return the chart with the number of entities in each state, or with the state of one entity marked. */
export function stateGraph(chart: Chart | undefined, counts: Record<string, number> | undefined, current?: string): { nodes: GraphNode[]; edges: GraphEdge[] } {
  const edges = chart?.edges ?? []
  const loops = (id: string): string => [...new Set(edges.filter((edge) => edge.from === id && edge.to === id).map((edge) => edge.label))].join(', ')
  const merged = new Map<string, GraphEdge>()
  for (const edge of edges) {
    if (edge.from === edge.to) continue
    const key = `${edge.from}\n${edge.to}`
    merged.set(key, { from: edge.from, to: edge.to, label: [merged.get(key)?.label, edge.label].filter(Boolean).join(', ') })
  }
  return {
    nodes: (chart?.nodes ?? []).map((node) => ({
      id: node.id, label: node.id, kind: node.type,
      ...(loops(node.id) ? { wait: `↻ ${loops(node.id)}` } : {}),
      ...(counts ? { note: `${count(counts[node.id])} here` } : {}),
      ...(node.id === current ? { state: 'current' } : {}),
    })),
    edges: [...merged.values()],
  }
}

// Where the nodes and edges of a graph are drawn.

import { graphlib, layout as dagre } from '@dagrejs/dagre'

export interface GraphNode {
  id: string
  label: string
  kind: string
  /** The declared wait, such as `⏱ payment.confirmed, 24 h`. */
  wait?: string
  state?: string
  /** Instances by state, if there are several. */
  counts?: Record<string, number>
  note?: string
}
export interface GraphEdge {
  from: string
  to: string
  label?: string
  kind?: string
}
export interface Placed {
  nodes: (GraphNode & { x: number; y: number; width: number; height: number })[]
  edges: (GraphEdge & { path: string; x: number; y: number })[]
  width: number
  height: number
}

export const NODE_WIDTH = 168

const SMALL = 100

/** Place a graph in a box: a small one in the direction in which its letters are larger. */
export function placeIn(nodes: GraphNode[], edges: GraphEdge[], box: { width: number; height: number }): Placed {
  if (nodes.length > SMALL) return place(nodes, edges, box.width > 560)
  const zoom = (one: Placed): number => Math.min(1, box.width / one.width, box.height / one.height)
  const [wide, high] = [place(nodes, edges, true), place(nodes, edges, false)]
  return zoom(high) > zoom(wide) * 1.1 ? high : wide
}

export function place(nodes: GraphNode[], edges: GraphEdge[], isWide = true): Placed {
  const graph = new graphlib.Graph({ multigraph: true })
  graph.setGraph({ rankdir: isWide ? 'LR' : 'TB', nodesep: 18, ranksep: isWide ? 40 : 26, edgesep: 12, marginx: 16, marginy: 16 })
  graph.setDefaultEdgeLabel(() => ({}))
  for (const node of nodes) graph.setNode(node.id, { width: NODE_WIDTH, height: 40 + (node.wait ? 18 : 0) + (node.counts ? 16 : 0) })
  edges.forEach((edge, at) => edge.from !== edge.to && graph.hasNode(edge.from) && graph.hasNode(edge.to) && graph.setEdge(edge.from, edge.to, edge.label ? { width: Math.min(edge.label.length, 22) * 5.6 + 10, height: 14, labelpos: 'c' } : {}, String(at)))
  dagre(graph)
  const size = graph.graph() as { width: number; height: number }
  return {
    nodes: nodes.map((node) => ({ ...node, ...(graph.node(node.id) as { x: number; y: number; width: number; height: number }) })),
    edges: edges.flatMap((edge, at) => {
      const found = graph.edge({ v: edge.from, w: edge.to, name: String(at) }) as { points: { x: number; y: number }[]; x?: number; y?: number } | undefined
      if (!found) return []
      const middle = found.points[Math.floor(found.points.length / 2)]!
      return [{ ...edge, path: curve(found.points), x: found.x ?? middle.x, y: found.y ?? middle.y }]
    }),
    width: Number.isFinite(size.width) ? size.width : 300,
    height: Number.isFinite(size.height) ? size.height : 120,
  }
}

function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points
  let path = `M${first!.x},${first!.y}`
  for (let at = 0; at < rest.length; at++) {
    const point = rest[at]!
    const next = rest[at + 1]
    path += next ? ` Q${point.x},${point.y} ${(point.x + next.x) / 2},${(point.y + next.y) / 2}` : ` L${point.x},${point.y}`
  }
  return path
}

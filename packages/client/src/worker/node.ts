// What the executor of a node returns if it is more than data.

/** Marks it, also for a host that has loaded another copy of this package. */
export const NODE_OUTCOME: unique symbol = Symbol.for('penstock.node.outcome') as never

export interface NodeOutcome {
  readonly [NODE_OUTCOME]: 'skip' | 'fail' | 'next'
}

/** The node is skipped. */
export const skip = (reason = ''): NodeOutcome & { reason: string } => ({ [NODE_OUTCOME]: 'skip', reason })

/** The attempt failed. `retry` is false, or the delay of the next attempt. */
export const fail = (
  reason: string, { retry = true }: { retry?: boolean | number | string } = {},
): NodeOutcome & { reason: string; retry: boolean | number | string } => ({ [NODE_OUTCOME]: 'fail', reason, retry })

/** Of the nodes after this one, only these follow. */
export const next = (nodes: string | string[], data: unknown = null): NodeOutcome & { nodes: string[]; data: unknown } => ({
  [NODE_OUTCOME]: 'next', nodes: [nodes].flat(), data,
})

// Blobs that a value refers to.

/** The key of the store's own reference to a large value. */
const REFERENCE = '$penstock:blob'

export interface BlobLink {
  /** The key of a blob of the user, which can be downloaded; undefined for a large value that was not read. */
  key?: string
  /** A signed address of this server or of a bucket. */
  url?: string
  text: string
}

/** Return the blob that a value refers to: what `ctx.blob.put` returns, a signed URL, or a reference to a large value. */
export function blobOf(value: unknown, root: string): BlobLink | undefined {
  if (typeof value === 'string') return value.startsWith(`${root}/api/blobs/`) ? { url: value, text: 'Download' } : undefined
  if (typeof value !== 'object' || value === null) return undefined
  const one = value as Record<string, unknown>
  if (typeof one[REFERENCE] === 'string') return { text: 'A large value: this server has no blob store to read it' }
  const type = one.contentType ?? one.content_type ?? one.type
  if (typeof one.key !== 'string' || typeof one.size !== 'number' || typeof type !== 'string' || !type.includes('/')) return undefined
  return { key: one.key, text: `Download ${one.key.split('/').at(-1)}` }
}

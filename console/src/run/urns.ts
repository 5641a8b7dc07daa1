// The id of an entity is its urn in a form that fits into the name of a stream.

/** Return the urn of an id, or the id where it is a hash of a long urn. */
export function urnOf(id: string): string {
  if (!id.startsWith('x.')) return id
  try {
    return decodeURIComponent(id.slice(2).replaceAll('%', '%25').replaceAll('--', ':').replace(/-([0-9a-f]{2})/g, '%$1'))
  } catch {
    return id
  }
}

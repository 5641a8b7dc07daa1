// Who uses the console, and the connection to the server.

import { ApiError, createClient, createEventStream, type Client, type EventStream, type StreamStatus } from 'penstock'
import { computed, reactive, shallowRef } from 'vue'

const TOKEN = 'penstock.token'
const RANK = { viewer: 0, operator: 1, admin: 2 } as const
export type Role = keyof typeof RANK

/** Where the application is mounted: the console is at `console/` below it. */
export const root = new URL('../', document.baseURI).href.replace(/\/$/, '')
const namespaceOfPage = document.querySelector<HTMLMetaElement>('meta[name=penstock-namespace]')?.content ?? 'nq'

export const session = reactive({
  state: 'starting' as 'starting' | 'login' | 'ready' | 'unreachable',
  problem: '',
  name: '',
  role: 'viewer' as Role,
  namespace: namespaceOfPage,
  version: '',
  hasToken: false,
  stream: 'idle' as StreamStatus,
})

const connection = shallowRef<{ client: Client; stream: EventStream }>()

/** The REST client. Requests that are refused for want of a token show the login. */
export const api = new Proxy({} as Client, {
  get: (_target, name: keyof Client) => {
    const method = connection.value!.client[name] as (options: any) => Promise<any>
    if (typeof method !== 'function') return method
    return (options: any) => method(options).catch((problem: unknown) => {
      if (problem instanceof ApiError && problem.status === 401) Object.assign(session, { state: 'login', problem: problem.message })
      throw problem
    })
  },
})

export const events = (): EventStream => connection.value!.stream
export const can = (role: Role): boolean => RANK[session.role] >= RANK[role]
export const isOperator = computed(() => can('operator'))
export const isAdmin = computed(() => can('admin'))

/** Connect with a token, or with the one that was used before. */
export async function connect(token?: string): Promise<void> {
  const text = token ?? sessionStorage.getItem(TOKEN) ?? localStorage.getItem(TOKEN) ?? undefined
  connection.value?.stream.close()
  const client = createClient(text ? { url: root, token: text } : { url: root })
  const stream = createEventStream({ client, namespace: session.namespace, onStatus: (status) => void (session.stream = status) })
  connection.value = { client, stream }
  try {
    Object.assign(session, await client.getSession(), { state: 'ready', problem: '', hasToken: Boolean(text) })
    // It holds the connection while one page closes its subscriptions and the next opens its own.
    stream.subscribe({ kinds: ['console.held'] }, { onMessage: () => {}, onError: () => {} })
  } catch (problem) {
    const error = problem as ApiError
    const state = error.status === 401 || error.status === 403 ? 'login' : 'unreachable'
    Object.assign(session, { state, problem: text || error.status !== 401 ? error.message : '' })
    if (state === 'unreachable') setTimeout(() => session.state === 'unreachable' && void connect(token), 2000)
  }
}

/** Keep a token that works: for this tab, or on this machine. */
export async function login(token: string, remember: boolean): Promise<void> {
  await connect(token)
  if (session.state !== 'ready') return
  sessionStorage.setItem(TOKEN, token)
  if (remember) localStorage.setItem(TOKEN, token)
}

export function logout(): void {
  sessionStorage.removeItem(TOKEN)
  localStorage.removeItem(TOKEN)
  location.reload()
}

/** Read a blob with the token of this page. */
export async function readBlob(key: string): Promise<Blob> {
  const response = await api.connection.fetch(`/api/_blobs/${key.split('/').map(encodeURIComponent).join('/')}`)
  return response.blob()
}

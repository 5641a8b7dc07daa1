/** An error of the server: its HTTP status, a stable code, and a sentence. Status 0: no answer came. */
export class ApiError extends Error {
  override readonly name = 'ApiError'
  readonly status: number
  readonly code: string
  readonly hint: string | undefined
  readonly detail: unknown

  constructor(status: number, code: string, message: string, more: { hint?: string; detail?: unknown; cause?: unknown } = {}) {
    super(message, { cause: more.cause })
    this.status = status
    this.code = code
    this.hint = more.hint
    this.detail = more.detail
  }
}

/** Return the error of an answer, also if a proxy wrote it. */
export async function toApiError(response: Response): Promise<ApiError> {
  const text = await response.text()
  try {
    const { code, message, hint, detail } = JSON.parse(text).error
    return new ApiError(response.status, code, message, { hint, detail })
  } catch {
    return new ApiError(response.status, 'http_error', `${response.url} answered ${response.status}: ${text.slice(0, 200)}`)
  }
}

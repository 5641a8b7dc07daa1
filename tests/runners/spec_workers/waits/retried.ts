// In worker config
export const config = {
  retryPolicy: {
    attempts: 3,                              // Max retry attempts
    backoff: {
      type: 'exponential',                    // 'fixed' | 'exponential'
      delayMs: 1000,                          // Base delay
      maxDelayMs: 60000,                      // Cap for exponential
    },
    retriableErrors: ['NetworkError', 'TimeoutError'], // Optional: only retry specific errors
  }
}
export default async function handle(input, ctx) {
  ctx.emit({ kind: 'tried', data: ctx.attempt })
  const error = new Error('down')
  error.name = ctx.attempt < 3 ? 'NetworkError' : 'OtherError'
  throw error
}

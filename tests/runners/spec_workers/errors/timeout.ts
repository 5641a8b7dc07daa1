export const config = { flow: { id: 'errors', role: 'main' }, retryPolicy: { attempts: 3 } }

export default async function handle(input, ctx) {
  if (ctx.attempt === 1) {
    throw new Error('Network timeout', { 
      code: 'NETWORK_TIMEOUT',
      retriable: true,              // Hint to retry policy
      retryAfter: 5000,            // Override default backoff
    })
  }
  throw new Error('Invalid input', { 
    retriable: false,            // Skip retries, fail immediately
  })
}

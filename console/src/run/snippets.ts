// A run as a command, as code and as a test.

export function snippets(run: { id: string; flow: string; input: unknown; root: string }): { name: string; text: string }[] {
  const json = JSON.stringify(run.input ?? null)
  const quoted = `'${json.replaceAll("'", `'\\''`)}'`
  const python = toPython(run.input ?? null)
  return [
    { name: 'CLI', text: `penstock start ${shell(run.flow)} --input ${quoted}` },
    { name: 'Python', text: `run = await app.start(${JSON.stringify(run.flow)}, ${python})\nprint(await run.result())` },
    { name: 'curl', text: `curl -X POST ${shell(`${run.root}/api/_flow/${encodeURIComponent(run.flow)}/runs`)} -H 'content-type: application/json' -d '{"input": '${quoted}'}'` },
    { name: 'pytest', text: `async def test_${run.flow.replace(/\W/g, '_')}(app):\n    run = await app.start(${JSON.stringify(run.flow)}, ${python})\n    assert await run.result() is not None` },
  ]
}

const shell = (text: string): string => (/^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`)

/** Return JSON as a Python literal. */
export function toPython(value: unknown): string {
  if (value === null) return 'None'
  if (value === true) return 'True'
  if (value === false) return 'False'
  if (Array.isArray(value)) return `[${value.map(toPython).join(', ')}]`
  if (typeof value === 'object') return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${toPython(one)}`).join(', ')}}`
  return JSON.stringify(value)
}

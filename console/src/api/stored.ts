import { ref, watch, type Ref } from 'vue'

/** A value that this browser keeps. */
export function stored<Value>(name: string, first: Value): Ref<Value> {
  const key = `penstock.${name}`
  let value = first
  try {
    value = JSON.parse(localStorage.getItem(key) ?? '') as Value
  } catch {
    // nothing was kept, or something that is no JSON
  }
  const kept = ref(value) as Ref<Value>
  watch(kept, (now) => localStorage.setItem(key, JSON.stringify(now)), { deep: true })
  return kept
}

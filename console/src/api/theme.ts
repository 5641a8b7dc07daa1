import { ref } from 'vue'

export const isDark = ref(document.documentElement.dataset.theme === 'dark')

export function toggleTheme(): void {
  isDark.value = !isDark.value
  document.documentElement.dataset.theme = isDark.value ? 'dark' : 'light'
  localStorage.setItem('penstock.theme', isDark.value ? 'dark' : 'light')
}

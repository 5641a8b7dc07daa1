// Before the first paint: the chosen theme, or that of the system.
try {
  const chosen = localStorage.getItem('penstock.theme')
  const dark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches
  document.documentElement.dataset.theme = dark ? 'dark' : 'light'
} catch {
  document.documentElement.dataset.theme = 'light'
}

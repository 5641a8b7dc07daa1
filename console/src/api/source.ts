// Places in source files, as links that open an editor.

import { stored } from './stored'

export const EDITORS: Record<string, string> = { 'VS Code': 'vscode://file', Cursor: 'cursor://file', Zed: 'zed://file', 'JetBrains': 'idea://open?file=' }
export const chosenEditor = stored('editor', 'VS Code')

/** Return a function from `/folder/file.py:12` to the address that opens it in the chosen editor. */
export function useEditor(): (place: string) => string {
  return (place) => {
    const start = EDITORS[chosenEditor.value] ?? EDITORS['VS Code']!
    const [, file, line] = /^(.*?)(?::(\d+))?$/.exec(place)!
    const path = encodeURI(file!.startsWith('/') ? file! : `/${file}`)
    if (start.endsWith('=')) return `${start}${path}${line ? `&line=${line}` : ''}`
    return `${start}${path}${line ? `:${line}` : ''}`
  }
}

/** Return the last three parts of a path. */
export const shortPath = (place: string): string => place.split(/[\\/]/).slice(-3).join('/')

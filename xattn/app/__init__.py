"""The viewer in the browser, `xattn app`: a core of plain functions, and a thin page of gradio over it.

Nothing here is imported by `import xattn`, and gradio only when the page is built.
"""

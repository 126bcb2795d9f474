"""The look of the report, on a screen of any width and on paper."""

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1a1a1a; font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2rem; } h3 { font-size: 1.05rem; }
blockquote { margin: 0; padding: .5rem .75rem; border-left: 4px solid #2f5d8a; background: #eef4fb;
  white-space: pre-wrap; }
code { font: .95em ui-monospace, monospace; padding: 0 .25em; border: 1px solid #9db5cf; border-radius: .2em;
  background: #eef4fb; white-space: pre; }
code.chosen { background: #ffe3b3; border-color: #8a5a00; font-weight: bold; }
.p { font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 3px solid #2f5d8a; }
table { border-collapse: collapse; margin: .5rem 0; }
caption { text-align: left; white-space: nowrap; font-weight: bold; padding: .25rem 0; }
th, td { border: 1px solid #b5b5b5; padding: .25rem .5rem; text-align: left; vertical-align: top; }
ul.tree, ul.tree ul { list-style: none; margin: 0; padding-left: 1rem; border-left: 1px solid #9db5cf; }
ul.tree { padding-left: 0; border: 0; width: max-content; }
ul.tree li { padding: .15rem 0; }
ul.candidates { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; margin: 0; padding: 0; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; }
summary { cursor: pointer; padding: .5rem 0; }
@media print {
  main { max-width: none; padding: 0; }
  .wide { overflow: visible; }
  figure, tr, li { break-inside: avoid; }
  details:not([open]) { display: none; }
}
"""

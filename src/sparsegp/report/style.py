"""The look of a page: wide and narrow screens, light and dark."""

STYLE = """
:root { --back: #f6f7f9; --card: #ffffff; --text: #1c2128; --soft: #59636e; --line: #d9dee4; --accent: #2563c4;
  --warn: #b42318; --warn-back: #fdecea; --note: #8a5a00; --note-back: #fdf3dc; --fine: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2127; --text: #e4e8ec; --soft: #9aa5b1;
  --line: #343b44; --accent: #79aaf0; --warn: #ff9a90; --warn-back: #3a1f1d; --note: #f0c36a; --note-back: #352b16;
  --fine: #6fd3a0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .8rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; overflow-wrap: anywhere; }
header p, figcaption, footer { color: var(--soft); }
header p { margin: .4rem 0 1.2rem; overflow-wrap: anywhere; }
figcaption, footer { font-size: .88rem; }
footer { margin-top: 2.5rem; }
.tiles { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); }
.tile, figure, .findings li, .wide { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.tile { padding: .8rem 1rem; display: flex; flex-direction: column; }
.tile strong { font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { font-size: .82rem; color: var(--soft); }
.tile .name { color: var(--accent); font-weight: 600; }
.findings { list-style: none; padding: 0; margin: 0; display: grid; gap: .6rem; }
.findings li { padding: .7rem 1rem; border-left: .3rem solid var(--line); overflow-wrap: anywhere; }
.findings .warning { border-left-color: var(--warn); }
.findings .notice { border-left-color: var(--note); }
.severity { font-size: .75rem; font-weight: 600; padding: .1rem .5rem; border-radius: 1rem; margin-right: .5rem; }
.warning .severity { color: var(--warn); background: var(--warn-back); }
.notice .severity { color: var(--note); background: var(--note-back); }
.try { color: var(--soft); }
.fine { color: var(--fine); font-weight: 600; }
.pictures { columns: 26rem 2; column-gap: 1rem; }
figure { margin: 0 0 1rem; padding: 1rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; max-width: 36rem; margin: 0 auto .4rem; color: var(--text); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .4rem .8rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
tbody tr:last-child td { border-bottom: 0; }
@media (max-width: 36rem) { main { padding: 1rem .8rem 2rem; } figure { padding: .8rem .6rem; }
  th, td { padding: .35rem .5rem; } }
code { overflow-wrap: anywhere; font-size: .88rem; }
"""

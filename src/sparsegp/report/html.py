"""From a title and sections to one HTML page that needs nothing else. Everything but the pictures is escaped here."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sparsegp.estimators.judging import Finding
from sparsegp.report.pictures import Picture
from sparsegp.report.verdict import Verdict

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
.verdict { margin: 0 0 1.2rem; border-left: .3rem solid var(--accent); padding: .1rem 0 .1rem 1rem; }
.verdict p { margin: .2rem 0; max-width: 60rem; }
.verdict .headline { font-size: 1.25rem; font-weight: 600; line-height: 1.35; }
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
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr));
  align-items: start; margin-bottom: 1rem; }
figure { margin: 0; padding: 1rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 36rem; margin: 0 auto .4rem; color: var(--text); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .4rem .8rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
tbody tr:last-child td { border-bottom: 0; }
@media (max-width: 36rem) { main { padding: 1rem .8rem 2rem; } figure { padding: .8rem .6rem; }
  th, td { padding: .35rem .5rem; } }
summary { cursor: pointer; color: var(--accent); margin: .6rem 0; }
code { overflow-wrap: anywhere; font-size: .88rem; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Tile:
    """A headline number with its name and what it says."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Page:
    """The contents of a report, in the order in which they are read."""

    title: str
    subtitle: str
    verdict: Verdict
    tiles: Sequence[Tile]
    findings: Sequence[Finding]
    effects: Sequence[Picture]
    unknowns: Sequence[str]
    pictures: Sequence[Picture]
    coverage: str
    coverage_pictures: Sequence[Picture]
    parts: Sequence[Sequence[str]]
    assumptions: Sequence[str]
    parameters: Sequence[Sequence[str]]
    kernel: str
    columns: Sequence[Sequence[str]]
    footer: str

    def html(self) -> str:
        """The page as text."""
        kernel = _more("The kernel in numbers", f"<code>{escape(self.kernel)}</code>") if self.kernel else ""
        body = "".join(
            [
                f"<header><h1>{escape(self.title)}</h1><p>{escape(self.subtitle)}</p></header>",
                _verdict(self.verdict),
                f'<div class="tiles">{"".join(map(_tile, self.tiles))}</div>',
                _section("What matters", _figures(self.effects)) if self.effects else "",
                _section("Where the intervals hold", _coverage(self.coverage, self.coverage_pictures, self.parts)),
                _section("What the model does not know", _bullets(self.unknowns)),
                _section("Warnings and findings", _findings(self.findings)),
                _section("More pictures", _figures(self.pictures)),
                _section("What the model assumes", _bullets(self.assumptions)),
                _section("What it learned", _table(("", "value", "meaning"), self.parameters) + kernel)
                if self.parameters
                else "",
                _section("The rows", _table(COLUMN_HEADINGS, self.columns)),
                f"<footer>{escape(self.footer)}</footer>",
            ]
        )
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f"<style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
        )


PART_HEADINGS = ("rows with", "rows", "inside their 95% interval", "chance allows", "")
COLUMN_HEADINGS = ("column", "smallest", "median", "largest", "mean", "std", "distinct values")


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _verdict(verdict: Verdict) -> str:
    rest = f"{verdict.accuracy} {verdict.honesty}"
    return f'<div class="verdict"><p class="headline">{escape(verdict.headline)}</p><p>{escape(rest)}</p></div>'


def _figures(pictures: Sequence[Picture]) -> str:
    return f'<div class="pictures">{"".join(map(_figure, pictures))}</div>'


def _tile(tile: Tile) -> str:
    name, value, meaning = (escape(text) for text in (tile.name, tile.value, tile.meaning))
    return f'<div class="tile"><span class="name">{name}</span><strong>{value}</strong><span>{meaning}</span></div>'


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return '<p class="fine">Nothing stood out.</p>'
    return f'<ul class="findings">{"".join(map(_finding, findings))}</ul>'


def _finding(finding: Finding) -> str:
    severity, what, evidence, try_this = map(
        escape, (finding.severity, finding.what, finding.evidence, finding.try_this)
    )
    seen = evidence[:1].upper() + evidence[1:]
    return (
        f'<li class="{severity}"><span class="severity">{severity}</span><b>{what}.</b> {seen}.'
        f'<br><span class="try">{try_this}</span></li>'
    )


def _figure(picture: Picture) -> str:
    title, caption = escape(picture.title), escape(picture.caption)
    svg = picture.svg.replace("<svg ", f'<svg aria-label="{title}" ', 1)
    return f"<figure><h3>{title}</h3>{svg}<figcaption>{caption}</figcaption></figure>"


def _coverage(sentence: str, pictures: Sequence[Picture], parts: Sequence[Sequence[str]]) -> str:
    said = f"<p>{escape(sentence)}</p>{_figures(pictures) if pictures else ''}"
    if not parts:
        return said
    return said + _more("All parts", _table(PART_HEADINGS, parts))


def _more(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _bullets(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

"""From a title and sections to one HTML page that needs nothing else. Everything but the pictures is escaped here."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sparsegp.estimators.diagnosis import Finding
from sparsegp.report.pictures import Picture
from sparsegp.report.style import STYLE

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
    tiles: Sequence[Tile]
    findings: Sequence[Finding]
    pictures: Sequence[Picture]
    assumptions: Sequence[str]
    parameters: Sequence[Sequence[str]]
    kernel: str
    columns: Sequence[Sequence[str]]
    footer: str

    def html(self) -> str:
        """The page as text."""
        kernel = f"<p>Kernel: <code>{escape(self.kernel)}</code></p>"
        body = "".join(
            [
                f"<header><h1>{escape(self.title)}</h1><p>{escape(self.subtitle)}</p></header>",
                f'<div class="tiles">{"".join(map(_tile, self.tiles))}</div>',
                _section("Warnings and findings", _findings(self.findings)),
                _section("Pictures", f'<div class="pictures">{"".join(map(_figure, self.pictures))}</div>'),
                _section("What the model assumes", _bullets(self.assumptions)),
                _section("What it learned", _table(("", "value", "meaning"), self.parameters) + kernel),
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


COLUMN_HEADINGS = ("column", "smallest", "median", "largest", "mean", "std", "distinct values")


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


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


def _bullets(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

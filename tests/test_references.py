"""Every paper that code and docs cite by its key, or derivations by name and year, is on the page of references."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "references.md"
PLACE = r"(?:eqs?\.|secs?\.|sections?|appendix|remark|figs?\.|figures?|tables?|theorem|footnote|after eq\.)"
CITATIONS = (
    re.compile(rf"(?<![\w.,/-])(0\d\d),? (?={PLACE})", re.IGNORECASE),
    re.compile(r"\b[Pp]apers? (0\d\d)\b"),
    re.compile(r"\| (0\d\d) \|"),
    re.compile(r"\bpapers 0\d\d (?:to|and) (0\d\d)\b"),
    re.compile(r"\bof (0\d\d)\b"),
)
BY_NAME = re.compile(r"\b([A-Z][a-z]+) \(?((?:19|20)\d\d)\)?")


def sources():
    for folder in ("src", "papers", "benchmarks", "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield ROOT / "README.md"


def keys_in(text):
    """In the order of the text."""
    places = {match.start(1): match.group(1) for pattern in CITATIONS for match in pattern.finditer(text)}
    return [places[start] for start in sorted(places)]


def cited():
    found = {}
    for path in sources():
        if path != PAGE and path != Path(__file__):
            for key in keys_in(path.read_text()):
                found.setdefault(key, []).append(path)
    return found


def keys_of_page():
    return set(re.findall(r"^## (\d{3})$", PAGE.read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("B <- B + A^T A (003 eq. 17).", ["003"]),
        ("of 000, Remark 2", ["000"]),
        ("(001 eq. 18; derivations: H7)", ["001"]),
        ("The experiments of paper 001 (variational", ["001"]),
        ("papers 000 to 004 need", ["000", "004"]),
        ("Table 1 of 004 and 009 sec. 3", ["004", "009"]),
        ("0.003 seconds, 100,000 rows, decisions/0009-srgp", []),
    ],
)
def test_citations_are_recognised(text, keys):
    assert keys_in(text) == keys


def test_every_key_that_is_cited_is_on_the_page():
    found = cited()
    missing = {key: sorted({str(path.relative_to(ROOT)) for path in paths}) for key, paths in found.items()}
    assert {key: paths for key, paths in missing.items() if key not in keys_of_page()} == {}
    assert keys_of_page() == {"000", "001", "002", "003", "004"}
    assert sum(len(paths) for paths in found.values()) > 80


def test_every_row_of_the_tables_names_a_paper():
    from sparsegp.committee import TABLE
    from sparsegp.core import approximations

    references = [approximations.get(name).reference for name in approximations.TABLE]
    references += [row.reference for row in TABLE.values()]
    keys = [re.match(r"(\d{3}) ", reference) for reference in references]
    assert {key.group(1) for key in keys if key} <= keys_of_page()
    assert sum(key is not None for key in keys) > 10


def test_papers_cited_by_name_and_year_are_on_the_page():
    page = PAGE.read_text()
    for path in sorted((ROOT / "docs" / "derivations").glob("*.md")):
        for name, year in BY_NAME.findall(path.read_text()):
            assert f"**{name} {year}**" in page, (path.name, name, year)


def test_nothing_cites_a_page_that_is_not_here():
    """Labels such as (H4) belong to derivations; once there was a page of mathematics outside the project."""
    for path in sources():
        if path != Path(__file__):
            assert not re.search(r"\(math:|; math:", path.read_text()), path


def test_modules_named_on_the_page_exist():
    for name in re.findall(r"`((?:papers|sparsegp)\.[a-z_.]+)`", PAGE.read_text()):
        base = ROOT / ("src" if name.startswith("sparsegp") else "") / Path(*name.split("."))
        assert base.with_suffix(".py").exists() or (base / "__init__.py").exists(), name


def test_files_named_by_derivations_and_for_contributors_exist():
    for path in [*sorted((ROOT / "docs" / "derivations").glob("*.md")), ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", path.read_text()):
            assert any((ROOT / base / name).exists() for base in ("", "src", "src/sparsegp")), (path.name, name)

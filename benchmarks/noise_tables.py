"""Tables of the pages on noise, from the results of flagship, committee_speed and all of noise_*."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import flagship, noise_experiments, noise_sizes, noise_toys
from benchmarks.committee_speed import CREWS
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.plotting import IMAGES
from benchmarks.results import number

Document = dict[str, Any]

PICTURES = {
    "noise_toy": "Toy: DVSHGP, learned noise against the truth, bound of SVSHGP",
    "noise_solar": "Solar irradiance: DVSHGP and VSHGP",
}
COMPARISONS = {
    "noise_scores": "SMSE and MSLL of every model",
    "noise_maps": "2-D sinc: true noise and predictive standard deviations",
    "noise_spread": "Spread of the estimated log noise variances",
}


def flagship_table(document: Document) -> str:
    """One table: a row for each dataset and method."""
    cells = document["cells"]
    machine = next(iter(next(iter(cells.values())).values()))["machine"]
    rows = [
        [dataset if k == 0 else "", *row]
        for dataset, found in flagship.tables(cells).items()
        for k, row in enumerate(found)
    ]
    return machine_line(machine) + "\n" + markdown_table(["", "", *flagship.COLUMNS], rows)


def experiments_table(document: Document) -> str:
    parts = []
    for dataset, by_method in document["cells"].items():
        first = next(iter(by_method.values()))
        rows = [[name, *noise_experiments.figures(cell)] for name, cell in by_method.items()]
        heading = f"**{dataset}** ({first['n_train']:,} training rows; {machine_line(first['machine']).strip()})\n\n"
        parts.append(heading + markdown_table(["", *noise_experiments.COLUMNS], rows))
    return "\n".join([*parts, *_pictures(COMPARISONS)])


def _pictures(titles: dict[str, str]) -> list[str]:
    """Those that have been drawn."""
    return [f"![{title}](images/{name}.png)\n" for name, title in titles.items() if (IMAGES / f"{name}.png").exists()]


def toys_table(document: Document) -> str:
    toy = [
        [name, *row, number(cell.get("log_noise_error"))]
        for (name, *row), cell in zip(noise_toys.rows(document["toy"]), document["toy"].values(), strict=True)
    ]
    parts = ["**sinc toy**\n\n" + markdown_table(["", *noise_toys.COLUMNS, "mean error of log noise std"], toy)]
    if "solar" in document:
        table = markdown_table(["", *noise_toys.COLUMNS], noise_toys.rows(document["solar"]))
        parts.append("**solar irradiance**, at the training rows\n\n" + table)
    for name, cells in document["classics"].items():
        table = markdown_table(["", *noise_toys.COLUMNS], noise_toys.rows(cells))
        parts.append(f"**{name}**, {noise_toys.FOLDS}-fold cross-validation\n\n" + table)
    parts += _pictures(PICTURES)
    return machine_line(document["machine"]) + "\n" + "\n".join(parts)


def sizes_table(document: Document) -> str:
    heading = f"{document['problem']['n_train']:,} training rows of protein; " + machine_line(document["machine"])
    return heading + "\n" + markdown_table(list(noise_sizes.COLUMNS), noise_sizes.rows(document))


GAINS = {"two processes": "at least 1.7"}


def committee_table(document: Document) -> str:
    problem, measured, ratios = document["problem"], document["measured"], document["ratios"]
    rows = [
        [
            f"{problem['rows']:,} rows, {problem['experts']} experts, two threads, seconds",
            number(measured.get("full", {}).get("seconds"), 0),
            "under 300",
        ],
        ["the same with given experts, one thread, seconds", number(measured["one"].get("seconds"), 0), ""],
        *([f"one thread / {name}", number(found, 2), GAINS.get(name, "")] for name, found in ratios.items()),
        ["two processes that share nothing / one: what this machine gives", number(document.get("limit"), 2), ""],
        [
            "evaluations of the bound, " + ", ".join(CREWS),
            ", ".join(_evaluations(measured, name) for name in CREWS),
            "",
        ],
    ]
    heading = f"DVSHGP on protein, {problem['n_inducing']} inducing inputs for f and g each; "
    return heading + machine_line(document["machine"]) + "\n" + markdown_table(["", "measured", "goal"], rows)


def _evaluations(measured: Document, crew: str) -> str:
    return number(measured[crew].get("evaluations"), 0)


TABLES: dict[str, Callable[[Document], str]] = {
    "flagship": flagship_table,
    "noise_experiments": experiments_table,
    "noise_toys": toys_table,
    "noise_sizes": sizes_table,
    "committee_speed": committee_table,
}

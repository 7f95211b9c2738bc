"""The headline figures of the README from the results files: `python -m benchmarks.headline`.

They stand between `<!-- headline -->` and `<!-- end -->`; what is outside the markers is left alone.
"""

from __future__ import annotations

import re
from typing import Any

from benchmarks.jobs import ROOT
from benchmarks.render import machine_line, markdown_table
from benchmarks.results import number, read_results

README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- headline -->\n).*?(<!-- end -->)", re.DOTALL)
METHODS = {"pic": "sparsegp, `pic`", "vfe": "sparsegp, `vfe`", "gpflow-svgp": "GPflow SVGP", "lightgbm": "LightGBM"}
DATASETS = ("flights_nyc2013", "kin40k", "protein", "kin8nm", "sarcos_test4449", "bike_noleak")


def speed(document: dict[str, Any]) -> str:
    """One evaluation of the objective beside the peers."""
    problem, measured = document["problem"], document["measured"]
    peers = {name: facts for name, facts in measured.items() if "version" in facts and facts.get("seconds")}
    ours = measured["vfe"]
    others = ", ".join(
        f"{name} {facts['version']} {number(facts['seconds'], 1)} s and {number(facts['peak_mb'] / 1000, 1)} GB"
        for name, facts in peers.items()
    )
    return (
        f"The variational bound and its gradient for {problem['n_rows']:,} rows, {problem['n_inducing']} inducing "
        f"inputs and {problem['n_features']} columns: **{number(ours['seconds'], 2)} s and "
        f"{number(ours['peak_mb'] / 1000, 2)} GB**; {others}. {machine_line(document['machine'])}"
    )


def accuracy(document: dict[str, Any]) -> str:
    """NLPD and training seconds on real data, as far as they have been measured."""
    cells = document["cells"]
    rows = []
    for name in DATASETS:
        if "pic" in (by_method := cells.get(name, {})):
            rows_in = f"{by_method['pic']['n_train']:,}"
            rows.append([name, rows_in, *(_cell(by_method.get(method)) for method in METHODS)])
    heading = (
        "Negative log predictive density of held-out rows (lower is better; targets standardised) and seconds of "
        "training:\n\n"
    )
    return heading + markdown_table(["", "training rows", *METHODS.values()], rows)


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None or cell.get("nlpd") is None:
        return "-"
    return f"{number(cell['nlpd'], 2)} ({number(cell['seconds'], 0)} s)"


def headline() -> str:
    bound, datasets = read_results("bound"), read_results("datasets")
    parts = [speed(bound) if bound else "", accuracy(datasets) if datasets else ""]
    return "\n".join(part for part in parts if part) or "Not measured yet.\n"


def main() -> None:
    text = README.read_text()
    README.write_text(MARKED.sub(lambda match: match[1] + headline() + match[2], text))
    print(f"wrote {README.name}")


if __name__ == "__main__":
    main()

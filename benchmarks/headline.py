"""The headline figures of the README from the results files: `python -m benchmarks.headline`.

They stand between `<!-- headline -->` and `<!-- end -->`; what is outside the markers is left alone.
"""

from __future__ import annotations

import re
from typing import Any

from benchmarks.cells import Cells
from benchmarks.jobs import ROOT
from benchmarks.quality_curves import CURVES, curves, overtaken
from benchmarks.render import machine_line, markdown_table
from benchmarks.results import number, read_results

README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- headline -->\n).*?(<!-- end -->)", re.DOTALL)
METHODS = {"lightgbm": "LightGBM, quantiles", "catboost": "CatBoost, uncertainty", "gpboost": "GPBoost, Vecchia"}
DATASETS = (
    "flights_nyc2013",
    "protein",
    "kin40k",
    "bike_noleak",
    "kin8nm",
    "sarcos_test4449",
    "mauna_loa_co2",
    "concrete",
)


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


def accuracy(ours: Cells, peers: Cells) -> str:
    """NLPD of the default after a minute, and of the peers, on sets where LightGBM was measured too."""
    names = [name for name in DATASETS if name in ours and "lightgbm" in peers.get(name, {})]
    rows = [
        [name, f"{ours[name]['default']['n_train']:,}", _nlpd(ours[name]["default"])]
        + [_nlpd(peers[name].get(method)) for method in METHODS]
        for name in names
    ]
    heading = (
        "Negative log predictive density of held-out rows (lower is better; targets standardised). Ours is the "
        "default with `time_budget=60` and nothing else set:\n\n"
    )
    return heading + markdown_table(["", "training rows", "sparsegp", *METHODS.values()], rows)


def _nlpd(cell: dict[str, Any] | None) -> str:
    return "-" if cell is None else number(cell.get("nlpd"), 2)


def quality(document: dict[str, Any]) -> str:
    """The one number of the curves of quality against time."""
    complete = [by_method for by_method in curves(document).values() if len(by_method) == len(CURVES)]
    seconds = [overtaken(by_method) for by_method in complete]
    ahead = [value for value in seconds if value is not None]
    if len(ahead) < 2:  # one set is no finding
        return ""
    return (
        f"On {len(ahead)} of {len(seconds)} sets the default is better after {max(ahead):.0f} s of training than four "
        "other libraries ever become ([curves](docs/benchmarks.md#quality-for-the-time)).\n"
    )


def headline() -> str:
    bound, timed = read_results("bound"), read_results("quality_curves")
    ours, peers = (read_results(name).get("cells", {}) for name in ("honesty", "honesty_peers"))
    parts = [speed(bound) if bound else "", accuracy(ours, peers) if ours else "", quality(timed) if timed else ""]
    return "\n".join(part for part in parts if part) or "Not measured yet.\n"


def main() -> None:
    text = README.read_text()
    README.write_text(MARKED.sub(lambda match: match[1] + headline() + match[2], text))
    print(f"wrote {README.name}")


if __name__ == "__main__":
    main()

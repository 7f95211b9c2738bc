"""Tables of docs/experiments-anytime.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import (
    anytime_learning,
    anytime_race,
    anytime_reproduction,
    anytime_scale,
    anytime_step,
    budget_optimizers,
)
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.results import number


def step(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = f"|U| = {problem['n_inducing']}, blocks of {problem['block_rows']:,} rows; "
    rows = [
        [name, *(number(facts.get(part, {}).get("seconds"), 4) for part in ("step", "limit"))]
        for name, facts in document["measured"].items()
    ]
    rows = [[*row, number(document["ratios"][row[0]], 2), f"at most {anytime_step.LARGEST_RATIO:g}"] for row in rows]
    columns = ["", "seconds a step", "its products and factorisations alone", "ratio", "goal"]
    return heading + machine_line(document["machine"]) + "\n" + markdown_table(columns, rows)


def equality(document: dict[str, Any]) -> str:
    problem, measured = document["problem"], document["measured"]
    if "error" in measured:
        return "Not measured: GPflow did not run.\n"
    return (
        f"Largest relative difference over {problem['steps']} steps (N = {problem['n_rows']:,}, M = "
        f"{problem['n_inducing']}, batches of {problem['batch']}, step size {problem['gamma']}): mean "
        f"{max(measured['means']):.0e}, covariance {max(measured['covariances']):.0e}.\n"
    )


def scale(document: dict[str, Any]) -> str:
    names = anytime_scale.APPROXIMATIONS
    rows = [
        [
            f"{int(n):,}",
            *(number(facts.get(name, {}).get("seconds"), 4) for name in names),
            number(facts.get("write_seconds"), 0),
            number(facts.get("process_peak_mb"), 0),
        ]
        for n, facts in document["on_disk"].items()
    ]
    growth = [number(document["growth"][name], 2) for name in names]
    rows.append(["longest / shortest", *growth, "", ""])
    columns = [
        "rows",
        *(f"{name.upper()}+ step, s" for name in names),
        "making the blocks, s",
        "peak MB of the process",
    ]
    first = [
        [name, number(facts.get("seconds"), 2), f"{facts.get('rows_seen', 0):,.0f}", number(facts.get("rmse"), 3)]
        for name, facts in document["first_model"].items()
    ]
    in_memory = f"First model of {document['problem']['sizes'][1]:,} rows in memory, from the call of `fit_iter`:"
    return "\n".join(
        [
            machine_line(document["machine"]),
            markdown_table(columns, rows),
            in_memory + "\n",
            markdown_table(["", "seconds", "rows behind it", "RMSE"], first),
        ]
    )


def race(document: dict[str, Any]) -> str:
    rows = [
        [name, number(entry["seconds"], 1), *(number(entry[key]) for key in ("nlpd", "rmse", "coverage_95"))]
        for name, facts in document["measured"].items()
        for entry in facts.get("fits", facts.get("trace", []))
    ]
    sooner = [
        [name, number(entry["seconds"], 1), number(entry["times_sooner"], 1), f"at least {anytime_race.LEAST_RATIO:g}"]
        for name, entry in document["goal"].items()
    ]
    return (
        f"{document['problem']['n_train']:,} training rows, M = {document['problem']['n_inducing']}; "
        + machine_line(document["machine"])
        + "\n"
        + markdown_table(["", "seconds", "NLPD", "RMSE", "95 % coverage"], rows)
        + "\n"
        + markdown_table(["", "seconds to SVGP's last NLPD", "times sooner", "goal"], sooner)
    )


def learning(document: dict[str, Any]) -> str:
    heading = f"M = {document['problem']['n_inducing']}; " + machine_line(document["machine"]) + "\n"
    return heading + markdown_table(["", *anytime_learning.COLUMNS], anytime_learning.table_rows(document))


def budgets(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = f"`time_budget={problem['time_budget']:g}`, M = {problem['n_inducing']}; " + machine_line(
        document["machine"]
    )
    columns = ["", "", *budget_optimizers.COLUMNS]
    return heading + "\n" + markdown_table(columns, budget_optimizers.table_rows(document))


def reproduction(document: dict[str, Any]) -> str:
    parts = [machine_line(document["machine"])]
    for name, cell in document["cells"].items():
        size = document["problem"][name]
        parts.append(
            f"**{name}**: {cell.get('n_train', 0):,} training rows, |U| = {size['n_inducing']}, P = "
            f"{size['n_blocks']:,} blocks, mean of {size['repetitions']} random splits.\n"
        )
        parts.append(markdown_table(["", *anytime_reproduction.COLUMNS], anytime_reproduction.table_rows(cell)))
    return "\n".join(parts)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "anytime_step": step,
    "svgp_equality": equality,
    "anytime_scale": scale,
    "anytime_race": race,
    "anytime_learning": learning,
    "budget_optimizers": budgets,
    "anytime_reproduction": reproduction,
}

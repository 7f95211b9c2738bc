"""The tables of docs/scaling.md: plans against reality, and plans for more rows than these machines hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.markdown import machine_line, markdown_table
from benchmarks.results import number

from sparsegp.planning import duration, size

CONSTANTS = {
    "flops_per_second": "float64 operations a second in matrix products",
    "exps_per_second": "exponentials a second",
    "memory_bytes_per_second": "bytes a second to and from memory",
    "disk_bytes_per_second": "bytes a second from disk",
    "network_bytes_per_second": "bytes a second through a machine's link (assumed)",
    "round_seconds": "seconds a round of the scheduler (assumed)",
    "task_seconds": "seconds a worker in a round (assumed)",
}


def plan_accuracy(document: dict[str, Any]) -> str:
    rows = [_case(cell) for cell in document["cells"]]
    columns = ["", "fit, s", "ratio", "predict, s", "ratio", "peak MB above data", "ratio", "evaluations", "ratio"]
    return machine_line(document["machine"]) + "\n" + markdown_table(columns, rows)


def _case(cell: dict[str, Any]) -> list[str]:
    learned = "" if cell["optimizer"] else ", nothing learned"
    name = f"{cell['approximation']}, {cell['n_rows']:,} rows, M = {cell['n_inducing']}{learned}"
    if "error" in cell:
        return [name, *["-"] * 8]
    actual, ratios = cell["actual"], cell["ratios"]
    evaluations = actual["evaluations"]
    return [
        name,
        number(actual["fit_seconds"], 1),
        number(ratios["fit_seconds"], 2),
        number(actual["predict_seconds"], 2),
        number(ratios["predict_seconds"], 2),
        number(actual["peak_bytes"] / 1e6, 0),
        number(ratios["peak_bytes"], 2),
        f"{evaluations}",
        number(cell["predicted"]["evaluations"] / evaluations, 2) if evaluations else "-",
    ]


def plan_scaling(document: dict[str, Any]) -> str:
    constants = [[text, f"{document['constants'][name]:.3g}"] for name, text in CONSTANTS.items()]
    plans = [_prediction(plan, estimate) for plan in document["plans"] for estimate in plan["estimates"]]
    columns = ["rows", "machines", "rows are", "fit", "messages", "one pass", "memory of a machine", "network"]
    return (
        machine_line(document["machine"])
        + "\n"
        + markdown_table(["constant", "value"], constants)
        + "\n"
        + markdown_table(columns, plans)
    )


def _prediction(plan: dict[str, Any], estimate: dict[str, Any]) -> list[str]:
    return [
        f"{plan['n_rows']:.0e}".replace("1e+0", "10^").replace("1e+", "10^"),
        f"{estimate['machines']:,}",
        {"disk": "on disk", "memory": "in memory"}.get(estimate["where"], "on the cluster"),
        duration(estimate["seconds"]),
        duration(estimate["communication_seconds"]),
        duration(estimate["inference_seconds"]),
        size(estimate["memory_bytes"]) + ("" if estimate["fits"] else ", too much"),
        size(estimate["network_bytes"]),
    ]


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {"plan_accuracy": plan_accuracy, "plan_scaling": plan_scaling}

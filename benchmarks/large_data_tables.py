"""The tables of data larger than memory and of Dask in docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import growth
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.results import number

OUT_OF_CORE_GOALS = {"parquet / memory": "at most 1.3", "parquet / parquet, a tenth": "at most 1.15"}


def out_of_core(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = f"{problem['n_rows']:,} x {problem['n_features']} rows of Parquet, M = {problem['n_inducing']}; "
    rows = [
        [name, f"{facts['n_rows']:,}", number(facts["seconds"], 1), number(facts["microseconds_per_row"], 1),
         number(facts["process_peak_mb"], 0)]
        for name, facts in document["measured"].items()
        if "error" not in facts
    ]  # fmt: skip
    columns = ["", "rows", "seconds", "microseconds a row", "peak MB of the process"]
    ratios = [[name, number(value, 2), OUT_OF_CORE_GOALS.get(name, "")] for name, value in document["ratios"].items()]
    table = markdown_table(columns, rows) + "\n" + markdown_table(["time a row", "ratio", "goal"], ratios)
    return heading + machine_line(document["machine"]) + "\n" + table


def dask_speed(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = f"{problem['n_rows']:,} x {problem['n_features']} rows, M = {problem['n_inducing']}; "
    rows = [
        [name, number(facts["threads"].get("seconds")), number(facts["dask"].get("seconds")),
         number(facts["dask / threads"], 2), f"{facts['dask'].get('bytes', 0) / 1e6:.1f}"]
        for name, facts in document["measured"].items()
    ]  # fmt: skip
    columns = [
        "",
        "one process, two threads: seconds",
        "two workers, one thread each: seconds",
        "ratio",
        "MB through the scheduler",
    ]
    return heading + machine_line(document["machine"]) + "\n" + markdown_table(columns, rows)


def growth_table(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = (
        f"D = {problem['n_features']}, M = {problem['n_inducing']}, pic in blocks of {problem['block_rows']} rows; "
    )
    table = markdown_table(["", "rows", "predicted", *growth.MEASURES.values()], growth.rows_of_table(document))
    return heading + machine_line(document["machine"]) + "\n" + table


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "out_of_core": out_of_core,
    "dask_speed": dask_speed,
    "growth": growth_table,
}

"""Flat memory: a Parquet file with two text columns, of a million and of ten million rows, fitted out of core."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from benchmarks.jobs import own_python, run_job
from benchmarks.markdown import machine_line, markdown_table
from benchmarks.results import machine_facts, number, print_table, write_results

NAME = "tables_memory"
PIECE_ROWS = 250_000
CITIES = np.array([f"city {k}" for k in range(200)])
KINDS = np.array(["bus", "car", "train", "tram"])


def run(quick: bool = False) -> dict[str, Any]:
    sizes = (20_000, 50_000) if quick else (1_000_000, 10_000_000)
    options = {"n_inducing": 32 if quick else 256, "time_budget": 10.0 if quick else 240.0}
    measured = {f"{n_rows:,} rows": _measured(n_rows, options) for n_rows in sizes}
    document = {"machine": machine_facts(), "problem": options, "measured": measured}
    write_results(NAME, document, quick)
    print_table("fit of a file with two text columns", ["", *COLUMNS], _rows(document))
    return document


def _measured(n_rows: int, options: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sparsegp-bench-") as folder:
        path = Path(folder) / "rows.parquet"
        write_rows(path, n_rows)
        result = run_job(own_python(), "benchmarks.own.table_memory", {}, {**options, "path": str(path)})
        facts = result.facts if result.error is None else {"error": result.error}
        return {**facts, "file_mb": path.stat().st_size / 1e6}


def write_rows(path: Path, n_rows: int) -> None:
    """Two numbers and two texts, of which each has an effect; noise of 0.3."""
    rng, effects = np.random.default_rng(0), np.random.default_rng(1).normal(size=len(CITIES))
    schema = pa.schema(
        [("a", pa.float64()), ("b", pa.float64()), ("city", pa.string()), ("kind", pa.string()), ("y", pa.float64())]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, PIECE_ROWS):
            n = min(PIECE_ROWS, n_rows - start)
            a, b = rng.uniform(-3.0, 3.0, (2, n))
            city, kind = rng.integers(len(CITIES), size=n), rng.integers(len(KINDS), size=n)
            y = np.sin(2.0 * a) * (kind + 1) / 2.0 + 0.3 * b + effects[city] + 0.3 * rng.normal(size=n)
            columns = [pa.array(values) for values in (a, b, CITIES[city], KINDS[kind], y)]
            writer.write_table(pa.table(columns, schema=schema))


COLUMNS = ("file MB", "seconds", "peak MB above start", "rows behind the model", "noise std (0.3)")


def _rows(document: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            number(facts["file_mb"], 0),
            number(facts.get("seconds"), 0),
            number(facts.get("peak_mb"), 0),
            f"{facts.get('rows_seen', 0):,}",
            number(facts.get("noise_std")),
        ]
        for name, facts in document["measured"].items()
    ]


def table(document: dict[str, Any]) -> str:
    problem = document["problem"]
    heading = f"vfe, M = {problem['n_inducing']}, at most {problem['time_budget']:.0f} s; "
    return heading + machine_line(document["machine"]) + "\n" + markdown_table(["", *COLUMNS], _rows(document))


if __name__ == "__main__":
    run()

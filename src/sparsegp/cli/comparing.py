"""`sparsegp compare`: several approximations on the same rows under the same settings."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from sparsegp.cli import memory, options, tables
from sparsegp.cli.fitting import Settings
from sparsegp.cli.output import note, print_json, show_rows
from sparsegp.cli.watching import INTERRUPTED, watched
from sparsegp.errors import InputError, SparseGPError

if TYPE_CHECKING:
    from sparsegp.sources import Batch

SHOWN = ("approximation", "rmse", "nlpd", "crps", "coverage_95", "seconds", "megabytes")


def compare(
    data: options.Data,
    target: options.Target,
    approximations: options.Approximations = "vfe,fitc,pic",
    test: Annotated[Path | None, typer.Option(help="Table of test rows. Default: a random part of the data.")] = None,
    test_fraction: Annotated[float, typer.Option(help="Part of the rows to test on, without --test.")] = 0.2,
    features: options.Features = None,
    kernel: options.Kernel = "se",
    n_inducing: options.Inducing = 512,
    power: options.Power = 0.5,
    n_blocks: options.Blocks = None,
    optimizer: options.Optimizer = "auto",
    time_budget: options.Budget = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Fit several approximations to the same rows and score them on the same other rows."""
    wanted = _wanted(approximations)
    source = tables.open_table(data, target, tables.names_in(features))
    rows, names = tables.read(source), source.feature_names
    given = None if test is None else tables.read(tables.open_table(test, target, names))
    train, other = _split(rows, test_fraction, seed) if given is None else (rows, given)
    settings = Settings("sparse", None, kernel, n_inducing, power, n_blocks, optimizer, seed, verbose=False)
    results: list[dict[str, Any]] = []
    for name in wanted:
        one, interrupted = _measured(replace(settings, approximation=name), train, other, time_budget, as_json)
        results.append(one)
        if interrupted:
            break
    results.sort(key=lambda result: result.get("nlpd", np.inf))
    if as_json:
        print_json({"train_rows": len(train), "test_rows": len(other), "results": results})
    else:
        show_rows(f"{len(train):,} rows to learn from, {len(other):,} to test on", results, SHOWN)
        for result in results:
            if "error" in result:
                note(f"{result['approximation']}: {result['error']}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if all("error" in result for result in results):
        raise typer.Exit(1)


def _wanted(names: str) -> list[str]:
    """Every name known, found out before the first fit."""
    from sparsegp.approximations import NAMES

    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in (*NAMES, options.AUTO)]
    if unknown:
        raise InputError(
            f"--approximations must be names out of {options.AUTO}, {', '.join(NAMES)}; got {', '.join(unknown)}."
        )
    return wanted


def _measured(
    settings: Settings, train: "Batch", test: "Batch", budget: float | None, quiet: bool
) -> tuple[dict[str, Any], bool]:
    """(scores, seconds and memory above that before, of one approximation or its error, whether Ctrl-C was pressed)."""
    from sparsegp.report.scores import scores

    result: dict[str, Any] = {"approximation": settings.approximation}
    model, started = settings.estimator(), time.perf_counter()
    memory.reset_peak()
    before = memory.peak_megabytes()
    try:
        with watched(model, budget, quiet=quiet) as watcher:
            model.fit(train.X, train.y)
        seconds, megabytes = time.perf_counter() - started, memory.peak_megabytes() - before
        result |= {**scores(model, test.X, test.y), "seconds": seconds, "megabytes": megabytes}
    except SparseGPError as error:
        return {**result, "error": str(error)}, False
    return result, watcher.interrupted


def _split(rows: "Batch", fraction: float, seed: int) -> tuple["Batch", "Batch"]:
    n_test = round(fraction * len(rows))
    if not 0 < n_test < len(rows):
        raise InputError(f"--test-fraction={fraction} of {len(rows)} rows leaves nothing to learn from or to test on.")
    is_test = np.zeros(len(rows), dtype=bool)
    is_test[np.random.default_rng(seed).permutation(len(rows))[:n_test]] = True
    return rows.take(~is_test), rows.take(is_test)

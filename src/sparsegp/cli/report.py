"""`sparsegp report`, `compare` and `plan`: how good a model is, which is better, and what one will cost."""

import json
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sparsegp.cli import options, table_columns
from sparsegp.cli.fit import Settings, kinds_of, text_among
from sparsegp.cli.output import note, print_json, show, show_rows, shown
from sparsegp.cli.predict import SEEN, SEEN_TRY
from sparsegp.cli.table_columns import Labelled
from sparsegp.cli.watch import INTERRUPTED, watched
from sparsegp.errors import InputError, MissingPackageError, SparseGPError
from sparsegp.whole_file import destination

SHOWN = ("approximation", "rmse", "nlpd", "crps", "coverage_95", "seconds", "megabytes")
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def report(
    model: options.Model,
    data: options.Data,
    target: options.KnownTarget = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page. Default: the name of the model file.")] = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    no_header: options.NoHeader = False,
    as_json: options.Json = False,
) -> None:
    """Write a page that judges a model.

    It has scores, warnings, pictures and assumptions. Give rows that the model has not seen.
    """
    destination(output)  # found out before the work
    table_columns.require_other(output, [model, *data])
    from sparsegp import report as pages

    fitted = _loaded(model)
    name = table_columns.target_of(fitted, target)
    files = table_columns.files(data, sep, decimal, encoding, no_header)
    source = table_columns.open_for(fitted, files, name)
    table_columns.say_unused(fitted, source, name)
    rows, are_seen = table_columns.read_all(fitted, source)
    with table_columns.named_columns():
        found = pages.judge(fitted, rows.X, rows.y)
        if are_seen:
            found = replace(found, findings=[_seen(), *found.findings])
        pages.write(fitted, rows.X, rows.y, output, title=title or model.stem, target_name=name, judgement=found)
    warnings = [finding.what for finding in found.findings if finding.severity == "warning"]
    worst = None if found.segments.worst is None else str(found.segments.worst)
    facts = {"worst_part": worst, "discrete_target": found.targets.is_discrete, "warnings": warnings}
    about = {"report": str(output), "verdict": str(found.verdict), "rows": len(rows)}
    show("Report", {**about, **found.scores, "matters": _what_matters(found), **facts}, as_json)


def _seen() -> Any:
    from sparsegp.estimators.judging import WARNING, Finding

    return Finding(WARNING, SEEN, "the file is a batch of rows that it holds", SEEN_TRY)


def _loaded(path: Path) -> Any:
    """With torch where it is; otherwise what the file alone can tell."""
    import sparsegp

    try:
        return sparsegp.load(path)
    except MissingPackageError:
        light = sparsegp.serving.load_if_light(path)
        if light is None:
            raise
        note("Without torch the report lacks effects, assumptions and what was learned: pip install 'sparsegp[fit]'.")
        return light


def _what_matters(found: Any) -> list[str]:
    """The columns that matter beyond chance, first things first."""
    return [] if found.importance is None else [found.importance.names[d] for d in found.importance.sure]


def compare(
    data: options.Data,
    target: options.Target,
    approximations: options.Approximations = "vfe,fitc,pic",
    test: Annotated[Path | None, typer.Option(help="Table of test rows. Default: a random part of the data.")] = None,
    test_fraction: Annotated[float, typer.Option(help="Part of the rows to test on, without --test.")] = 0.2,
    features: options.Features = None,
    categorical: options.Categorical = None,
    ignore: options.Ignore = None,
    dates: options.Dates = None,
    kernel: options.Kernel = "auto",
    n_inducing: options.Inducing = 512,
    power: options.Power = 0.5,
    n_blocks: options.Blocks = None,
    optimizer: options.Optimizer = "auto",
    target_transform: options.TargetTransform = None,
    time_budget: options.Budget = None,
    seed: options.Seed = 0,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    no_header: options.NoHeader = False,
    as_json: options.Json = False,
) -> None:
    """Fit several approximations and score them.

    All learn from the same rows and are scored on the same other rows.
    """
    wanted = _wanted(approximations)
    kinds = kinds_of(categorical, ignore, dates)
    files = replace(table_columns.files(data, sep, decimal, encoding, no_header), text=text_among(kinds))
    source = table_columns.open_table(files, target, table_columns.names_in(features))
    rows, names = table_columns.labelled(source), source.feature_names
    given = None
    if test is not None:
        given = table_columns.labelled(table_columns.open_table(replace(files, paths=(test,)), target, names))
    train, other = _split(rows, test_fraction, seed) if given is None else (rows, given)
    settings = Settings(
        "sparse", None, kernel, n_inducing, power, n_blocks, optimizer, seed, False, kinds, target_transform
    )
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
    from sparsegp.core.approximations import NAMES

    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in (*NAMES, options.AUTO)]
    if unknown:
        raise InputError(
            f"--approximations must be names out of {options.AUTO}, {', '.join(NAMES)}; got {', '.join(unknown)}."
        )
    return wanted


def _measured(
    settings: Settings, train: Labelled, test: Labelled, budget: float | None, quiet: bool
) -> tuple[dict[str, Any], bool]:
    """(scores, seconds and memory above that before, of one approximation or its error, whether Ctrl-C was pressed)."""
    from sparsegp.report.headline import scores

    result: dict[str, Any] = {"approximation": settings.approximation}
    model, started = settings.estimator(), time.perf_counter()
    _reset_peak()
    before = _peak_megabytes()
    try:
        with watched(model, budget, quiet=quiet) as watcher:
            model.fit(train.X, train.y)
        # some systems report the memory of the moment as the peak
        seconds, megabytes = time.perf_counter() - started, max(_peak_megabytes() - before, 0.0)
        result |= {**scores(model, test.X, test.y), "seconds": seconds, "megabytes": megabytes}
    except SparseGPError as error:
        return {**result, "error": str(error)}, False
    return result, watcher.interrupted


def _split(rows: Labelled, fraction: float, seed: int) -> tuple[Labelled, Labelled]:
    n_test = round(fraction * len(rows))
    if not 0 < n_test < len(rows):
        raise InputError(f"--test-fraction={fraction} of {len(rows)} rows leaves nothing to learn from or to test on.")
    is_test = np.zeros(len(rows), dtype=bool)
    is_test[np.random.default_rng(seed).permutation(len(rows))[:n_test]] = True
    return rows.take(~is_test), rows.take(is_test)


def _reset_peak() -> None:
    """Start counting the peak anew, where the system allows it."""
    try:
        RESET.write_text("5")
    except OSError:
        return


def _peak_megabytes() -> float:
    """Largest resident memory since `_reset_peak` (since the start, where that is not possible)."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e6


def plan(
    data: options.Data,
    target: options.Target,
    features: options.Features = None,
    categorical: options.Categorical = None,
    ignore: options.Ignore = None,
    dates: options.Dates = None,
    approximation: Annotated[str, typer.Option("--approximation", "-a", help="vfe, fitc, pic, ...")] = "auto",
    kernel: options.Kernel = "se",
    n_inducing: options.Inducing = 512,
    power: options.Power = 0.5,
    n_blocks: options.Blocks = None,
    optimizer: options.Optimizer = "auto",
    time_budget: options.Budget = None,
    n_rows: Annotated[int | None, typer.Option(help="Number of rows, where the file does not tell.")] = None,
    machines: Annotated[str, typer.Option(help="Number of machines, or several to compare: 1,10,100.")] = "1",
    machine: Annotated[
        Path | None,
        typer.Option(help="JSON file with the constants of a machine (`machine` of --json). Default: this machine."),
    ] = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    no_header: options.NoHeader = False,
    as_json: options.Json = False,
) -> None:
    """Say what a fit will cost, without fitting.

    Time, memory, passes and traffic. Reads no more than the footer and the first rows.
    """
    import sparsegp

    found = sparsegp.plan(
        table_columns.files(data, sep, decimal, encoding, no_header),
        target=target,
        features=table_columns.names_in(features),
        n_rows=n_rows,
        machines=_counts(machines),
        machine=None if machine is None else _constants(machine),
        approximation=approximation,
        kernel=kernel,
        n_inducing=n_inducing,
        power=power,
        n_blocks=n_blocks,
        optimizer=optimizer,
        time_budget=time_budget,
        columns=kinds_of(categorical, ignore, dates),
    )
    if as_json:
        print_json(found.to_dict())
    else:
        print(shown(found, keep="\n"))


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--machines takes whole numbers with commas between them; got {text!r}.") from None


def _constants(path: Path) -> Any:
    """The fields of a machine, alone or as part of a plan."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}. It holds the fields of a machine.") from error
    return found.get("machine", found) if isinstance(found, dict) else found

"""`sparsegp fit`: a model file from a table."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegp.cli import options, tables
from sparsegp.cli.output import note, show
from sparsegp.cli.tables import Chunk, Columns
from sparsegp.errors import InputError

INTERRUPTED = 130
MODELS = ("sparse", "heteroscedastic", "committee")


@dataclass(frozen=True)
class Settings:
    """What the caller chose about a model."""

    model: str
    approximation: str | None
    kernel: str
    n_inducing: int
    power: float
    n_blocks: int | None
    optimizer: str
    seed: int
    verbose: bool

    @property
    def chosen(self) -> str:
        """The approximation, of the experts for a committee."""
        return self.approximation or ("exact" if self.model == "committee" else "vfe")

    def estimator(self) -> Any:
        """The estimator before its fit."""
        import sparsegp

        shared: dict[str, Any] = {
            "kernel": self.kernel,
            "n_inducing": self.n_inducing,
            "power": self.power,
            "optimizer": self.optimizer,
            "random_state": self.seed,
            "verbose": int(self.verbose),
        }
        if self.model == "committee":
            return sparsegp.CommitteeGPRegressor(expert=self.chosen, **shared)
        blocks: dict[str, Any] = {"approximation": self.chosen, "n_blocks": self.n_blocks}
        if self.model == "heteroscedastic":
            return sparsegp.HeteroscedasticGPRegressor(**blocks, **shared)
        if self.model == "sparse":
            return sparsegp.SparseGPRegressor(**blocks, **shared)
        raise InputError(f"--model must be one of {', '.join(MODELS)}; got {self.model!r}.")


def fit_rows(model: Any, rows: Chunk) -> None:
    """Fit to the rows of a table, with their weights and known noise where it has them."""
    given = {"sample_weight": rows.weight, "noise_var": rows.noise_var}
    model.fit(rows.X, rows.y, **{name: value for name, value in given.items() if value is not None})


def fit(
    data: options.Data,
    target: options.Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    features: options.Features = None,
    model: Annotated[str, typer.Option(help="sparse, heteroscedastic (noise that varies), committee.")] = "sparse",
    approximation: Annotated[
        str | None, typer.Option("--approximation", "-a", help="vfe, fitc, pic, ... Default: vfe; committee: exact.")
    ] = None,
    kernel: options.Kernel = "se",
    n_inducing: options.Inducing = 512,
    power: options.Power = 0.5,
    n_blocks: options.Blocks = None,
    optimizer: options.Optimizer = "lbfgs",
    weight: options.Weight = None,
    noise_var: options.NoiseVar = None,
    time_budget: options.Budget = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Fit a model to a table and save it. Ctrl-C saves the best model so far."""
    if not output.resolve().parent.is_dir():
        raise InputError(f"The folder of {output} does not exist. Create it first: a fit would be lost.")
    others = (target, weight, noise_var)
    columns = Columns(tables.select(data, features, others), *others)
    rows = tables.read(data, columns)
    settings = Settings(model, approximation, kernel, n_inducing, power, n_blocks, optimizer, seed, verbose)
    _fit_and_save(settings, rows, columns, output, time_budget, as_json)


def _fit_and_save(
    settings: Settings, rows: Chunk, columns: Columns, output: Path, time_budget: float | None, as_json: bool
) -> None:
    from sparsegp.cli.watching import watched
    from sparsegp.estimators import batch_log, persistence

    model, started = settings.estimator(), time.perf_counter()
    with watched(model, time_budget, quiet=as_json or settings.verbose) as watcher:
        fit_rows(model, rows)
    model._table_columns = persistence.TableColumns(columns.features, str(columns.target))
    batch_log.record(model, batch_log.content_id([rows.parts]))
    persistence.save(model, output)
    result = {
        "model": str(output),
        "approximation": settings.chosen,
        "rows": len(rows.X),
        "features": list(columns.features),
        "log_evidence": float(model.log_evidence_),
        "noise_std": float(model.noise_var_) ** 0.5,
        "kernel": repr(model.kernel_),
        "learning_steps": watcher.steps,
        "stopped_by": "Ctrl-C" if watcher.interrupted else "time budget" if watcher.out_of_time else None,
        "seconds": time.perf_counter() - started,
        "megabytes": output.stat().st_size / 1e6,
    }
    show("Fitted", result, as_json)
    if watcher.interrupted:
        note(f"Interrupted: {output} holds the best model so far.")
        raise typer.Exit(INTERRUPTED)

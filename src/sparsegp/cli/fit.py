"""`sparsegp fit`: a model file from a table."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegp.cli import options, table_columns
from sparsegp.cli.output import note, show
from sparsegp.cli.watch import INTERRUPTED, watched
from sparsegp.errors import InputError
from sparsegp.whole_file import destination

if TYPE_CHECKING:
    from sparsegp.data import Source

DEFAULT_APPROXIMATION = {"sparse": options.AUTO, "heteroscedastic": "vfe", "committee": "exact"}


@dataclass(frozen=True)
class Settings:
    """What the caller chose about a model."""

    model: str
    approximation: str | None
    kernel: str
    n_inducing: int | str
    power: float
    n_blocks: int | None
    optimizer: str
    seed: int
    verbose: bool

    @property
    def chosen(self) -> str:
        """The approximation, of the experts for a committee."""
        return self.approximation or DEFAULT_APPROXIMATION.get(self.model, "")

    def estimator(self) -> Any:
        """The estimator before its fit."""
        import sparsegp

        shared: dict[str, Any] = {
            "kernel": self.kernel,
            "n_inducing": self.n_inducing,
            "power": self.power,
            "optimizer": self.optimizer if self.model == "sparse" or self.optimizer != "auto" else "lbfgs",
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
        raise InputError(f"--model must be one of {', '.join(options.MODELS)}; got {self.model!r}.")


def fit(
    data: options.Data,
    target: options.Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    features: options.Features = None,
    model: options.ModelKind = "sparse",
    approximation: options.Approximation = None,
    kernel: options.Kernel = "auto",
    n_inducing: options.Inducing = 512,
    power: options.Power = 0.5,
    n_blocks: options.Blocks = None,
    optimizer: options.Optimizer = "auto",
    weight: options.Weight = None,
    noise_var: options.NoiseVar = None,
    time_budget: options.Budget = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Fit a model to a table and save it. Ctrl-C saves the best model so far."""
    destination(output)  # found out before the work
    source = table_columns.open_table(
        data, target, table_columns.names_in(features), weight=weight, noise_var=noise_var
    )
    table_columns.require_rows(source, data)
    settings = Settings(model, approximation, kernel, n_inducing, power, n_blocks, optimizer, seed, verbose)
    _fit_and_save(settings, source, target, output, time_budget, as_json)


def _fit_and_save(
    settings: Settings, source: "Source", target: str, output: Path, time_budget: float | None, as_json: bool
) -> None:
    from sparsegp import files

    model, started = settings.estimator(), time.perf_counter()
    with watched(model, time_budget, quiet=as_json or settings.verbose) as watcher:
        # a function that starts a new pass: more rows than fit into memory are read as they are needed
        model.fit(lambda: table_columns.tuples(source))
    table_columns.name_columns(model, source, target)
    # Also for a model of a part of the rows: they must not come a second time.
    files.record_batches(model, table_columns.content_id(source))
    with files.locked(output):  # no update is between its reading and its writing
        model.save(output)
    choice = model.info_.get("choice", {})
    result = {
        "model": str(output),
        "approximation": choice.get("approximation", settings.chosen),
        **({"chosen_because": choice["reason"]} if choice else {}),
        "rows": int(model.n_samples_seen_),
        "features": list(source.feature_names or ()),
        "log_evidence": float(model.log_evidence_),
        "noise_std": float(model.noise_var_) ** 0.5,
        "kernel": repr(model.kernel_),
        "learning_steps": watcher.steps,
        "stopped_by": watcher.stopped_by,
        "fraction_used": watcher.fraction,
        "seconds": time.perf_counter() - started,
        "megabytes": output.stat().st_size / 1e6,
    }
    show("Fitted", result, as_json)
    if watcher.fraction < 1.0:
        note(f"{output} is a model of {watcher.fraction:.1%} of the rows. It can be updated with other rows.")
    if watcher.interrupted:
        note(f"Interrupted: {output} holds the best model so far.")
        raise typer.Exit(INTERRUPTED)

"""`sparsegp fit`: a model file from a table."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegp.cli import options, table_columns
from sparsegp.cli.output import note, print_json, say, show
from sparsegp.cli.watch import INTERRUPTED, Watcher, watched
from sparsegp.errors import InputError
from sparsegp.whole_file import destination

if TYPE_CHECKING:
    from sparsegp.data import Files

DEFAULT_APPROXIMATION = {"sparse": options.AUTO, "heteroscedastic": "vfe", "committee": "exact"}

NOTHING = 0.005
"""Shares of the variance below this are shown as none."""
FOR_SCRIPTS = {
    "features",
    "chosen_because",
    "held_out_rows",
    "held_out_rmse",
    "held_out_r2",
    "held_out_coverage_95",
}
"""Facts of `--json` that people find in the sentences below the table, or in the report."""


@dataclass(frozen=True)
class Settings:
    """What the caller chose about a model. `columns` has the kinds of columns that the caller knows better."""

    model: str
    approximation: str | None
    kernel: str
    n_inducing: int | str
    power: float
    n_blocks: int | None
    optimizer: str
    seed: int
    verbose: bool
    columns: dict[str, str] | None = None
    target_transform: str | None = None

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
            "columns": self.columns,
            "target_transform": self.target_transform,
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
    categorical: options.Categorical = None,
    ignore: options.Ignore = None,
    dates: options.Dates = None,
    model: options.ModelKind = "sparse",
    approximation: options.Approximation = None,
    kernel: options.Kernel = "auto",
    n_inducing: options.Inducing = 512,
    power: options.Power = 0.5,
    n_blocks: options.Blocks = None,
    optimizer: options.Optimizer = "auto",
    target_transform: options.TargetTransform = None,
    weight: options.Weight = None,
    noise_var: options.NoiseVar = None,
    time_budget: options.Budget = None,
    seed: options.Seed = 0,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    no_header: options.NoHeader = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Fit a model to a table and save it.

    Ctrl-C saves the best model so far.
    """
    destination(output)  # found out before the work
    table_columns.require_other(output, data)
    kinds = kinds_of(categorical, ignore, dates)
    settings = Settings(
        model, approximation, kernel, n_inducing, power, n_blocks, optimizer, seed, verbose, kinds, target_transform
    )
    files = table_columns.files(data, sep, decimal, encoding, no_header)
    names = table_columns.names_in(features)
    files = replace(files, only=None if names is None else tuple(names), text=text_among(kinds))
    if noise_var is not None and model == "heteroscedastic":
        raise InputError("--noise-var is not for --model heteroscedastic, which learns the noise. Leave it out.")
    roles = {"target": target, "noise_var": noise_var, "sample_weight": weight}
    _fit_and_save(settings, files, roles, output, time_budget, as_json)


def kinds_of(categorical: str | None, ignore: str | None, dates: str | None) -> dict[str, str] | None:
    """What the caller says of columns; a column is said to be one thing."""
    kinds: dict[str, str] = {}
    for kind, option, text in (
        ("category", "--categorical", categorical),
        ("ignore", "--ignore", ignore),
        ("date", "--dates", dates),
    ):
        for name in table_columns.names_in(text) or ():
            if name in kinds:
                raise InputError(f"Column {name!r} of {option} is named for another kind already. Name it once.")
            kinds[name] = kind
    return kinds or None


def text_among(kinds: dict[str, str] | None) -> frozenset[str]:
    """The columns that CSV must not turn into numbers: 01234 is a category, and another one than 1234."""
    return frozenset(name for name, kind in (kinds or {}).items() if kind != "ignore")


def _fit_and_save(
    settings: Settings, data: "Files", roles: dict[str, Any], output: Path, time_budget: float | None, as_json: bool
) -> None:
    from sparsegp import files

    model, started, target = settings.estimator(), time.perf_counter(), roles["target"]
    given = {role: name for role, name in roles.items() if name is not None}
    with watched(model, time_budget, quiet=as_json or settings.verbose) as watcher:
        watcher.says(f"reading {data}")
        model.fit(data, **given)
        watcher.says("saving")
        source = table_columns.open_for(
            model, data, target, weight=roles["sample_weight"], noise_var=roles["noise_var"]
        )
        model.name_columns(model.feature_names_in_, target)
        # Also for a model of a part of the rows: they must not come a second time.
        files.record_batches(model, table_columns.content_id(model, source))
        with files.locked(output):  # no update is between its reading and its writing
            model.save(output)
    seconds = time.perf_counter() - started
    result = _result(settings, model, watcher, output, seconds)
    if as_json:
        print_json(result)
    else:
        facts = {name: value for name, value in result.items() if name not in FOR_SCRIPTS}
        show("Fitted", {**facts, "kernel": type(model.kernel_).__name__}, as_json)
        for sentence in sentences(model, target):
            say(sentence)
    if watcher.fraction < 1.0:
        note(f"{output} is a model of {watcher.fraction:.1%} of the rows: the time was up before it had seen all.")
    if watcher.interrupted:
        note(f"Interrupted: {output} holds the best model so far.")
        raise typer.Exit(INTERRUPTED)


def _result(settings: Settings, model: Any, watcher: Watcher, output: Path, seconds: float) -> dict[str, Any]:
    choice, columns = model.info_.get("choice", {}), model.fitted_.columns
    transform = model.scaling_.transform
    return {
        "model": str(output),
        "approximation": choice.get("approximation", settings.chosen),
        **({"chosen_because": choice["reason"]} if choice else {}),
        "rows": int(model.n_samples_seen_),
        "features": list(map(str, columns.names)),
        "columns": columns.words,
        **({} if transform is None else {"target_transform": transform.name}),
        "log_evidence": float(model.log_evidence_),
        "noise_std": float(model.noise_var_) ** 0.5,
        "kernel": repr(model.kernel_),
        "learning_steps": watcher.steps,
        "stopped_by": watcher.stopped_by,
        "fraction_used": watcher.fraction,
        **held_out_scores(model),
        "seconds": seconds,
        "megabytes": output.stat().st_size / 1e6,
    }


def held_out_scores(model: Any) -> dict[str, Any]:
    """Of rows that the model did not see when it was judged; nothing where no rows were held out."""
    found = model.info_.get("calibration", {})
    if "rmse" not in found:
        return {}
    names = {"rmse": "held_out_rmse", "r2": "held_out_r2", "coverage_95": "held_out_coverage_95"}
    n_rows = found.get("held_out", found.get("left_out"))
    return {"held_out_rows": n_rows, **{shown: float(found[name]) for name, shown in names.items()}}


def sentences(model: Any, target: str) -> list[str]:
    """How good the model is, and what was chosen and why: one sentence each."""
    sentences, scores, choice = [], held_out_scores(model), model.info_.get("choice", {})
    transform = model.scaling_.transform
    target = target if transform is None else f"{transform.name}({target})"
    if scores:
        sentences += [
            f"On {scores['held_out_rows']:,} rows left out of the fit, forecasts of {target} are off by "
            f"{scores['held_out_rmse']:.4g} (RMSE) and {_explained(scores['held_out_r2'])}.",
            f"Of these rows {scores['held_out_coverage_95']:.1%} are within their 95% interval.",
        ]
    else:
        sentences.append("No rows were left out to judge the model: sparsegp evaluate MODEL DATA scores it on others.")
    if choice:
        name, reason = choice["approximation"], choice["reason"]
        sentences.append(f"Chosen: {reason}." if reason.startswith(name) else f"Chosen: {name}, because {reason}.")
    return sentences


def _explained(r2: float) -> str:
    if r2 < NOTHING:
        return "no better than the average of the target (R2 is not above 0)"
    return f"explain {r2:.1%} of its variance (R2)"

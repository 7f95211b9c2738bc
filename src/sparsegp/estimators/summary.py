"""What a notebook shows of a fitted model: what was chosen, and how well rows left out of the fit were predicted."""

from collections.abc import Mapping
from html import escape
from typing import Any

from sparsegp.calibration.transform import TargetTransform
from sparsegp.core.approximations import Family

NO_SCORES = "no rows were left out of the fit: see gp.diagnose(X_test, y_test)"
STYLE = "border-collapse:collapse;margin:.3em 0 .6em"
CELL = "text-align:left;padding:.15em .8em .15em 0;vertical-align:top"


def fitted_html(model: Any) -> str:
    """A table for the page of a notebook, in its own colours; empty before the fit."""
    if not hasattr(model, "fitted_"):
        return ""
    lines = "".join(
        f'<tr><th style="{CELL}">{escape(name)}</th><td style="{CELL}">{escape(value)}</td></tr>'
        for name, value in summary(model).items()
    )
    return f'<table style="{STYLE}"><tbody>{lines}</tbody></table>'


def summary(model: Any) -> dict[str, str]:
    """What was chosen and how good it is, by name and in words."""
    info, transform = model.info_, model.scaling_.transform
    seconds = "" if "seconds" not in info else f", fitted in {info['seconds']:.3g} s"
    lines = {
        "Model": _approximation(model),
        "Kernel": repr(model.kernel_),
        "Rows": f"{model.n_samples_seen_:,} rows, {model.n_features_in_} columns{seconds}",
        "Forecasts": _forecasts(info),
        "Scores": _scores(info.get("calibration", {}), transform),
    }
    if transform is not None:
        lines["Target"] = f"{transform.name}(y) is learned, and carried back to y"
    fraction = info.get("budget", {}).get("fraction", 1.0)
    if fraction < 1.0:
        lines["Unfinished"] = f"the time was up: the model rests on {fraction:.1%} of its rows"
    return lines


def _approximation(model: Any) -> str:
    approx, choice = model.model_.approx, model.info_.get("choice")
    if approx is None:
        return f"{model.info_.get('n_experts', 'several')} experts, {model.expert}"
    inducing = "" if approx.family is Family.EXACT else f" with {len(model.inducing_):,} inducing inputs"
    why = "" if choice is None else f" ({choice['reason']})"
    return f"{approx.name}{inducing}{why}"


def _forecasts(info: Mapping[str, Any]) -> str:
    kind = info.get("calibration", {}).get("kind")
    trend = info.get("trend")
    widths = {"shape": "one shape for all rows", "scale": "a width that varies from place to place"}
    calibrated = f"calibrated on rows left out: {widths[kind]}" if kind in widths else "those of the model itself"
    return calibrated if trend is None else f"{calibrated}; {trend} trend"


def _scores(found: Mapping[str, Any], transform: TargetTransform | None) -> str:
    n_rows = found.get("held_out", found.get("left_out"))
    if n_rows is None or "rmse" not in found:
        return NO_SCORES
    inside = found.get("coverage_95")
    coverage = "" if inside is None else f", {inside:.1%} inside the 95% interval"
    how = "held out of the fit" if "held_out" in found else "each left out in turn"
    of = "" if transform is None else f" of {transform.name}(y)"
    return f"RMSE{of} {found['rmse']:.4g}, R²{of} {found['r2']:.3f}{coverage}, on {n_rows:,} rows {how}"

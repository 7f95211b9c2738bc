"""What a model assumes and what it learned, in plain words and in the units of the data."""

import math
from typing import Any

import numpy as np

from sparsegp import kernels
from sparsegp.core.approximations import Family
from sparsegp.core.predictive import Array
from sparsegp.display.column_plots import column_lengthscales
from sparsegp.estimators.diagnosis import approximation_of, knows_noise, learns_noise, scaling_of
from sparsegp.estimators.judging import column_names
from sparsegp.report.numbers import shown

SMOOTHNESS: dict[type[kernels.Kernel], str] = {
    kernels.SquaredExponential: "very smooth, without kinks or jumps",
    kernels.Matern52: "smooth, with slopes and curvature that change gradually",
    kernels.Matern32: "continuous with gradually changing slopes, but rough in detail",
    kernels.Matern12: "continuous but jagged, like a random walk",
    kernels.RationalQuadratic: "smooth, with slow and fast changes at the same time",
}


def assumptions(model: Any) -> list[str]:
    """Sentences that must hold for the intervals to be right."""
    kernel = model.kernel_
    smooth = SMOOTHNESS.get(type(kernel))
    shape = f"The function is {smooth}" if smooth else f"The function varies as the kernel {kernel!r} says"
    stationary = isinstance(kernel, kernels.Stationary)
    transform = scaling_of(model).transform
    target = "The target" if transform is None else f"The {transform.name} of the target"
    return [
        f"{target} is a function of the columns plus noise, and the function is one draw of a Gaussian process.",
        f"{shape}{', and it changes equally fast everywhere' if stationary else ''}.",
        _about_noise(model),
        "Rows are independent of each other once the function is known: errors that persist from row to row are not "
        "part of the model.",
        f"Far from all rows, predictions return to {shown(_far_away(model))} with a wide interval.",
        _about_approximation(model),
        *_about_rows(model),
    ]


def _far_away(model: Any) -> float:
    """The median there."""
    scaling = scaling_of(model)
    middle = scaling.y_mean
    return middle if scaling.transform is None else float(scaling.transform.inverse(np.array(middle)))


def _about_noise(model: Any) -> str:
    if learns_noise(model):
        return "The noise is Gaussian; its size differs from place to place and changes gradually with the columns."
    std = math.sqrt(model.noise_var_)
    if knows_noise(model):
        return f"The noise is Gaussian with the known variance of each row (for new rows their mean, std {shown(std)})."
    said = f"The noise is Gaussian and equally strong everywhere (std {shown(std)})."
    if getattr(model, "calibration_", None) is None:
        return said
    return f"{said} Where rows left out of the fit show another width or shape, the calibration corrects forecasts."


def _about_rows(model: Any) -> list[str]:
    """A sentence if the time of the fit was up before all rows were seen."""
    fraction = model.info_.get("budget", {}).get("fraction", 1.0)
    if fraction >= 1.0:
        return []
    return [f"The time of the fit was up: the model rests on {fraction:.1%} of its rows, as if all were like them."]


def _about_approximation(model: Any) -> str:
    approx = approximation_of(model)
    if approx is None:
        n_experts = model.info_.get("n_experts", "Several")
        return f"{n_experts} experts, each with its own rows, answer together ({model.expert} experts)."
    m = len(model.inducing_)
    if approx.family is Family.EXACT or (approx.is_local and model.info_.get("n_blocks") == 1):
        return "All rows are used exactly, without an approximation."
    if approx.family is Family.SUBSET:
        return f"Only {m} of the rows are used; the others are ignored."
    if approx.is_local:
        return f"What lies far away is summarised by {m} inducing inputs; rows of the same block are used exactly."
    return f"All rows are summarised by {m} inducing inputs ({approx.name}): detail finer than their spacing is lost."


def parameters(model: Any, X: Array, target_name: str) -> list[tuple[str, str, str]]:
    """What was learned: name, value in the units of the data, what it means."""
    transform = scaling_of(model).transform
    target_name = target_name if transform is None else f"{transform.name}({target_name})"
    rows = [("Noise", shown(math.sqrt(model.noise_var_)), f"standard deviation of {target_name} around the function")]
    kernel = model.kernel_
    if isinstance(kernel, kernels.Stationary):
        std = math.sqrt(float(kernel.variance.detach()))
        rows.append(("Signal", shown(std), f"how far the function moves around the mean of {target_name}"))
    spread, names, groups = X.std(axis=0), column_names(model), model.fitted_.columns.layout.groups
    found = zip(names, spread, column_lengthscales(kernel, X.shape[1]), groups, (-1, *groups), strict=False)
    for name, own, lengthscale, group, before in found:
        # the numbers of a group have one lengthscale
        if np.isfinite(lengthscale) and group != before:
            in_stds = f" ({shown(lengthscale / own, 3)} std of the column)" if own > 0 else ""
            rows.append((f"Lengthscale of {name}", shown(lengthscale), f"a step that changes f{in_stds}"))
    rows.append(("Log evidence", f"{model.log_evidence_:,.1f}", "of the training rows, in the units of the model"))
    return rows

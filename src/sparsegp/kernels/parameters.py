"""Checked positive parameters, and how they follow a change of units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from sparsegp.errors import InputError

Values: TypeAlias = float | Sequence[float] | np.ndarray | Tensor

EQUAL_UNITS = 1e-13
MOST_SHOWN = 32


def finite_vector(name: str, value: Values) -> Tensor:
    """A float64 vector: a number becomes one entry."""
    try:
        vector = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a number or a list of numbers; got {value!r}") from error
    if vector.ndim > 1 or vector.numel() == 0 or not bool(torch.isfinite(vector).all()):
        raise InputError(f"{name} must be one finite number, or one for each feature; got {value!r}")
    return vector.reshape(-1)


def log_parameter(name: str, value: Values) -> torch.nn.Parameter:
    """The logarithm of a positive number or vector as a learned parameter."""
    vector = finite_vector(name, value)
    if bool((vector <= 0).any()):
        raise InputError(f"{name} must be greater than zero; got {value!r}")
    return torch.nn.Parameter(vector.log())


def log_scalar_parameter(name: str, value: Values) -> torch.nn.Parameter:
    """The logarithm of one positive number as a learned parameter without dimensions."""
    parameter = log_parameter(name, value)
    if parameter.numel() != 1:
        raise InputError(f"{name} must be a single number; got {value!r}")
    return torch.nn.Parameter(parameter.detach().reshape(()))


def check_length(name: str, vector: Tensor, n_features: int) -> None:
    """One entry for all features, or one for each."""
    if vector.numel() not in (1, n_features):
        raise InputError(
            f"the kernel has {vector.numel()} {name} but sees {n_features} features; "
            f"give a single number or {n_features} of them (with active_dims: one for each active column)"
        )


def checked_groups(groups: Sequence[int]) -> tuple[int, ...]:
    """For each feature the number of its group; all numbers from 0 to the last occur."""
    numbers = np.asarray(groups)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or set(numbers.tolist()) != set(range(len(set(groups)))):
        raise InputError(
            f"groups must have for each feature the number of its group, 0 to G-1, none left out; got {groups!r}"
        )
    return tuple(numbers.tolist())


def per_group(name: str, parameter: torch.nn.Parameter, groups: tuple[int, ...]) -> torch.nn.Parameter:
    """A parameter with an entry for each group: as given, or all from one number."""
    n_groups = max(groups) + 1
    if parameter.numel() not in (1, n_groups):
        raise InputError(
            f"the kernel has {parameter.numel()} {name} for {n_groups} groups of features; give a single number or "
            f"{n_groups} of them"
        )
    return torch.nn.Parameter(parameter.detach().expand(n_groups).clone())


def check_change_of_units(x_shift: Tensor, x_scale: Tensor, y_scale: float) -> tuple[Tensor, Tensor, float]:
    """x_shift and x_scale as float64 vectors of one length, no scale being zero."""
    shift, scale = finite_vector("x_shift", x_shift), finite_vector("x_scale", x_scale)
    if shift.shape != scale.shape:
        raise InputError(f"x_shift and x_scale need one entry per feature; got {len(shift)} and {len(scale)}")
    if bool((scale == 0).any()) or not (np.isfinite(y_scale) and y_scale > 0):
        raise InputError(f"x_scale must not be zero, y_scale must be positive; got {x_scale!r}, {y_scale!r}")
    return shift, scale, float(y_scale)


def split_units(
    units: Tensor, scale: Tensor, n_parameters: int, groups: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """(log_factor, new_units) with exp(log_factor) * new_units = units * |scale|.

    A parameter per feature takes the whole factor. A parameter that all features share, or those of a group, takes
    the geometric mean, and the units keep the rest, so that it stays one parameter in the units where it was given.
    """
    logs = (units.cpu() * scale.abs()).log()
    if groups is None:
        log_factor = logs if n_parameters > 1 else logs.mean(0, keepdim=True)
        rest = logs - log_factor
    else:
        index = torch.tensor(groups)
        log_factor = logs.new_zeros(n_parameters).index_add(0, index, logs) / index.bincount()
        rest = logs - log_factor[index]
    return log_factor, torch.ones(1, dtype=torch.float64) if rest.abs().max() < EQUAL_UNITS else rest.exp()


def format_values(values: Tensor) -> str:
    """Six digits: a bare number for one entry, a list for a few, the shape for many."""
    if values.numel() > MOST_SHOWN or values.ndim > 1:
        return f"<{'x'.join(str(size) for size in values.shape)}>"
    texts = [f"{value:.6g}" for value in values.detach().reshape(-1).tolist()]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"

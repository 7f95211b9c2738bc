"""The kernels of the package in numpy, for values only. They are tested against those in torch."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsegp.serving.forms import KIND

Array = NDArray[np.float64]
Form = Mapping[str, Any]

ROOT_3, ROOT_5 = 3.0**0.5, 5.0**0.5


class _Values(NamedTuple):
    """How a kind of kernel gives [k(x_i, z_j)] and [k(x_i, x_i)] from its numbers."""

    matrix: Callable[[Form, Array, Array], Array]
    diagonal: Callable[[Form, Array], Array]


def knows(form: Form) -> bool:
    """Whether a saved kernel and all its parts can be evaluated here."""
    return not form["custom"] and form[KIND] in _KINDS and all(map(knows, _parts(form)))


def matrix(form: Form, X: Array, Z: Array) -> Array:
    """[k(x_i, z_j)]."""
    return _KINDS[form[KIND]].matrix(form, _active(form, X), _active(form, Z))


def diagonal(form: Form, X: Array) -> Array:
    """[k(x_i, x_i)]."""
    return _KINDS[form[KIND]].diagonal(form, _active(form, X))


def _active(form: Form, X: Array) -> Array:
    dims = form["attributes"].get("active_dims")
    return X if dims is None else X[:, dims]


def _parts(form: Form) -> list[Form]:
    inner: dict[str, Any] = form["kernels"]
    return [part for parts in inner.values() for part in (parts if isinstance(parts, list) else [parts])]


def _parameter(form: Form, name: str) -> Array:
    """A positive parameter, which is stored as its logarithm."""
    value: Array = np.exp(form["parameters"][f"log_{name}"])
    return value


def _squared_distances(A: Array, B: Array) -> Array:
    squares: Array = np.square(A).sum(1)[:, None] + np.square(B).sum(1) - 2.0 * A @ B.T
    return np.maximum(squares, 0.0, out=squares)


def _constant_diagonal(form: Form, X: Array) -> Array:
    return np.full(len(X), _parameter(form, "variance"))


def _stationary(profile: Callable[[Form, Array], Array]) -> _Values:
    """variance * profile(sum_d (x_d - z_d)^2 / l_d^2), about a common centre so that large inputs do not cancel."""

    def evaluate(form: Form, X: Array, Z: Array) -> Array:
        scale, center = _parameter(form, "lengthscales") * form["buffers"]["units"], Z.mean(0)
        squares = _squared_distances((X - center) / scale, (Z - center) / scale)
        return _parameter(form, "variance") * profile(form, squares)

    return _Values(evaluate, _constant_diagonal)


def _squared_exponential(_: Form, squares: Array) -> Array:
    out: Array = np.exp(-0.5 * squares)
    return out


def _matern12(_: Form, squares: Array) -> Array:
    out: Array = np.exp(-np.sqrt(squares))
    return out


def _matern32(_: Form, squares: Array) -> Array:
    r = ROOT_3 * np.sqrt(squares)
    out: Array = (1.0 + r) * np.exp(-r)
    return out


def _matern52(_: Form, squares: Array) -> Array:
    r = ROOT_5 * np.sqrt(squares)
    out: Array = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return out


def _rational_quadratic(form: Form, squares: Array) -> Array:
    shape = _parameter(form, "shape")
    out: Array = np.exp(-shape * np.log1p(squares / (2.0 * shape)))
    return out


def _periodic(form: Form, X: Array, Z: Array) -> Array:
    center = Z.mean(0)
    squares = _squared_distances(_circle(form, X - center), _circle(form, Z - center))
    return _parameter(form, "variance") * _squared_exponential(form, squares)


def _circle(form: Form, X: Array) -> Array:
    """Points whose squared distance is 4 sum_d sin^2(pi (x_d - z_d) / period_d) / l_d^2."""
    angle = X * (2.0 * np.pi / (_parameter(form, "period") * form["buffers"]["units"]))
    lengthscales = _parameter(form, "lengthscales")
    return np.concatenate([np.cos(angle) / lengthscales, np.sin(angle) / lengthscales], axis=1)


def _linear(form: Form, X: Array, Z: Array) -> Array:
    center: Array = form["buffers"]["center"]
    return (X - center) * _slope_variance(form) @ (Z - center).T


def _linear_diagonal(form: Form, X: Array) -> Array:
    out: Array = (np.square(X - form["buffers"]["center"]) * _slope_variance(form)).sum(1)
    return out


def _slope_variance(form: Form) -> Array:
    out: Array = _parameter(form, "variance") / np.square(form["buffers"]["units"])
    return out


def _combined(operation: Callable[[Array, Array], Array]) -> _Values:
    return _Values(
        lambda form, X, Z: reduce(operation, [matrix(part, X, Z) for part in _parts(form)]),
        lambda form, X: reduce(operation, [diagonal(part, X) for part in _parts(form)]),
    )


_KINDS: Mapping[str, _Values] = {
    "SquaredExponential": _stationary(_squared_exponential),
    "Matern12": _stationary(_matern12),
    "Matern32": _stationary(_matern32),
    "Matern52": _stationary(_matern52),
    "RationalQuadratic": _stationary(_rational_quadratic),
    "Periodic": _Values(_periodic, _constant_diagonal),
    "Linear": _Values(_linear, _linear_diagonal),
    "Constant": _Values(lambda form, X, Z: np.full((len(X), len(Z)), _parameter(form, "variance")), _constant_diagonal),
    "Power": _Values(
        lambda form, X, Z: matrix(form["kernels"]["base"], X, Z) ** form["attributes"]["exponent"],
        lambda form, X: diagonal(form["kernels"]["base"], X) ** form["attributes"]["exponent"],
    ),
    "Sum": _combined(np.add),
    "Product": _combined(np.multiply),
}

"""The kernels of the package in numpy, for values only. They are tested against those in torch."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsegp.files.schema import Kernel, KernelNode

Array = NDArray[np.float64]
Value = TypeVar("Value")

ROOT_3, ROOT_5 = 3.0**0.5, 5.0**0.5
EARTH_RADIUS = 6371.0088
FARTHEST_SQ = 120.0
FARTHEST = 1e100  # squares do not overflow


class _Values(NamedTuple):
    """How a kind of kernel gives [k(x_i, z_j)] and [k(x_i, x_i)] from its numbers."""

    matrix: Callable[[KernelNode, Array, Array], Array]
    diagonal: Callable[[KernelNode, Array], Array]


def knows(kernel: Kernel) -> bool:
    """Whether a saved kernel and all its parts can be evaluated here."""
    return all(node.kind in _LEAVES or node.kind in _COMBINED for node in kernel.nodes)


def matrix(kernel: Kernel, X: Array, Z: Array) -> Array:
    """[k(x_i, z_j)]."""
    return _matrix(kernel, len(kernel.nodes) - 1, X, Z)


def diagonal(kernel: Kernel, X: Array) -> Array:
    """[k(x_i, x_i)]."""
    return _diagonal(kernel, len(kernel.nodes) - 1, X)


def _matrix(kernel: Kernel, number: int, X: Array, Z: Array) -> Array:
    node = kernel.nodes[number]
    X, Z = seen(node, X), seen(node, Z)
    if node.kind in _LEAVES:
        return _LEAVES[node.kind].matrix(node, X, Z)
    return _COMBINED[node.kind](node, [_matrix(kernel, part, X, Z) for part in _parts(node, number)])


def _diagonal(kernel: Kernel, number: int, X: Array) -> Array:
    node = kernel.nodes[number]
    X = seen(node, X)
    if node.kind in _LEAVES:
        return _LEAVES[node.kind].diagonal(node, X)
    return _COMBINED[node.kind](node, [_diagonal(kernel, part, X) for part in _parts(node, number)])


def seen(node: KernelNode, X: Array) -> Array:
    """The columns that a kernel sees, in its own units."""
    own = X if node.active_columns is None else X[:, node.active_columns]
    if node.kind != "rescaled":
        return own
    units: Array = (own - present(node.input_shift)) / present(node.input_scale)
    return units


def _parts(node: KernelNode, number: int) -> list[int]:
    """The numbers of its parts, which come before it: so there is no way round in circles."""
    parts = present(node.parts)
    if not parts or not all(0 <= part < number for part in parts):
        raise ValueError(f"a kernel is made of nodes {parts}, which must come before it")
    return parts


def present(value: Value | None) -> Value:
    if value is None:
        raise ValueError("a kernel lacks a value of its kind")
    return value


def _exp(log_value: Array | None) -> Array:
    """A positive parameter, which is stored as its logarithm."""
    value: Array = np.exp(present(log_value))
    return value


def _squared_distances(A: Array, B: Array) -> Array:
    """|a_i - b_j|^2 from one product of [a, |a|^2, 1] and [-2 b, 1, |b|^2]."""
    A, B = (np.clip(rows, -FARTHEST, FARTHEST) for rows in (A, B))
    one_a, one_b = np.ones((len(A), 1)), np.ones((len(B), 1))
    left = np.hstack([A, np.square(A).sum(1, keepdims=True), one_a])
    right = np.hstack([-2.0 * B, one_b, np.square(B).sum(1, keepdims=True)])
    squares: Array = left @ right.T
    return np.maximum(squares, 0.0, out=squares)


def _constant_diagonal(node: KernelNode, X: Array) -> Array:
    return np.full(len(X), _exp(node.log_variance))


def _stationary(profile: Callable[[KernelNode, Array], Array]) -> _Values:
    """variance * profile(sum_d (x_d - z_d)^2 / l_d^2), about a common centre so that large inputs do not cancel."""

    def evaluate(node: KernelNode, X: Array, Z: Array) -> Array:
        learned, center = _exp(node.log_lengthscales), Z.mean(0)
        scale = (learned if node.groups is None else learned[node.groups]) * present(node.units)
        squares = _squared_distances((X - center) / scale, (Z - center) / scale)
        K = profile(node, squares)
        K *= _exp(node.log_variance)
        return K

    return _Values(evaluate, _constant_diagonal)


def _squared_exponential(_: KernelNode, squares: Array) -> Array:
    """In place. What is below 1e-26 stays there: products of smaller numbers are slow."""
    np.minimum(squares, FARTHEST_SQ, out=squares)
    squares *= -0.5
    return np.exp(squares, out=squares)


def _matern12(_: KernelNode, squares: Array) -> Array:
    np.sqrt(squares, out=squares)
    return np.exp(np.negative(squares, out=squares), out=squares)


def _matern32(_: KernelNode, squares: Array) -> Array:
    np.sqrt(squares, out=squares)
    squares *= -ROOT_3
    decay = np.exp(squares)
    np.subtract(1.0, squares, out=squares)
    squares *= decay
    return squares


def _matern52(_: KernelNode, squares: Array) -> Array:
    r = np.sqrt(squares)
    r *= -ROOT_5
    squares *= 5.0 / 3.0
    squares -= r
    squares += 1.0
    squares *= np.exp(r, out=r)
    return squares


def _rational_quadratic(node: KernelNode, squares: Array) -> Array:
    shape = _exp(node.log_shape)
    out: Array = np.exp(-shape * np.log1p(squares / (2.0 * shape)))
    return out


def _periodic(node: KernelNode, X: Array, Z: Array) -> Array:
    center = Z.mean(0)
    squares = _squared_distances(_circle(node, X - center), _circle(node, Z - center))
    return _exp(node.log_variance) * _squared_exponential(node, squares)


def _circle(node: KernelNode, X: Array) -> Array:
    """Points whose squared distance is 4 sum_d sin^2(pi (x_d - z_d) / period_d) / l_d^2."""
    angle = X * (2.0 * np.pi / (_exp(node.log_period) * present(node.units)))
    lengthscales = _exp(node.log_lengthscales)
    return np.concatenate([np.cos(angle) / lengthscales, np.sin(angle) / lengthscales], axis=1)


def _linear(node: KernelNode, X: Array, Z: Array) -> Array:
    center: Array = present(node.center)
    return (X - center) * _slope_variance(node) @ (Z - center).T


def _linear_diagonal(node: KernelNode, X: Array) -> Array:
    out: Array = (np.square(X - present(node.center)) * _slope_variance(node)).sum(1)
    return out


def _slope_variance(node: KernelNode) -> Array:
    out: Array = _exp(node.log_variance) / np.square(present(node.units))
    return out


def _power(node: KernelNode, parts: list[Array]) -> Array:
    (base,) = parts
    out: Array = base ** present(node.exponent)
    return out


def _great_circle(node: KernelNode, X: Array, Z: Array) -> Array:
    scale = EARTH_RADIUS / _exp(node.log_lengthscales)
    squares = _squared_distances(scale * places(X), scale * places(Z))
    return _exp(node.log_variance) * _PROFILES[present(node.profile)](node, squares)


def places(X: Array) -> Array:
    """Points on a ball of radius 1, of longitudes and latitudes in degrees."""
    longitude, latitude = np.deg2rad(X).T
    flat = np.cos(latitude)
    return np.column_stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)])


_PROFILES: Mapping[str, Callable[[KernelNode, Array], Array]] = {
    "squared_exponential": _squared_exponential,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
}
_LEAVES: Mapping[str, _Values] = {
    "squared_exponential": _stationary(_squared_exponential),
    "matern12": _stationary(_matern12),
    "matern32": _stationary(_matern32),
    "matern52": _stationary(_matern52),
    "rational_quadratic": _stationary(_rational_quadratic),
    "periodic": _Values(_periodic, _constant_diagonal),
    "great_circle": _Values(_great_circle, _constant_diagonal),
    "linear": _Values(_linear, _linear_diagonal),
    "constant": _Values(lambda node, X, Z: np.full((len(X), len(Z)), _exp(node.log_variance)), _constant_diagonal),
}
_COMBINED: Mapping[str, Callable[[KernelNode, list[Array]], Array]] = {
    "sum": lambda node, parts: reduce(np.add, parts),
    "product": lambda node, parts: reduce(np.multiply, parts),
    "power": _power,
    "rescaled": lambda node, parts: present(node.output_scale) ** 2 * parts[0],
}

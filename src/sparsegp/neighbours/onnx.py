"""Mean and standard deviation of a model of inducing values as an ONNX graph, for runtimes without Python.

The graph has the formulas of `sparsegp.serving`, in double precision: standardise, covariances with the inducing
inputs, two products, and the calibrated width.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.scale import LocalScale
from sparsegp.core.predictive import Array
from sparsegp.errors import InputError, ModelFileError
from sparsegp.estimators import records
from sparsegp.estimators.estimator import Estimator
from sparsegp.files import calibration_parts, model_file, schema
from sparsegp.files.schema import Kernel, KernelNode
from sparsegp.serving import algebra, covariance
from sparsegp.serving.covariance import EARTH_RADIUS, places, present, seen
from sparsegp.serving.posteriors import SMALLEST_VARIANCE
from sparsegp.whole_file import replacing

__all__ = ["export", "graph_of"]

OPSET, IR_VERSION = 17, 8
_Leaf = tuple[Callable[["_Graph", KernelNode, str, Array], str], Callable[["_Graph", KernelNode, str], str]]
"""How a kind of kernel writes down [k(x_i, z_j)] and [k(x_i, x_i)]."""
ROOT_3, ROOT_5 = math.sqrt(3.0), math.sqrt(5.0)


def export(model: Any, path: str | os.PathLike[str]) -> Path:
    """Write an ONNX file with the input X [rows, columns] and the outputs mean and std [rows], all double.

    Parameters
    ----------
    model : a fitted SparseGPRegressor, or the path of a model file
        A model of inducing values ("vfe", "fitc", "sor", ...) under kernels of this package, in float64.
    path : str or Path
        Where to write.

    Returns
    -------
    Path

    Raises
    ------
    ModelFileError
        If predictions need more than inducing values: training rows, blocks, learned noise, experts or a kernel of
        your own.
    """
    graph = graph_of(model)
    with replacing(path) as out:
        out.write(graph.SerializeToString())
    return Path(path)


def graph_of(model: Any) -> onnx.ModelProto:
    """The same as an object of the onnx package."""
    if isinstance(model, str | os.PathLike):
        record = model_file.read(model)
    elif isinstance(model, Estimator):
        record = records.describe(model)
    else:
        raise InputError(f"model must be a fitted estimator or the path of a model file; got {type(model).__name__}.")
    graph = _Graph()
    mean, std = _forecast(graph, _Formula.of(record), "X")
    graph.named("Identity", [mean], "mean")
    graph.named("Identity", [std], "std")
    rows = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["rows"]) for name in ("mean", "std")]
    inputs = helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["rows", record.columns.count])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "sparsegp", [inputs], rows, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="sparsegp",
    )
    made.ir_version = IR_VERSION
    onnx.checker.check_model(made)
    return made


class _Formula(NamedTuple):
    """The numbers that a prediction is computed from. `whiten` is L^-1, `spread` B^-1 times that."""

    scaling: schema.Scaling
    kernel: Kernel
    inducing: Array
    whiten: Array
    spread: Array
    weights: Array
    deterministic: bool
    shape: Shape
    scale: LocalScale | None
    trend: schema.Trend | None
    noise_var: float

    @classmethod
    def of(cls, record: schema.Model) -> "_Formula":
        posterior, found = record.posterior, record.calibration
        values = None if posterior is None or posterior.form != schema.INDUCING else posterior.inducing
        if posterior is None or values is None or record.kind != schema.SPARSE or not covariance.knows(record.kernel):
            raise ModelFileError(
                "ONNX holds models of inducing values under kernels of this package, such as 'vfe' and 'fitc'. This "
                "one needs its training rows, blocks, learned noise, experts or a kernel of your own to predict: fit "
                "with approximation='vfe'."
            )
        if record.scaling.target_transform is not None:
            raise ModelFileError(
                f"ONNX export gives mean and std of the target that was learned, which target_transform="
                f"{record.scaling.target_transform!r} carries back. Fit the transformed target itself, without "
                "target_transform, and carry the outputs back where the graph runs."
            )
        size, total = len(values.inputs), len(values.mean)
        inner = _solved(algebra.lower(values.prior_cholesky, size), np.eye(size))
        whiten = np.eye(total)
        whiten[:size, :size] = inner
        scale = None if found is None or found.scale is None else found.scale
        return cls(
            scaling=record.scaling,
            kernel=record.kernel,
            inducing=values.inputs,
            whiten=inner,
            spread=_solved(algebra.lower(values.precision_cholesky, total), whiten),
            weights=whiten.T @ values.mean,
            deterministic=posterior.approximation.new_rows == "deterministic",
            shape=Shape.gaussian() if found is None else calibration_parts.restored_shape(found),
            scale=None if scale is None else calibration_parts.restored_scale(scale, record.columns.count),
            trend=posterior.trend,
            noise_var=record.noise_var,
        )


def _solved(A: Array, b: Array) -> Array:
    return np.linalg.solve(A, b).astype(np.float64, copy=False)


class _Graph:
    """Nodes and constants as they are written down; an operation gives the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        array = np.asarray(values)
        whole = array.dtype.kind in "iu"
        self.constants.append(numpy_helper.from_array(array.astype(np.int64 if whole else np.float64), name))
        return name

    def __call__(self, operation: str, *inputs: Any, **attributes: Any) -> str:
        """Inputs are names of results, or numbers."""
        return self.named(operation, inputs, f"n{len(self.nodes)}", **attributes)

    def named(self, operation: str, inputs: Sequence[Any], name: str, **attributes: Any) -> str:
        given = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(helper.make_node(operation, given, [name], **attributes))
        return name

    def columns(self, matrix: str, numbers: Any) -> str:
        return self("Gather", matrix, np.asarray(numbers, dtype=np.int64), axis=1)

    def row_sums(self, matrix: str, keep: bool = False) -> str:
        return self("ReduceSum", matrix, np.array([1], dtype=np.int64), keepdims=int(keep))

    def square_sums(self, matrix: str, keep: bool = False) -> str:
        return self.row_sums(self("Mul", matrix, matrix), keep)


def _forecast(g: _Graph, formula: _Formula, X: str) -> tuple[str, str]:
    """Mean and std of y."""
    scaling = formula.scaling
    rows = g("Div", g("Sub", X, scaling.input_mean), scaling.input_scale)
    mean, scaled, var = _moments(g, formula, rows)
    # in units of the model: var of y, and what calibration makes of it
    noise = formula.noise_var / scaling.target_scale**2
    std = g("Sqrt", g("Add", var, noise))
    unit = std if formula.scale is None else g("Mul", std, _local_scale(g, formula.scale, rows, scaled, std))
    factor = scaling.target_scale * math.sqrt(formula.shape.var)
    return g("Add", mean, scaling.target_mean), g("Mul", unit, factor)


def _moments(g: _Graph, formula: _Formula, rows: str) -> tuple[str, str, str]:
    """Mean of f in units of y but for target_mean; mean and variance, scaled: w^T m, k(x, x) - |w|^2 + |B^-1 w|^2."""
    top = len(formula.kernel.nodes) - 1
    K, prior_var = (f(g, formula.kernel, top, rows, formula.inducing) for f in (_matrix, _diagonal))
    whole = K
    if formula.trend is not None:
        ones = g("Add", g("Mul", g.columns(rows, [0]), 0.0), 1.0)
        terms = [ones] if not len(formula.trend.columns) else [ones, g.columns(rows, formula.trend.columns)]
        whole = g("Concat", K, g("Mul", g("Concat", *terms, axis=1), formula.trend.width), axis=1)
    var = g.square_sums(g("MatMul", whole, formula.spread.T))
    if not formula.deterministic:
        known = g.square_sums(g("MatMul", K, formula.whiten.T))
        var = g("Add", var, g("Sub", prior_var, known))
    scaled, scale = g("MatMul", whole, formula.weights), formula.scaling.target_scale
    mean = g("MatMul", whole, scale * formula.weights)
    return mean, scaled, g("Max", var, g("Mul", prior_var, SMALLEST_VARIANCE))


def _local_scale(g: _Graph, scale: LocalScale, rows: str, mean: str, std: str) -> str:
    """c = exp(strength t(s)), with every tree asked at once: the leaf of a row is a number in base 2."""
    trees, column = scale.trees, np.array([1], dtype=np.int64)
    s = g("Concat", rows, g("Unsqueeze", mean, column), g("Unsqueeze", g("Log", std), column), axis=1)
    n_trees, depth = trees.columns.shape
    asked = g("Greater", g.columns(s, trees.columns.ravel()), trees.thresholds.ravel())
    answers = g("Reshape", g("Cast", asked, to=TensorProto.INT64), np.array([-1, n_trees, depth]))
    leaf = g("ReduceSum", g("Mul", answers, 1 << np.arange(depth)), np.array([2]), keepdims=0)
    place = g("Add", leaf, np.arange(n_trees) << depth)
    level = g("Add", g.row_sums(g("Gather", trees.leaves.ravel(), place)), trees.base)
    most = math.log(scale.most)
    return g("Exp", g("Min", g("Max", g("Mul", level, scale.strength), -most), most))


def _matrix(g: _Graph, kernel: Kernel, number: int, X: str, Z: Array) -> str:
    """[k(x_i, z_j)] for rows of the graph and known Z."""
    node = kernel.nodes[number]
    X, Z = _seen(g, node, X), seen(node, Z)
    if node.kind == "rescaled":
        inner = _matrix(g, kernel, present(node.parts)[0], X, Z)
        return _times(g, inner, present(node.output_scale) ** 2, len(Z))
    if node.kind in _COMBINED:
        return _COMBINED[node.kind](g, node, [_matrix(g, kernel, part, X, Z) for part in present(node.parts)])
    return _LEAVES[node.kind][0](g, node, X, Z)


def _diagonal(g: _Graph, kernel: Kernel, number: int, X: str, Z: Array) -> str:
    """[k(x_i, x_i)]."""
    node = kernel.nodes[number]
    X = _seen(g, node, X)
    if node.kind == "rescaled":
        return g("Mul", _diagonal(g, kernel, present(node.parts)[0], X, Z), present(node.output_scale) ** 2)
    if node.kind in _COMBINED:
        return _COMBINED[node.kind](g, node, [_diagonal(g, kernel, part, X, Z) for part in present(node.parts)])
    return _LEAVES[node.kind][1](g, node, X)


def _seen(g: _Graph, node: KernelNode, X: str) -> str:
    """The columns that a kernel sees, in its own units."""
    own = X if node.active_columns is None else g.columns(X, node.active_columns)
    if node.kind != "rescaled":
        return own
    return g("Div", g("Sub", own, present(node.input_shift)), present(node.input_scale))


def _exp(log_value: Array | None) -> Array:
    return np.asarray(np.exp(present(log_value)), dtype=np.float64)


def _constant_diagonal(g: _Graph, node: KernelNode, X: str) -> str:
    zeros = g("Mul", g.row_sums(X), 0.0)
    return g("Add", zeros, _exp(node.log_variance).reshape(-1)[0])


def _squared_distances(g: _Graph, A: str, B: Array, scale: Any = 1.0) -> str:
    """Of the rows of A/scale and B/scale."""
    own = g.square_sums(g("Div", A, scale), keep=True)
    cross = g("MatMul", A, (-2.0 * B / np.square(scale)).T)
    return g("Max", g("Add", g("Add", own, np.square(B / scale).sum(1)), cross), 0.0)


def _times(g: _Graph, matrix: str, factor: Any, n_columns: int) -> str:
    """A matrix times a number, as one number a column: where a single number stands beside a product of matrices,
    runtimes join them in single precision."""
    return g("Mul", matrix, np.full((1, n_columns), float(np.ravel(factor)[0])))


def _stationary(profile: Callable[[_Graph, KernelNode, str], str]) -> _Leaf:
    def matrix(g: _Graph, node: KernelNode, X: str, Z: Array) -> str:
        learned, center = _exp(node.log_lengthscales), Z.mean(0)
        scale = (learned if node.groups is None else learned[node.groups]) * present(node.units)
        squares = _squared_distances(g, g("Sub", X, center), Z - center, scale)
        return _times(g, profile(g, node, squares), _exp(node.log_variance), len(Z))

    return matrix, _constant_diagonal


def _squared_exponential(g: _Graph, _: KernelNode, squares: str) -> str:
    return g("Exp", g("Mul", squares, -0.5))


def _matern12(g: _Graph, _: KernelNode, squares: str) -> str:
    return g("Exp", g("Mul", g("Sqrt", squares), -1.0))


def _matern32(g: _Graph, _: KernelNode, squares: str) -> str:
    r = g("Mul", g("Sqrt", squares), ROOT_3)
    return g("Mul", g("Add", r, 1.0), g("Exp", g("Mul", r, -1.0)))


def _matern52(g: _Graph, _: KernelNode, squares: str) -> str:
    r = g("Mul", g("Sqrt", squares), ROOT_5)
    polynomial = g("Add", g("Add", r, 1.0), g("Mul", squares, 5.0 / 3.0))
    return g("Mul", polynomial, g("Exp", g("Mul", r, -1.0)))


def _rational_quadratic(g: _Graph, node: KernelNode, squares: str) -> str:
    shape = float(_exp(node.log_shape))
    return g("Exp", g("Mul", g("Log", g("Add", g("Mul", squares, 0.5 / shape), 1.0)), -shape))


def _periodic(g: _Graph, node: KernelNode, X: str, Z: Array) -> str:
    center, rate = Z.mean(0), 2.0 * np.pi / (_exp(node.log_period) * present(node.units))
    lengthscales, angle = _exp(node.log_lengthscales), g("Mul", g("Sub", X, center), rate)
    # cos by sin, which every runtime has in double precision
    circle = [g("Div", g("Sin", part), lengthscales) for part in (g("Add", angle, 0.5 * np.pi), angle)]
    own = (Z - center) * rate
    other = np.concatenate([np.cos(own) / lengthscales, np.sin(own) / lengthscales], axis=1)
    squares = _squared_distances(g, g("Concat", *circle, axis=1), other)
    return _times(g, _squared_exponential(g, node, squares), _exp(node.log_variance), len(Z))


def _slope_variance(node: KernelNode) -> Array:
    return np.asarray(_exp(node.log_variance) / np.square(present(node.units)), dtype=np.float64)


def _linear(g: _Graph, node: KernelNode, X: str, Z: Array) -> str:
    center = present(node.center)
    return g("MatMul", g("Sub", X, center), ((Z - center) * _slope_variance(node)).T)


def _linear_diagonal(g: _Graph, node: KernelNode, X: str) -> str:
    centred = g("Sub", X, present(node.center))
    return g.row_sums(g("Mul", g("Mul", centred, centred), _slope_variance(node)))


def _constant(g: _Graph, node: KernelNode, X: str, Z: Array) -> str:
    zeros = g("Mul", g.row_sums(X, keep=True), np.zeros((1, len(Z))))
    return g("Add", zeros, _exp(node.log_variance).reshape(-1)[0])


def _power(g: _Graph, node: KernelNode, parts: list[str]) -> str:
    (base,) = parts
    return reduce(lambda so_far, _: g("Mul", so_far, base), range(present(node.exponent) - 1), base)


def _great_circle(g: _Graph, node: KernelNode, X: str, Z: Array) -> str:
    angles = g("Mul", X, np.full((1, 2), np.pi / 180.0))
    sines, cosines = g("Sin", angles), g("Sin", g("Add", angles, 0.5 * np.pi))
    flat = g.columns(cosines, [1])
    points = g("Mul", flat, g.columns(cosines, [0])), g("Mul", flat, g.columns(sines, [0])), g.columns(sines, [1])
    scale = float(_exp(node.log_lengthscales)[0]) / EARTH_RADIUS
    squares = _squared_distances(g, g("Concat", *points, axis=1), places(Z), scale)
    return _times(g, _PROFILES[present(node.profile)](g, node, squares), _exp(node.log_variance), len(Z))


_PROFILES: Mapping[str, Callable[[_Graph, KernelNode, str], str]] = {
    "squared_exponential": _squared_exponential,
    "matern12": _matern12,
    "matern32": _matern32,
    "matern52": _matern52,
}
_LEAVES: Mapping[str, _Leaf] = {
    "squared_exponential": _stationary(_squared_exponential),
    "matern12": _stationary(_matern12),
    "matern32": _stationary(_matern32),
    "matern52": _stationary(_matern52),
    "rational_quadratic": _stationary(_rational_quadratic),
    "periodic": (_periodic, _constant_diagonal),
    "great_circle": (_great_circle, _constant_diagonal),
    "linear": (_linear, _linear_diagonal),
    "constant": (_constant, _constant_diagonal),
}
_COMBINED: Mapping[str, Callable[[_Graph, KernelNode, list[str]], str]] = {
    "sum": lambda g, node, parts: reduce(lambda a, b: g("Add", a, b), parts),
    "product": lambda g, node, parts: reduce(lambda a, b: g("Mul", a, b), parts),
    "power": _power,
}

"""The sizes that costs depend on: rows, columns and bytes of the data, and the sizes of the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family
from sparsegp.data import Asked, Encoding, Files, open_source
from sparsegp.data.encoded import needs_survey, survey_of
from sparsegp.data.files import FileSource
from sparsegp.data.scan import SAMPLE_ROWS
from sparsegp.errors import InputError
from sparsegp.estimators.checks import positive_count
from sparsegp.estimators.sparse import SparseGPRegressor
from sparsegp.kernels import Kernel, SquaredExponential, as_kernel

OTHER_KERNEL_COST = 2.0


@dataclass(frozen=True)
class DataShape:
    """`file_bytes` are read from files in one pass; `is_held` says that the caller has the rows in memory already.

    `n_features` counts numbers; `columns` says what the columns are that become them, None where all are numbers.
    """

    n_rows: int
    n_features: int
    file_bytes: float = 0.0
    is_held: bool = False
    is_estimated: bool = False
    columns: dict[str, str] | None = None

    @property
    def array_bytes(self) -> float:
        """Of inputs and targets as float64."""
        return 8.0 * self.n_rows * (self.n_features + 1)


def shape_of(
    X: Any,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    n_rows: int | None = None,
    n_features: int | None = None,
    asked: Asked | None = None,
) -> DataShape:
    """Of arrays, tables, files, or of the numbers alone, which stand for a file of as many float64.

    A given `n_rows` goes before what the data say.
    """
    if n_rows is not None:
        positive_count("n_rows", n_rows)
    if X is None:
        if n_rows is None or n_features is None:
            raise InputError("plan() needs data, or both n_rows= and n_features=.")
        numbers = n_rows * (positive_count("n_features", n_features) + 1)
        return DataShape(n_rows, n_features, file_bytes=8.0 * numbers)
    if n_features is not None:
        raise InputError("The data say how many columns there are: leave n_features= out.")
    if Files.of(X) is None:
        found = _in_memory(X, target, features, n_rows)
    else:
        found = _of_files(X, target, features, n_rows, asked or Asked())
    if found.n_rows < 1:
        raise InputError("The data have no rows: there is nothing to plan.")
    return found


def _in_memory(X: Any, target: str | None, features: Sequence[str] | None, n_rows: int | None) -> DataShape:
    names = getattr(X, "column_names", None) or getattr(X, "columns", None)
    shape = getattr(X, "shape", None) or np.shape(X)
    if len(shape) != 2:
        raise InputError(f"plan() needs a matrix or a table [rows, columns]; got {type(X).__name__} of shape {shape}.")
    if target is not None and (names is None or target not in list(names)):
        raise InputError(f"target={target!r} is not a column of the {type(X).__name__}. Name one, or leave it out.")
    n_columns = len(features) if features is not None else int(shape[1]) - (target is not None)
    if n_columns < 1:
        raise InputError(f"The table has no column besides the target {target!r}.")
    known = shape[0] if n_rows is None else n_rows
    if not isinstance(known, int | np.integer):
        raise InputError(f"The number of rows of this {type(X).__name__} is not known before a pass: give n_rows=.")
    return DataShape(int(known), n_columns, is_held=True)


def _of_files(
    X: Any, target: str | None, features: Sequence[str] | None, n_rows: int | None, asked: Asked
) -> DataShape:
    source = open_source(X, target=target, features=features)
    assert isinstance(source, FileSource)
    encoding = _of_first_rows(source, asked) if needs_survey(source, asked) else None
    rows = source.n_rows if n_rows is None else n_rows
    is_estimated = rows is None
    if rows is None:
        rows = source.estimated_rows()
    if rows is None:
        raise InputError(f"The number of rows of {X} is not known before it is read: give n_rows= (--n-rows).")
    sizes = rows, source.n_features if encoding is None else encoding.n_features, float(source.n_bytes())
    words = None if encoding is None else encoding.words
    return DataShape(*sizes, is_estimated=is_estimated, columns=words)


def _of_first_rows(source: FileSource, asked: Asked) -> Encoding:
    """How columns that are no numbers become numbers, as far as the first rows tell."""
    survey = survey_of(source, asked, is_late=lambda: True)
    if survey is None:
        raise InputError("The data have no rows: there is nothing to plan.")
    return survey.encoding(asked)


@dataclass(frozen=True)
class ModelShape:
    """An approximation of approximations with its sizes.

    `block_rows` is the mean size of a block (0: no blocks), `n_blocks` their number; `kernel_cost` is that of one entry
    in squared exponentials; `inducing` says how they are chosen (None: given); `optimizer` None: nothing is learned.
    """

    approx: Approximation
    n_features: int
    n_inducing: int
    block_rows: float
    n_blocks: int
    kernel_cost: float
    number_bytes: int
    optimizer: str | None
    inducing: str | None

    @property
    def is_dense(self) -> bool:
        """Whether it factorises a matrix of all rows, or of a subset."""
        return self.approx.family in (Family.EXACT, Family.SUBSET)


def model_of(estimator: SparseGPRegressor, shape: DataShape, *, from_sample: bool = False) -> ModelShape:
    """The estimator on these data. `from_sample`: blocks are found from a sample, as on a cluster."""
    n_rows = shape.n_rows
    approx = approximations.get(estimator.approximation_of_sums, estimator.power)
    chooses = isinstance(estimator.inducing, str)
    n_inducing = min(estimator.n_inducing if chooses else np.shape(estimator.inducing)[0], n_rows)
    n_blocks = 0
    if approx.by_block:
        n_blocks = min(estimator.n_blocks or max(1, round(n_rows / n_inducing)), n_rows)
        n_blocks = min(n_blocks, SAMPLE_ROWS) if from_sample else n_blocks
    return ModelShape(
        approx=approx,
        n_features=shape.n_features,
        n_inducing=n_rows if approx.family is Family.EXACT else n_inducing,
        block_rows=n_rows / n_blocks if n_blocks else 0.0,
        n_blocks=n_blocks,
        kernel_cost=_kernel_cost(estimator.kernel),
        number_bytes=4 if estimator.dtype == "float32" else 8,
        optimizer=estimator.optimizer,
        inducing=estimator.inducing if chooses else None,
    )


def checked_estimator(estimator: Any, parameters: dict[str, Any]) -> SparseGPRegressor:
    """A regressor with these parameters; its own ones where an estimator is given."""
    if estimator is None:
        known = SparseGPRegressor().get_params(deep=False)
        if unknown := [name for name in parameters if name not in known]:
            raise InputError(
                f"plan() does not know {', '.join(unknown)}. Besides its own arguments it takes the parameters of "
                f"SparseGPRegressor: {', '.join(known)}."
            )
        estimator = SparseGPRegressor(**parameters)
    elif parameters:
        raise InputError(f"Give an estimator or its parameters, not both; got both, with {', '.join(parameters)}.")
    if not isinstance(estimator, SparseGPRegressor):
        raise InputError(
            f"plan() knows the costs of SparseGPRegressor; got {type(estimator).__name__}. A committee costs about its "
            "experts, one after another: plan one of them."
        )
    estimator.check_parameters()
    return estimator


def _kernel_cost(given: Any) -> float:
    if isinstance(given, str):
        return 1.0 if given == "se" else OTHER_KERNEL_COST
    kernel, _ = as_kernel(given)
    leaves = [part for part in kernel.modules() if isinstance(part, Kernel) and not _has_parts(part)]
    return sum(1.0 if isinstance(leaf, SquaredExponential) else OTHER_KERNEL_COST for leaf in leaves)


def _has_parts(kernel: Kernel) -> bool:
    return any(isinstance(part, Kernel) for part in kernel.modules() if part is not kernel)

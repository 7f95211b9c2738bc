"""What the cost model needs to know of a model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegp import approximations
from sparsegp.approximations import Approximation, Family
from sparsegp.errors import InputError
from sparsegp.estimators.choices import choosing
from sparsegp.estimators.regressor import SparseGPRegressor
from sparsegp.kernels import Kernel, SquaredExponential, as_kernel
from sparsegp.planning.data_shape import DataShape
from sparsegp.sources.survey import SAMPLE_ROWS

OTHER_KERNEL_COST = 2.0


@dataclass(frozen=True)
class Model:
    """A row of the table with its sizes.

    `block_rows` is the mean size of a block (0: no blocks), `n_blocks` their number; `kernel_cost` is that of one entry
    in squared exponentials; `inducing` says how they are chosen (None: given); `optimizer` None: nothing is learned.
    """

    row: Approximation
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
        return self.row.family in (Family.EXACT, Family.SUBSET)


def model_of(estimator: SparseGPRegressor, shape: DataShape, *, from_sample: bool = False) -> Model:
    """The estimator on these data. `from_sample`: blocks are found from a sample, as on a cluster."""
    n_rows = shape.n_rows
    row = approximations.get(choosing.untried(estimator), estimator.power)
    chooses = isinstance(estimator.inducing, str)
    n_inducing = min(estimator.n_inducing if chooses else np.shape(estimator.inducing)[0], n_rows)
    n_blocks = 0
    if row.by_block:
        n_blocks = min(estimator.n_blocks or max(1, round(n_rows / n_inducing)), n_rows)
        n_blocks = min(n_blocks, SAMPLE_ROWS) if from_sample else n_blocks
    return Model(
        row=row,
        n_features=shape.n_features,
        n_inducing=n_rows if row.family is Family.EXACT else n_inducing,
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
    estimator._checked_parameters()
    return estimator


def _kernel_cost(given: Any) -> float:
    if isinstance(given, str):
        return 1.0 if given == "se" else OTHER_KERNEL_COST
    kernel, _ = as_kernel(given)
    leaves = [part for part in kernel.modules() if isinstance(part, Kernel) and not _has_parts(part)]
    return sum(1.0 if isinstance(leaf, SquaredExponential) else OTHER_KERNEL_COST for leaf in leaves)


def _has_parts(kernel: Kernel) -> bool:
    return any(isinstance(part, Kernel) for part in kernel.modules() if part is not kernel)

"""The same models on a Dask cluster: rows stay on workers, sums of M x M numbers travel (extra `dask`)."""

from sparsegp.distributed.blocks import DistributedBlocks
from sparsegp.distributed.executor import DaskExecutor, executor_of
from sparsegp.distributed.fitting import can_fit, fit
from sparsegp.distributed.lazy_prediction import lazy_predictions
from sparsegp.distributed.objective import DaskObjective
from sparsegp.distributed.placing import in_blocks
from sparsegp.distributed.prediction import predict
from sparsegp.distributed.rows import DistributedRows
from sparsegp.distributed.shares import surveyed
from sparsegp.distributed.updating import can_update, partial_fit

__all__ = [
    "DaskExecutor",
    "DaskObjective",
    "DistributedBlocks",
    "DistributedRows",
    "can_fit",
    "can_update",
    "executor_of",
    "fit",
    "in_blocks",
    "lazy_predictions",
    "partial_fit",
    "predict",
    "surveyed",
]

"""The same models on a Dask cluster: rows stay on workers, sums of M x M numbers travel (extra `dask`)."""

from sparsegp.distributed.dask_rows import DaskRows
from sparsegp.distributed.executor import DaskExecutor, executor_of
from sparsegp.distributed.prediction import lazy_predictions, predict
from sparsegp.distributed.shares import scanned, sum_over

__all__ = ["DaskExecutor", "DaskRows", "executor_of", "lazy_predictions", "predict", "scanned", "sum_over"]

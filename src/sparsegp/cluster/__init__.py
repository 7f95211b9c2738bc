"""The same models on a Dask cluster: rows stay on workers, sums of M x M numbers travel (extra `dask`)."""

from sparsegp.cluster.dask_rows import DaskRows
from sparsegp.cluster.executor import DaskExecutor, executor_of
from sparsegp.cluster.prediction import lazy_predictions, predict
from sparsegp.cluster.shares import scanned, sum_over

__all__ = ["DaskExecutor", "DaskRows", "executor_of", "lazy_predictions", "predict", "scanned", "sum_over"]

"""The same models on a Dask cluster: rows stay on workers, sums of M x M numbers travel (extra `dask`)."""

from sparsegp.distributed.fitting import fit
from sparsegp.distributed.objective import DaskObjective
from sparsegp.distributed.placing import in_blocks
from sparsegp.distributed.prediction import predict
from sparsegp.distributed.rows import DistributedRows
from sparsegp.distributed.shares import surveyed

__all__ = ["DaskObjective", "DistributedRows", "fit", "in_blocks", "predict", "surveyed"]

"""Peak memory of a fit, from the arrays that the code holds at the same time."""

from dataclasses import dataclass

from sparsegp.data import CHUNK_ROWS
from sparsegp.estimators.incoming.out_of_core import MOST_ENTRIES
from sparsegp.planning.data_shape import DataShape
from sparsegp.planning.model import Model
from sparsegp.sources.batch import rows_per_batch
from sparsegp.sources.survey import SAMPLE_ROWS

LIBRARY_BYTES = 300e6
BASE_BYTES = 60e6
# Arrays of a chunk and of a block that a thread holds, and matrices of M x M, at the peak of an evaluation.
CHUNK_ARRAYS, BLOCK_ARRAYS, SQUARE_ARRAYS = 12, 10, 20
LARGEST_BLOCK = 2.0  # times the mean
DENSE_ARRAYS = 8
# The rows in the model's units, temporaries of standardising them, the rows of a stage of learning.
POINT_COPIES = 2.0
# The same rows also sorted by block and in the metric of the kernel; every thread that scans them has another copy.
BLOCK_COPIES = 4.0
WORKER_COPIES = 3.0
BATCHES_HELD = 6


@dataclass(frozen=True)
class Memory:
    """Bytes: libraries, the data as the caller holds them, copies of rows, and arrays of the computation."""

    libraries: float
    data: float
    copies: float
    workspace: float

    @property
    def total(self) -> float:
        return self.libraries + self.data + self.copies + self.workspace


def in_memory(model: Model, shape: DataShape, cores: int) -> Memory:
    return Memory(LIBRARY_BYTES, shape.array_bytes, _copies(model, shape.array_bytes, cores), workspace(model, cores))


def from_disk(model: Model, shape: DataShape, cores: int) -> Memory:
    """Batches on their way, and the sample with its copies."""
    row_bytes = 8.0 * (shape.n_features + 1)
    batches = BATCHES_HELD * rows_per_batch(shape.n_features) * row_bytes
    sample = disk_sample_rows(shape) * row_bytes
    held = shape.array_bytes if shape.is_held else 0.0
    return Memory(LIBRARY_BYTES, held, batches + 2.0 * sample + _copies(model, sample, cores), workspace(model, cores))


def disk_sample_rows(shape: DataShape) -> int:
    """Rows that an out-of-core fit keeps in memory."""
    return min(shape.n_rows, max(1, MOST_ENTRIES // shape.n_features))


def on_machine(model: Model, shape: DataShape, machines: int, cores: int) -> Memory:
    """The largest of a cluster: that of the driver, which also works, and gathers all rows for a local model."""
    sample = min(SAMPLE_ROWS, shape.n_rows) * 8.0 * (shape.n_features + 1)
    share = WORKER_COPIES * shape.array_bytes / machines
    gathered = 2.0 * shape.array_bytes if model.row.is_local else 0.0
    answers = machines * 8.0 * model.n_inducing**2
    return Memory(
        LIBRARY_BYTES, 0.0, share + gathered + _copies(model, sample, cores), answers + 2.0 * workspace(model, cores)
    )


def workspace(model: Model, cores: int) -> float:
    M, b = model.n_inducing, LARGEST_BLOCK * model.block_rows
    if model.is_dense:
        return BASE_BYTES + 8.0 * DENSE_ARRAYS * M**2
    chunk = CHUNK_ARRAYS * M * (b if model.row.by_block else CHUNK_ROWS) + BLOCK_ARRAYS * b**2
    return BASE_BYTES + 8.0 * (cores * chunk + SQUARE_ARRAYS * M**2)


def _copies(model: Model, array_bytes: float, cores: int) -> float:
    return array_bytes * (BLOCK_COPIES + cores if model.row.by_block else POINT_COPIES)

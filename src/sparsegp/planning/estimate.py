"""Time, memory, passes and traffic of a fit: in memory, from disk, or on a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsegp.core.block import CHUNK_ROWS
from sparsegp.data.batches import rows_per_batch
from sparsegp.data.open import OpeningOptions
from sparsegp.data.scan import SAMPLE_ROWS
from sparsegp.learn.schedules import POINTS
from sparsegp.planning import cost
from sparsegp.planning.cost import Cost, Stage, assignment, learning_stages, preparation
from sparsegp.planning.machine import Machine
from sparsegp.planning.shape import DataShape, ModelShape

MEMORY, DISK, CLUSTER = "memory", "disk", "cluster"
PREDICTED_ROWS = 1_000_000
USABLE_MEMORY = 0.8
# Bytes moved for each number: decoded from a file and checked; checked and standardised when it is in memory.
READ_BYTES, ARRIVAL_BYTES = 150.0, 80.0
UNPACKING_BYTES = 48.0
# A first stage of learning by points is small enough for the driver alone.
DRIVER_ROWS = POINTS.first_rows
LIBRARY_BYTES = 300e6
BASE_BYTES = 60e6
# Arrays of a chunk and of a block that a thread holds, and matrices of M x M, at the peak of an evaluation.
CHUNK_ARRAYS, BLOCK_ARRAYS, SQUARE_ARRAYS = 12, 10, 20
LARGEST_BLOCK = 2.0  # times the mean
DENSE_ARRAYS = 8
# The rows in the model's scaling, temporaries of standardising them, the rows of a stage of learning.
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


@dataclass(frozen=True)
class Estimate:
    """A fit on so many machines. `where` are the rows: in memory, on disk, or in the memory of a cluster.

    Seconds are those of preparing (reading, blocks, inducing inputs), of learning, of the pass that gives the model, of
    messages between machines (within the last two), and of predicting a million rows. Memory is that of one machine;
    `prediction_bytes` are what predictions take later, besides the model.
    """

    machines: int
    where: str
    prepare_seconds: float
    learning_seconds: float
    inference_seconds: float
    prediction_seconds: float
    memory: Memory
    fits: bool
    passes: int
    evaluations: int
    disk_bytes: float
    communication_seconds: float = 0.0
    rounds: int = 0
    network_bytes: float = 0.0
    prediction_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """Of the fit as a whole."""
        return self.prepare_seconds + self.learning_seconds + self.inference_seconds


def in_memory(model: ModelShape, shape: DataShape, machine: Machine) -> Estimate:
    stages = learning_stages(model, shape.n_rows)
    arrival = shape.n_rows * (shape.n_features + 1) * Cost(moved=ARRIVAL_BYTES)
    needed = _memory_in_memory(model, shape, machine.cores)
    return Estimate(
        machines=1,
        where=MEMORY,
        prepare_seconds=_reading_seconds(shape, machine)
        + (arrival + preparation(model, shape.n_rows)).seconds(machine),
        learning_seconds=_local_seconds(model, stages, machine),
        inference_seconds=_inference(model, shape.n_rows).seconds(machine),
        prediction_seconds=_prediction(model, shape.n_rows).seconds(machine),
        memory=needed,
        fits=_fits(needed, machine),
        passes=1 if shape.file_bytes else 0,
        evaluations=_count(stages),
        disk_bytes=shape.file_bytes,
        prediction_bytes=cost.prediction_bytes(model, shape.n_rows, machine.cores),
    )


def from_disk(model: ModelShape, shape: DataShape, machine: Machine) -> Estimate:
    """A scan, learning on its sample and last on all rows, and one pass that gives the model.

    An evaluation on all rows reads them twice; reading goes on beside computing.
    """
    n_sample = disk_sample_rows(shape)
    *early, last = learning_stages(model, shape.n_rows, n_sample) or (Stage(shape.n_rows, 0.0),)
    reading, needed = _reading_seconds(shape, machine), _memory_from_disk(model, shape, machine.cores)
    # blocks learn from a few of them; one more pass sorts the rows into blocks
    reads = 0.0 if model.approx.by_block else 2.0 * last.evaluations
    passes = 2 + round(reads) + model.approx.by_block
    return Estimate(
        machines=1,
        where=DISK,
        prepare_seconds=(1 + model.approx.by_block) * reading + preparation(model, n_sample).seconds(machine),
        learning_seconds=_local_seconds(model, early, machine)
        + max(reads * reading, _local_seconds(model, [last], machine)),
        inference_seconds=max(reading, _inference(model, shape.n_rows).seconds(machine)),
        prediction_seconds=_prediction(model, shape.n_rows).seconds(machine),
        memory=needed,
        fits=_fits(needed, machine),
        passes=passes,
        evaluations=_count([*early, last]),
        disk_bytes=passes * shape.file_bytes,
        prediction_bytes=cost.prediction_bytes(model, shape.n_rows, machine.cores),
    )


def on_cluster(model: ModelShape, shape: DataShape, machine: Machine, machines: int) -> Estimate:
    """Two passes over the files, each machine its share; then two rounds an evaluation (docs/clusters.md)."""
    stages = learning_stages(model, shape.n_rows)
    remote = [stage for stage in stages if stage.n_rows > DRIVER_ROWS or model.approx.by_block]
    n_remote = sum(stage.evaluations for stage in remote)
    message = _message_seconds(model, machine, machines)
    needed = _memory_on_machine(model, shape, machines, machine.cores)
    return Estimate(
        machines=machines,
        where=CLUSTER,
        prepare_seconds=_placing_seconds(model, shape, machine, machines),
        learning_seconds=_local_seconds(model, [stage for stage in stages if stage not in remote], machine)
        + _remote_seconds(model, remote, machine, machines)
        + n_remote * message,
        inference_seconds=_inference(model, shape.n_rows / machines).seconds(machine) + 0.5 * message,
        prediction_seconds=_prediction(model, shape.n_rows).seconds(machine) / machines,
        memory=needed,
        fits=_fits(needed, machine),
        passes=2,
        evaluations=_count(stages),
        disk_bytes=2.0 * shape.file_bytes,
        communication_seconds=(n_remote + 0.5) * message,
        rounds=round(2.0 * n_remote) + 1,
        network_bytes=(n_remote + 0.5) * evaluation_bytes(model, machines) + sum(_rows_sent(model, shape)),
        prediction_bytes=cost.prediction_bytes(model, shape.n_rows, machine.cores),
    )


def _placing_seconds(model: ModelShape, shape: DataShape, machine: Machine, machines: int) -> float:
    """Reading, the work on the sample, sorting into blocks; rows to other machines, or all of them to the driver."""
    sample, shuffled, gathered = _rows_sent(model, shape)
    reading = 2.0 * _reading_seconds(shape, machine) / machines
    sorting = assignment(model, shape.n_rows / machines).seconds(machine)
    sending = (sample + shuffled / machines + gathered) / machine.network_bytes_per_second
    return reading + sorting + sending + preparation(model, min(SAMPLE_ROWS, shape.n_rows)).seconds(machine)


def _rows_sent(model: ModelShape, shape: DataShape) -> tuple[float, float, float]:
    """Bytes of rows: the sample for the driver, those that move to their block, those that a local model gathers."""
    sample = shape.array_bytes * min(1.0, SAMPLE_ROWS / shape.n_rows)
    return sample, shape.array_bytes * model.approx.by_block, shape.array_bytes * model.approx.is_local


def evaluation_bytes(model: ModelShape, machines: int) -> float:
    """Between driver and workers in an evaluation: triangles of M x M numbers, the model, its gradient."""
    M, D = model.n_inducing, model.n_features
    return machines * 8.0 * (cost.matrices_per_worker(model.approx) * M**2 + 3.0 * M * (D + 1))


def _message_seconds(model: ModelShape, machine: Machine, machines: int) -> float:
    """All messages pass the scheduler, once in and once out; the driver unpacks and adds them one by one."""
    wire = 2.0 * evaluation_bytes(model, machines) / machine.network_bytes_per_second
    adding = Cost(moved=UNPACKING_BYTES * machines * model.n_inducing**2).seconds(machine)
    return wire + adding + 2.0 * (machine.round_seconds + machines * machine.task_seconds)


def _fits(needed: Memory, machine: Machine) -> bool:
    return needed.total <= USABLE_MEMORY * machine.memory_bytes


def _local_seconds(model: ModelShape, stages: Sequence[Stage], machine: Machine) -> float:
    if model.is_dense:
        return sum(s.evaluations * cost.dense_evaluation(model, s.n_rows).seconds(machine) for s in stages)
    row, overhead = cost.gradient(model), cost.evaluation_overhead(model)
    return sum(s.evaluations * (s.n_rows * row + overhead).seconds(machine) for s in stages)


def _remote_seconds(model: ModelShape, stages: Sequence[Stage], machine: Machine, machines: int) -> float:
    """Workers factorise Kuu as the driver does, after it."""
    row, overhead = cost.gradient(model), cost.evaluation_overhead(model)
    return sum(s.evaluations * (s.n_rows / machines * row + 2.0 * overhead).seconds(machine) for s in stages)


def _inference(model: ModelShape, n_rows: float) -> Cost:
    if model.is_dense:
        return cost.dense_evaluation(model, model.n_inducing)
    return n_rows * cost.first_pass(model) + cost.evaluation_overhead(model)


def _prediction(model: ModelShape, n_rows: int) -> Cost:
    return PREDICTED_ROWS * cost.prediction(model) + cost.prediction_overhead(model, n_rows, PREDICTED_ROWS)


def _reading_seconds(shape: DataShape, machine: Machine) -> float:
    """Of one pass over the files; decoding and the disk work side by side."""
    if not shape.file_bytes:
        return 0.0
    decoding = shape.n_rows * (shape.n_features + 1) * Cost(moved=READ_BYTES)
    return max(shape.file_bytes / machine.disk_bytes_per_second, decoding.seconds(machine))


def _count(stages: Sequence[Stage]) -> int:
    return round(sum(stage.evaluations for stage in stages))


def _memory_in_memory(model: ModelShape, shape: DataShape, cores: int) -> Memory:
    return Memory(LIBRARY_BYTES, shape.array_bytes, _copies(model, shape.array_bytes, cores), workspace(model, cores))


def _memory_from_disk(model: ModelShape, shape: DataShape, cores: int) -> Memory:
    """Batches on their way, and the sample with its copies."""
    row_bytes = 8.0 * (shape.n_features + 1)
    batches = BATCHES_HELD * rows_per_batch(shape.n_features) * row_bytes
    sample = disk_sample_rows(shape) * row_bytes
    held = shape.array_bytes if shape.is_held else 0.0
    return Memory(LIBRARY_BYTES, held, batches + 2.0 * sample + _copies(model, sample, cores), workspace(model, cores))


def disk_sample_rows(shape: DataShape) -> int:
    """Rows that an out-of-core fit keeps in memory."""
    return min(shape.n_rows, max(1, OpeningOptions().most_entries // shape.n_features))


def _memory_on_machine(model: ModelShape, shape: DataShape, machines: int, cores: int) -> Memory:
    """The largest of a cluster: that of the driver, which also works, and gathers all rows for a local model."""
    sample = min(SAMPLE_ROWS, shape.n_rows) * 8.0 * (shape.n_features + 1)
    share = WORKER_COPIES * shape.array_bytes / machines
    gathered = 2.0 * shape.array_bytes if model.approx.is_local else 0.0
    answers = machines * 8.0 * model.n_inducing**2
    return Memory(
        LIBRARY_BYTES, 0.0, share + gathered + _copies(model, sample, cores), answers + 2.0 * workspace(model, cores)
    )


def workspace(model: ModelShape, cores: int) -> float:
    M, b = model.n_inducing, LARGEST_BLOCK * model.block_rows
    if model.is_dense:
        return BASE_BYTES + 8.0 * DENSE_ARRAYS * M**2
    chunk = CHUNK_ARRAYS * M * (b if model.approx.by_block else CHUNK_ROWS) + BLOCK_ARRAYS * b**2
    return BASE_BYTES + 8.0 * (cores * chunk + SQUARE_ARRAYS * M**2)


def _copies(model: ModelShape, array_bytes: float, cores: int) -> float:
    return array_bytes * (BLOCK_COPIES + cores if model.approx.by_block else POINT_COPIES)

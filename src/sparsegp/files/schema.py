"""Version 2 of the model file: every field, its type and its meaning. docs/file-format.md has the same tables.

A record is a JSON object. A field that is null or missing means that the model has no such part. Numbers are those of
the scaled data (see `Scaling`) unless a field says "units of y". D is the number of columns, M of inducing inputs, N of
rows, K of blocks or experts, P of coefficients of a trend (0 without one). A triangle is the lower triangle of a
matrix, row after row: M (M + 1)/2 numbers.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

from numpy.typing import NDArray

# ruff: noqa: RUF009 (fields are made by functions that say what they mean)

VERSION = 2

Array = NDArray[Any]
Free = Any
"""Numbers, text, lists, objects and arrays in any arrangement."""

FLOATS, INTEGERS, NUMBERS = "f", "iu", "fiub"

SPARSE, LEARNED_NOISE, COMMITTEE = "sparse", "learned_noise", "committee"
INDUCING, LOCAL, EXACT, NYSTROM = "inducing", "local", "exact", "nystrom"
VALUE, INDICATORS, POINTS, CIRCLES, LEFT_OUT = "value", "indicators", "points", "circles", "left_out"
COLUMN_KINDS = (
    "number",
    "boolean",
    "category",
    "ordered category",
    "date",
    "time of day",
    "constant",
    "empty",
    "identifier",
    "ignored",
)


FINITE, POSITIVE, NOT_NEGATIVE, NOT_ZERO = "finite", "positive", "not negative", "not zero"
SHARE, LOGARITHM, ANY_VALUE = "from 0 to 1", "a logarithm between -700 and 700", "any"


def entry(
    meaning: str,
    *,
    shape: str | None = None,
    kinds: str = FLOATS,
    words: Sequence[str] = (),
    limit: str = FINITE,
    default: Any = MISSING,
) -> Any:
    """A field that every file has: what it means, the axes of an array, and what a text or a number may be."""
    metadata = {"meaning": meaning, "shape": shape, "kinds": kinds, "words": tuple(words), "limit": limit}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def optional(meaning: str, **given: Any) -> Any:
    """A field that a model need not have."""
    return entry(meaning, default=None, **given)


@dataclass(frozen=True, kw_only=True)
class ColumnCode:
    """How one column of a table becomes numbers of X, side by side; see "Columns that are no numbers"."""

    name: str = entry("of the column")
    kind: str = entry("what it is, for people", words=COLUMN_KINDS)
    form: str = entry("which numbers it becomes", words=(VALUE, INDICATORS, POINTS, CIRCLES, LEFT_OUT))
    was_missing: bool = entry("whether values were missing in the fit")
    mean: float | None = optional("of value: of all that are not missing; of circles: in days since 1970")
    levels: list[str] | None = optional("of indicators and points: the levels, as text")
    rare: list[str] | None = optional("levels that are taken together")
    points: Array | None = optional("of points: that of each level", shape="L")
    centre: float | None = optional("of points: that of rare levels and of levels that are not known")
    missing_point: float | None = optional("of points: that of missing values")
    cycles: list[str] | None = optional("of circles: day, week, year")
    zone: str | None = optional("of circles: the time zone in which days begin")


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a missing number may be, of columns of numbers without gaps; see "Missing numbers"."""

    values: Array = entry("scaled values of each column at the normal scores -3, -2.90625, ..., 3", shape="65, D")
    correlation: Array | None = optional("of the scores of the columns, a triangle; missing: none", shape="D (D + 1)/2")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that the model was fitted with."""

    count: int = entry("D, the number of columns of X, after `encoding` where there is one")
    names: list[str] | None = optional("names of the columns of the table, in order")
    target: str | None = optional("name of the column of y")
    encoding: list[ColumnCode] | None = optional("how the columns of the table become those of X; missing: they are")
    completion: Completion | None = optional("what a missing number may be; missing: no number may be missing")


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Scaled data: x' = (x - input_mean)/input_scale for each column, y' = (y - target_mean)/target_scale."""

    input_mean: Array = entry("subtracted from each column, in its units", shape="D")
    input_scale: Array = entry("what each column is divided by, in its units; not zero", shape="D", limit=NOT_ZERO)
    target_mean: float = entry("subtracted from y, units of y")
    target_scale: float = entry("what y is divided by, units of y; positive", limit=POSITIVE)


KERNEL_KINDS = (
    "squared_exponential",
    "matern12",
    "matern32",
    "matern52",
    "rational_quadratic",
    "periodic",
    "linear",
    "constant",
    "sum",
    "product",
    "power",
    "rescaled",
    "great_circle",
    "custom",
)


@dataclass(frozen=True, kw_only=True)
class CustomKernel:
    """A kernel whose code is the user's: the file has its values alone."""

    class_name: str = entry("under which the user gives the class to the reader")
    attributes: dict[str, Free] = entry("plain values by name")
    parameters: dict[str, Array] = entry("learned arrays by name", shape="any", kinds=NUMBERS)
    buffers: dict[str, Array] = entry("fixed arrays by name", shape="any", kinds=NUMBERS)
    parts: dict[str, Free] = entry("inner kernels by name: the number of a node, or a list of numbers")


@dataclass(frozen=True, kw_only=True)
class KernelNode:
    """One kernel of a tree. Which fields it has depends on its kind (see the formulas of kernels)."""

    kind: str = entry("which formula", words=KERNEL_KINDS)
    active_columns: list[int] | None = optional("columns that the kernel sees, counted from 0; all if missing")
    parts: list[int] | None = optional("numbers of the nodes it is made of; each is smaller than its own")
    log_variance: Array | None = optional("log of the variance", shape="any", limit=LOGARITHM)
    log_lengthscales: Array | None = optional(
        "log of the lengthscale, shared (1), of each column or of each of G groups",
        shape="1 or D or G",
        limit=LOGARITHM,
    )
    groups: list[int] | None = optional("of each column that the kernel sees, the number of its lengthscale, from 0")
    log_shape: Array | None = optional("log of the shape of rational_quadratic", shape="", limit=LOGARITHM)
    log_period: Array | None = optional(
        "log of the period, shared (1) or of each column", shape="1 or D", limit=LOGARITHM
    )
    units: Array | None = optional(
        "factor of the lengthscales, of the period, or of 1/sqrt(variance)", shape="1 or D", limit=NOT_ZERO
    )
    center: Array | None = optional("where a linear kernel is zero", shape="1 or D")
    exponent: int | None = optional("of power, at least 1")
    input_shift: Array | None = optional("of rescaled", shape="D")
    input_scale: Array | None = optional("of rescaled", shape="D", limit=NOT_ZERO)
    output_scale: float | None = optional("of rescaled")
    profile: str | None = optional("of great_circle", words=("matern12", "matern32", "matern52", "squared_exponential"))
    custom: CustomKernel | None = optional("of custom")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A covariance function. A node that is named twice is one kernel with one set of parameters."""

    nodes: list[KernelNode] = entry("parts before what is made of them; the last node is the kernel")


@dataclass(frozen=True, kw_only=True)
class Component:
    """One term of the noise precision of a block: V^-1 = sum_j weight_j V_j^-1, V_j = power shape(D) + noise."""

    weight: float = entry("weight of the term; they add up to 1", limit=NOT_NEGATIVE)
    residual: str = entry("which part of D = K - Q is kept", words=("none", "diagonal", "block"))
    power: float = entry("factor of the residual, from 0 to 1", limit=SHARE)


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """What the model assumes about f at training rows and at new rows, given the inducing values."""

    name: str = entry("name, as vfe or pic; for people")
    components: list[Component] = entry("terms of the noise precision: one, or those of a linear combination")
    penalty: float = entry("factor of the trace or log determinant term of the evidence")
    new_rows: str = entry(
        "covariance of f at new rows given the inducing values: none, K - Q, its diagonal, or by block",
        words=("deterministic", "exact", "independent", "local"),
    )
    method: str = entry("how the posterior is computed", words=("inducing", "exact", "subset", "nystrom"))
    reference: str = entry("where it is described; for people")


@dataclass(frozen=True, kw_only=True)
class InducingValues:
    """A Gaussian process by its values u at inducing inputs, whitened: u = L v, q(v) = N(mean, (B B^T)^-1)."""

    inputs: Array = entry("inducing inputs Z", shape="M, D")
    noise_var: float = entry("noise variance of rows whose own is not known", limit=NOT_NEGATIVE)
    prior_cholesky: Array = entry("L with L L^T = k(Z, Z) + jitter, a triangle", shape="M (M + 1)/2")
    prior_jitter: float = entry("jitter on the diagonal of k(Z, Z), relative to its mean", limit=NOT_NEGATIVE)
    mean: Array = entry("mean of v, and then of the coefficients of a trend", shape="M + P")
    precision_cholesky: Array = entry("B, a triangle of M + P rows", shape="(M + P) (M + P + 1)/2")
    precision_jitter: float = entry("jitter on the diagonal of B B^T, relative to its mean", limit=NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Training rows, block after block."""

    inputs: Array = entry("X", shape="N, D")
    targets: Array = entry("y", shape="N")
    noise_var: Array | None = optional("known noise variance of each row", shape="N", limit=NOT_NEGATIVE)
    weights: Array | None = optional(
        "how many equal rows each row stands for; 1 if missing", shape="N", limit=NOT_NEGATIVE
    )
    block_sizes: Array = entry("rows of each block, or of each batch that was added", shape="K", kinds=INTEGERS)
    arrival: Array = entry("place of each row in the order of arrival", shape="N", kinds=INTEGERS)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The block of a row x: the nearest centroid to metric * x."""

    centroids: Array = entry("one for each block", shape="K, D")
    metric: Array = entry("factor of each column", shape="D")
    labels: Array | None = optional("the user's number of each block, increasing", shape="K", kinds=INTEGERS)


@dataclass(frozen=True, kw_only=True)
class DenseRows:
    """Rows of an exact Gaussian process: C = k(X, X) + noise."""

    inputs: Array = entry("X", shape="N, D")
    weights: Array = entry("C^-1 y; with a trend, C^-1 times what its mean leaves of y", shape="N")
    covariance_diagonal: Array = entry(
        "diagonal of C; its other entries are those of k(X, X)", shape="N", limit=POSITIVE
    )
    jitter: float = entry(
        "what must be added to the diagonal before C is factored, relative to its mean", limit=NOT_NEGATIVE
    )
    log_evidence: float = entry("log evidence of these rows", limit=ANY_VALUE)
    trend_mean: Array | None = optional("mean of the coefficients of the trend", shape="P")


@dataclass(frozen=True, kw_only=True)
class NystromRows:
    """Rows of the Nystrom approximation: C = Q(X, X) + noise."""

    inputs: Array = entry("X", shape="N, D")
    weights: Array = entry("C^-1 y; with a trend, C^-1 times what its mean leaves of y", shape="N")
    noise_precision: Array = entry("1/noise of each row, times its weight", shape="N", limit=NOT_NEGATIVE)
    clip: bool = entry("whether negative variances are clipped")


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A part t(x)^T beta of f besides its kernel, beta ~ N(0, I): t(x) = width (1, x_j for j in columns), P numbers."""

    columns: Array = entry(
        "columns of the trend, counted from 0; none: it is a constant", shape="P - 1", kinds=INTEGERS
    )
    width: float = entry("prior standard deviation of a coefficient", limit=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The posterior of the function f."""

    form: str = entry("which formulas predict", words=(INDUCING, LOCAL, EXACT, NYSTROM))
    approximation: Approximation = entry("what was assumed")
    inducing: InducingValues | None = optional("of inducing, local and nystrom")
    rows: Rows | None = optional("of local: the rows of each block")
    partition: Partition | None = optional("where blocks are, for approximations that have them")
    dense: DenseRows | None = optional("of exact")
    nystrom: NystromRows | None = optional("of nystrom")
    trend: Trend | None = optional("what f has besides the kernel")


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Sums over all rows, W the covariances L^-1 k(Z, X) (and t(X) of a trend), V the noise covariance: for updates."""

    precision: Array = entry("sum of W V^-1 W^T, symmetric, a triangle of M + P rows", shape="(M + P) (M + P + 1)/2")
    shift: Array = entry("sum of W V^-1 y", shape="M + P")
    noise_logdet: float = entry("sum of log det V")
    target_sq: float = entry("sum of y^T V^-1 y")
    penalty: float = entry("sum of the penalties of the evidence")
    n_rows: float = entry("number of rows, each counted with its weight", limit=NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True)
class Innovations:
    """Recent prediction errors of a stream, older ones fading: a row counts half after 100 rows."""

    rows: int = entry("rows since the fit", limit=NOT_NEGATIVE)
    square_sum: float = entry("weighted sum of squared standardised errors", limit=NOT_NEGATIVE)
    weight: float = entry("sum of the weights", limit=NOT_NEGATIVE)
    weight_sq: float = entry("sum of the squared weights", limit=NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True)
class RecentLevel:
    """Where recent rows of a stream are, older ones fading."""

    weight: float = entry("sum of the weights", limit=NOT_NEGATIVE)
    input_total: Array = entry("weighted sum of each column", shape="1 or D")
    target_total: float = entry("weighted sum of y")
    reported: bool = entry("whether the user was warned")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What updates have left behind."""

    rows_arrived: int = entry("rows since the first", limit=NOT_NEGATIVE)
    rows_held: int = entry("rows that count now", limit=NOT_NEGATIVE)
    innovations: Innovations = entry("recent errors")
    level: RecentLevel = entry("recent rows")


@dataclass(frozen=True, kw_only=True)
class NoiseProcess:
    """The log of the noise variance, g: a Gaussian process with the kernel `noise_kernel`."""

    mean: float = entry("prior mean of g, log of scaled noise variance")
    inducing: InducingValues = entry("posterior of g - mean")
    least_var: float = entry("least noise variance", limit=POSITIVE)
    largest_var: float = entry("largest noise variance", limit=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class InfluenceBound:
    """How much an expert can change at x, by k, the largest covariance of x with a box: asked only where it matters."""

    box_lower: Array = entry("lower corner of the box of the expert's rows", shape="D")
    box_upper: Array = entry("upper corner", shape="D")
    variance_gain: float = entry("the variance falls by no more than this times k^2", limit=ANY_VALUE)
    mean_gain: float = entry("the mean moves by no more than this times k", limit=ANY_VALUE)
    common_covariance: Array | None = optional("covariance of each row of the common expert with the box", shape="N")


@dataclass(frozen=True, kw_only=True)
class Expert:
    """A member of a committee."""

    posterior: Posterior = entry("of f")
    influence: InfluenceBound | None = optional("on f; it is asked everywhere if missing")
    noise: NoiseProcess | None = optional("its learned noise")
    noise_influence: InfluenceBound | None = optional("on the noise")


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How the answers of experts become one."""

    name: str = entry("name, as rbcm; for people")
    weighting: str = entry("weight of an expert", words=("one", "one_over_experts", "entropy", "squared_precision"))
    base_count: str = entry("how often the base counts", words=("once", "per_weight"))
    communicates: bool = entry("whether the base is the common expert, not the prior")
    reference: str = entry("where it is described; for people")


@dataclass(frozen=True, kw_only=True)
class NearestExperts:
    """Only experts that are near are asked: by distance of metric * x from their centres."""

    most: int = entry("how many are asked", limit=POSITIVE)
    centres: Array = entry("one for each expert", shape="K, D")
    metric: Array = entry("factor of each column", shape="D")


@dataclass(frozen=True, kw_only=True)
class Member:
    """What an expert is computed from: for updates. Under `communicates` it has the rows of the common expert too."""

    rows: Rows = entry("its own rows, as one block; none: it is not among the experts at present")
    inducing: Array | None = optional("its inducing inputs of f", shape="M, D")
    noise_inducing: Array | None = optional("its inducing inputs of g", shape="M, D")
    partition: Partition | None = optional("where blocks inside the expert are")
    log_evidence: float = entry("log evidence or bound of its rows, with those of the common expert", limit=ANY_VALUE)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The rows of all experts, where new rows belong, and how experts for new labels are made: for updates."""

    approximation: Approximation = entry("of f, in every expert")
    members: list[Member] = entry("in the order of `experts`, with those that have no rows")
    common: Member | None = optional("of the common expert")
    partition: Partition | None = optional("the expert of a row; missing: a new row goes to the one with fewest rows")
    most_asked: int | None = optional("how many experts are asked about a row, at the most")
    inducing: str = entry("how inducing inputs are chosen", words=("kmeans", "random", "greedy"))
    n_inducing: int = entry("inducing inputs of f", limit=NOT_NEGATIVE)
    n_noise_inducing: int | None = optional("inducing inputs of g")
    metric: Array | None = optional("factor of each column for blocks inside experts", shape="D")
    least_noise_var: float | None = optional("least noise variance, where it is learned", limit=POSITIVE)
    largest_noise_var: float | None = optional("largest noise variance, where it is learned", limit=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class Committee:
    """Experts on disjoint rows with one kernel."""

    aggregation: Aggregation = entry("how answers are joined")
    experts: list[Expert] = entry("its members; their order counts for `communicates`")
    common: Expert | None = optional("the common expert, where experts communicate")
    noise_mean: float | None = optional("prior mean of g, log of scaled noise variance")
    skip_tolerance: float = entry(
        "what experts that are not asked may change, all together; 0 asks all", limit=NOT_NEGATIVE
    )
    nearest: NearestExperts | None = optional("a limit of how many are asked")
    n_jobs: int | None = optional("experts that are asked at the same time")
    membership: Membership | None = optional("for updates; without it the committee only predicts")


@dataclass(frozen=True, kw_only=True)
class LocalScale:
    """A local scale, c = exp(strength t(s)) between 1/most and most, with a sum t of T trees of L levels."""

    base: float = entry("what the leaves are added to")
    columns: Array = entry("column of s that a level looks at, counted from 0", shape="T, L", kinds=INTEGERS)
    thresholds: Array = entry("what the column is compared with", shape="T, L")
    leaves: Array = entry("value of each leaf", shape="T, 2^L")
    strength: float = entry("factor of log c")
    most: float = entry("largest c", limit=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """y = m + d c r, r a mixture of Gaussians: instead of the Gaussian with mean m and standard deviation d."""

    weights: Array = entry("of the parts of r; they add up to 1", shape="P", limit=NOT_NEGATIVE)
    locations: Array = entry("means of the parts", shape="P")
    widths: Array = entry("standard deviations of the parts", shape="P", limit=POSITIVE)
    scale: LocalScale | None = optional("c; 1 if missing")
    rows: int = entry("how many rows left out it was learned from")
    gain: float = entry("what the log density of a row gained, on rows left out; for people", limit=ANY_VALUE)


@dataclass(frozen=True, kw_only=True)
class LearningStage:
    """A record of learning; for people."""

    objective: float = entry("log evidence or bound that was reached", limit=ANY_VALUE)
    n_rows: int = entry("rows it was learned from")
    iterations: int = entry("steps")
    evaluations: int = entry("evaluations of the objective")
    seconds: float = entry("time", limit=ANY_VALUE)
    reason: str = entry("why it ended")
    stopped: bool = entry("whether somebody asked to stop")


@dataclass(frozen=True, kw_only=True)
class NoiseInference:
    """A record of how the noise process was inferred; for people."""

    jitter: float = entry("largest relative jitter", limit=ANY_VALUE)
    evaluations: int = entry("evaluations of the bound")
    seconds: float = entry("time", limit=ANY_VALUE)


@dataclass(frozen=True, kw_only=True)
class Model:
    """The whole description."""

    kind: str = entry("which parts it has", words=(SPARSE, LEARNED_NOISE, COMMITTEE))
    estimator: str | None = optional("the kind of estimator, where it is not that of the model")
    parameters: dict[str, Free] = entry("parameters of the estimator that are numbers, text or arrays")
    parameter_kernels: dict[str, Kernel] | None = optional("parameters that are kernels, in units of the data")
    parameter_approximations: dict[str, Approximation] | None = optional("parameters that are approximations")
    columns: Columns = entry("columns of X and y")
    scaling: Scaling = entry("from the user's units to those of the model and back")
    kernel: Kernel = entry("covariance of f")
    noise_kernel: Kernel | None = optional("covariance of g, where noise is learned")
    noise_var: float = entry("noise variance of y, or its mean over rows; squared units of y", limit=NOT_NEGATIVE)
    mean_noise_var: float | None = optional("the same in scaled units, to the last digit", limit=NOT_NEGATIVE)
    known_noise: bool | None = optional("whether the noise variance of each row was given")
    log_evidence: float = entry("log evidence or bound, of scaled data", limit=ANY_VALUE)
    rows_seen: int = entry("rows of all fits and updates", limit=NOT_NEGATIVE)
    rows_of_fit: int | None = optional("rows of the fit alone, without those of weight zero", limit=NOT_NEGATIVE)
    posterior: Posterior | None = optional("of f, for sparse and learned_noise")
    noise: NoiseProcess | None = optional("of learned_noise")
    noise_inference: NoiseInference | None = optional("of learned_noise")
    committee: Committee | None = optional("of committee")
    calibration: Calibration | None = optional("scale and shape of forecasts of y")
    statistics: Statistics | None = optional("for updates; missing where these cannot be")
    window_rows: Rows | None = optional("rows that a sliding window will forget")
    stream: Stream | None = optional("of a model that was updated, or can learn that it should not be")
    seen_batches: list[str] | None = optional("ids of the batches in the model")
    row_digest: Array | None = optional(
        "how many rows have each value as one of three hashes, 255: at least so many", shape="32768", kinds=INTEGERS
    )
    learning: list[LearningStage] | None = optional("how hyper-parameters were learned")
    info: dict[str, Free] = entry("what else is to be reported; for people")


RECORDS: tuple[type[Any], ...] = (
    Model,
    Columns,
    ColumnCode,
    Completion,
    Scaling,
    Kernel,
    KernelNode,
    CustomKernel,
    Posterior,
    Trend,
    Approximation,
    Component,
    InducingValues,
    Rows,
    Partition,
    DenseRows,
    NystromRows,
    NoiseProcess,
    Committee,
    Aggregation,
    Expert,
    InfluenceBound,
    NearestExperts,
    Membership,
    Member,
    Calibration,
    LocalScale,
    Statistics,
    Stream,
    Innovations,
    RecentLevel,
    LearningStage,
    NoiseInference,
)

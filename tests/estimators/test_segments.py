"""Coverage by parts of the rows: which parts there are, what they are called, and when one is said to fail."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from sparsegp import SparseGPRegressor, kernels
from sparsegp.core.predictive import Gaussian
from sparsegp.estimators.segments import FORECAST, FORECAST_STD, Segment, SegmentOptions, Segments


def white(n=1000, seed=0, **columns):
    """Honest forecasts of noise, and columns that have nothing to do with it."""
    rng = np.random.default_rng(seed)
    forecast = Gaussian(rng.standard_normal(n), rng.uniform(0.1, 1.0, n), 1.0)
    y = forecast.mean + forecast.std * rng.standard_normal(n)
    return forecast, y, {"a": rng.uniform(0, 1, n), "b": rng.exponential(1.0, n), **columns}


def names(segments, quantity):
    return [part.part for part in segments.by_quantity[quantity]]


def test_every_row_is_in_one_part_of_each_quantity():
    forecast, y, columns = white(hour=np.arange(1000) % 24, kind=np.resize(["x", "y", "z"], 1000))
    segments = Segments.of(forecast, y, columns)
    assert list(segments.by_quantity) == ["a", "b", "hour", "kind", FORECAST, FORECAST_STD]
    lower, upper = forecast.interval(0.95)
    n_inside = int(((lower <= y) & (y <= upper)).sum())
    for parts in segments.by_quantity.values():
        assert sum(part.n_rows for part in parts) == 1000
        assert sum(part.n_inside for part in parts) == n_inside
    for name in ("a", "b", FORECAST, FORECAST_STD):
        assert [part.n_rows for part in segments.by_quantity[name]] == pytest.approx([100] * 10, abs=1)


def test_parts_are_named_by_their_values():
    forecast, y, columns = white(
        hour=np.arange(1000) % 24,
        kind=np.resize(["x", "y"], 1000),
        half=np.arange(1000) % 3 / 2,
        year=np.linspace(1950, 2020, 1000).round(),
        still=np.ones(1000),
    )
    segments = Segments.of(forecast, y, columns)
    assert names(segments, "hour") == [f"= {hour}" for hour in range(24)]
    assert names(segments, "kind") == ["= x", "= y"]
    assert names(segments, "half") == ["= 0", "= 0.5", "= 1"]
    assert names(segments, "year")[:2] == ["up to 1957", "between 1957 and 1964"]
    assert names(segments, "year")[-1] == "above 2013"
    assert "still" not in segments.by_quantity
    part = segments.by_quantity["year"][1]
    assert part.name == "year between 1957 and 1964"
    assert part.n_rows == int(((columns["year"] > 1957) & (columns["year"] <= 1964)).sum())


def test_edges_are_told_apart():
    _, _, columns = white()
    forecast, y, columns = white(late=2020.0 + 1e-4 * columns["a"])
    shown = [part.split()[-1] for part in names(Segments.of(forecast, y, columns), "late")[:-1]]
    assert len(set(shown)) == 9
    assert all(label.startswith("2020.0000") for label in shown)


def test_repeated_values_are_not_torn_apart():
    zeros = np.where(np.arange(1000) < 700, 0.0, np.linspace(0.1, 1.0, 1000))
    segments = Segments.of(*white(rain=zeros)[:2], {"rain": zeros})
    first, *others = segments.by_quantity["rain"]
    assert (first.part, first.n_rows) == ("up to 0", 700)
    assert [part.n_rows for part in others] == [100, 100, 100]


def test_rare_categories_are_one_part():
    kinds = np.concatenate([np.repeat([f"k{k:02d}" for k in range(31)], 30), [f"r{k}" for k in range(70)]])
    segments = Segments.of(*white()[:2], {"kind": kinds})
    *common, rest = segments.by_quantity["kind"]
    assert len(common) == 31
    assert (rest.part, rest.n_rows) == ("with a rarer value", 70)


@pytest.mark.parametrize(("n_rows", "n_inside"), [(40, 30), (40, 40), (300, 292), (25, 0)])
def test_the_chance_is_that_of_the_binomial_distribution(n_rows, n_inside):
    part = Segment("a", "= 1", n_rows, n_inside, 0.9)
    tails = binom.cdf(n_inside, n_rows, 0.9), binom.sf(n_inside - 1, n_rows, 0.9)
    assert part.p_value == pytest.approx(min(1.0, 2.0 * min(tails)), rel=1e-9)
    assert part.error == pytest.approx(binom.std(n_rows, 0.9) / n_rows)
    half = replace(part, n_rows=2 * n_rows, n_inside=2 * n_inside, independence=0.5)
    assert half.p_value == pytest.approx(part.p_value)
    assert half.error == pytest.approx(part.error)


def test_few_rows_say_nothing():
    rng = np.random.default_rng(0)
    forecast = Gaussian(np.zeros(30), np.zeros(30), 1e-6)
    few = Segments.of(forecast, rng.standard_normal(30), {"a": rng.uniform(0, 1, 30)})
    assert few.parts == ()
    assert few.worst is None
    rare = np.where(np.arange(1000) < 15, 1, 0)
    forecast, y, _ = white()
    segments = Segments.of(forecast, y + 100.0 * rare, {"rare": rare})
    assert segments.by_quantity["rare"][1].coverage == 0.0
    assert "rare" not in {part.quantity for part in segments.failing}


def test_many_parts_need_a_clearer_failure():
    """Two rows in a thousand by chance is something for one part and nothing for a hundred."""
    bad = Segment("a", "= 0", 100, 88, 0.95)
    fine = tuple(Segment("a", f"= {k}", 100, 95, 0.95) for k in range(1, 100))
    assert 0.002 < bad.p_value < 0.01
    assert Segments((bad,)).worst == bad
    assert Segments((bad, *fine)).worst is None


def test_too_narrow_is_worse_than_too_wide_and_a_trifle_is_nothing():
    wide, narrow = Segment("a", "= 0", 1000, 1000, 0.95), Segment("a", "= 1", 100, 80, 0.95)
    assert wide.p_value < narrow.p_value
    assert Segments((wide, narrow)).failing == [narrow, wide]
    trifle = Segment("a", "= 0", 1_000_000, 940_000, 0.95)
    assert trifle.p_value < 1e-6
    assert Segments((trifle,)).worst is None
    assert Segments((trifle,), SegmentOptions(material=0.005)).worst == trifle


def test_the_table_marks_what_fails():
    lines = str(Segments((Segment("a", "= 0", 100, 60, 0.95), Segment("a", "= 1", 100, 95, 0.95)))).splitlines()
    assert lines[0] == "Coverage of the 95% interval"
    assert lines[1].startswith("a = 0: 60.0% of 100 rows inside")
    assert [line.endswith("fails") for line in lines] == [False, True, False]


def uneven(seed, factor, n=1200):
    """A wave whose noise is `factor` times as large in one tenth of the second column, and a model of equal noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (2 * n, 3))
    loud = (X[:, 1] >= 0.6) & (X[:, 1] < 0.7)
    y = np.sin(6 * X[:, 0]) + 0.2 * np.where(loud, factor, 1.0) * rng.standard_normal(2 * n)
    noise_var = 0.04 * (0.9 + 0.1 * factor**2)
    model = SparseGPRegressor(
        kernels.SquaredExponential(1.0, [0.3, 5.0, 5.0]), n_inducing=12, approximation="vfe", noise_var=noise_var
    ).set_params(optimizer=None, calibration=None, random_state=0)
    return model.fit(X[:n], y[:n]), X[n:], y[n:]


def test_noise_that_is_three_times_as_large_in_one_tenth_is_found_there():
    for seed in range(5):
        found = uneven(seed, 3.0)
        diagnosis = found[0].diagnose(*found[1:])
        worst = diagnosis.segments.worst
        assert worst.quantity == "column 1"
        low, high = (float(word) for word in worst.part.split()[1::2])
        assert abs(low - 0.6) < 0.04
        assert abs(high - 0.7) < 0.04
        finding = next(finding for finding in diagnosis if worst.name in finding.what)
        assert finding.severity == "warning"
        assert f"{worst.coverage:.1%}" in finding.evidence


def test_honest_models_are_rarely_accused():
    accused = 0
    for seed in range(50):
        model, X, y = uneven(seed, 1.0, 400)
        accused += model.diagnose(X, y).segments.worst is not None
    assert accused < 5


def interpolation(seed, n=200):
    """An honest Gaussian process with hardly any noise: errors of neighbouring rows are nearly the same."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, 4 * n)
    K = np.exp(-(np.subtract.outer(x, x) ** 2) / (2 * 0.008**2)) + 1e-6 * np.eye(4 * n)
    y = np.linalg.cholesky(K) @ rng.standard_normal(4 * n)
    weights = np.linalg.solve(K[:n, :n], K[:n, n:])
    var = np.diag(K)[n:] - (K[:n, n:] * weights).sum(axis=0)
    return Gaussian(weights.T @ y[:n], var), y[n:], {"x": x[n:]}


def test_errors_that_neighbours_share_count_as_few_rows():
    found = [Segments.of(*interpolation(seed)) for seed in range(20)]
    assert np.median([segments.parts[0].independence for segments in found]) < 0.7
    assert sum(segments.worst is not None for segments in found) <= 3
    accused = 0
    for segments in found:
        alone = tuple(replace(part, independence=1.0) for part in segments.parts)
        accused += Segments(alone).worst is not None
    assert accused > 6
    assert Segments.of(*white()).parts[0].independence > 0.9

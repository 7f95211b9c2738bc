"""What is learned from residuals: their distribution where it shows, the Gaussian where it does not."""

import numpy as np
import pytest

from sparsegp.calibration.mixture import Shape
from sparsegp.calibration.shape_learning import ShapeOptions, _folds, learned

STANDARD = Shape.gaussian()
DRAWS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "too sure": lambda rng, n: 1.5 * rng.standard_normal(n),
    "long tails": lambda rng, n: rng.standard_t(3, n) / np.sqrt(3.0),
    "skewed": lambda rng, n: rng.gamma(2.0, 1.0, n) / np.sqrt(2.0) - np.sqrt(2.0),
    "two heaps": lambda rng, n: np.where(rng.random(n) < 0.5, -1.0, 1.0) + 0.2 * rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), n),
}


def coverage(shape, r, level):
    low, high = shape.quantiles(np.array([0.5 - 0.5 * level, 0.5 + 0.5 * level]))
    return float(((r > low) & (r < high)).mean())


@pytest.mark.parametrize("name", DRAWS)
def test_many_residuals_give_their_own_distribution(name):
    rng = np.random.default_rng(0)
    found = learned(DRAWS[name](rng, 5_000), rng)
    new = DRAWS[name](rng, 20_000)
    for level in (0.5, 0.8, 0.95, 0.99):
        # the error of 5,000 residuals and of 20,000 more, four times
        error = 4.0 * np.sqrt(level * (1.0 - level) * (1 / 5_000 + 1 / 20_000))
        held = coverage(found.shape, new, level)
        assert held > level - error - 0.01
        # no mixture of these parts ends as suddenly as the uniform distribution
        assert name == "uniform" or held < level + error + 0.01
    gain = (found.shape.log_density(new) - STANDARD.log_density(new)).mean()
    assert gain > -0.005
    assert found.gain == pytest.approx(gain, abs=0.05)


def test_shapes_that_are_not_gaussian_gain():
    rng = np.random.default_rng(1)
    for name, least in (("too sure", 0.15), ("long tails", 0.1), ("skewed", 0.1), ("two heaps", 0.5)):
        found = learned(DRAWS[name](rng, 3_000), rng)
        new = DRAWS[name](rng, 20_000)
        assert (found.shape.log_density(new) - STANDARD.log_density(new)).mean() > least, name


def test_normal_residuals_stay_normal():
    rng = np.random.default_rng(2)
    found = [learned(rng.standard_normal(400), rng).shape for _ in range(20)]
    assert sum(len(shape.weight) > 2 for shape in found) <= 5
    assert np.mean([shape.var for shape in found]) == pytest.approx(1.0, abs=0.05)
    new = rng.standard_normal(20_000)
    assert np.mean([(shape.log_density(new) - STANDARD.log_density(new)).mean() for shape in found]) > -0.01


@pytest.mark.parametrize(
    "sets",
    [
        {20: 40, 30: 40, 50: 40, 100: 25, 200: 8},
        pytest.param({20: 40, 30: 40, 50: 40, 100: 40, 200: 40}, marks=pytest.mark.slow),
    ],
    ids=["few sets of many", "many sets"],
)
def test_few_residuals_do_not_cost_more_than_a_little(sets):
    """On average over many small sets: never worse than the Gaussian by more than 0.02, and honest. Large sets differ
    little from each other."""
    rng = np.random.default_rng(3)
    for n, n_sets in sets.items():
        for name in DRAWS:
            gains, held = [], []
            for _ in range(n_sets):
                shape = learned(DRAWS[name](rng, n), rng).shape
                new = DRAWS[name](rng, 400)
                gains.append((shape.log_density(new) - STANDARD.log_density(new)).mean())
                held.append(coverage(shape, new, 0.95))
            assert np.mean(gains) > -0.02, (n, name, np.mean(gains))
            if name != "too sure" or n >= 100:
                assert np.mean(held) > 0.92, (n, name, np.mean(held))


def spiked(rng, n):
    """Where targets often have one value: most residuals in one place beside zero, the others far to the other side."""
    return np.where(rng.random(n) < 0.6, -0.3 + 0.01 * rng.standard_normal(n), rng.gamma(2.0, 0.8, n) - 0.6)


def test_residuals_that_are_often_the_same_keep_their_place():
    """The mean of the residuals is not that of the forecast: what makes up for it are the wide parts."""
    rng = np.random.default_rng(6)
    found = [learned(spiked(rng, 600), rng).shape for _ in range(4)]
    new = spiked(rng, 10_000)
    # a shape that left the spike, to be centred or to hold enough, had -1.1
    assert min(shape.log_density(new).mean() for shape in found) > -0.1
    for level in (0.8, 0.95):
        assert np.mean([coverage(shape, new, level) for shape in found]) == pytest.approx(level, abs=0.03)


def test_a_shape_that_holds_too_much_gives_way_to_a_better_one():
    """Two heaps without tails: a Gaussian that was stretched until 80% were within held 98% where it said 95%."""
    held = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        r = 1.2 * (np.where(rng.random(500) < 0.5, -0.9, 0.9) + 0.5 * rng.standard_normal(500))
        found = learned(r, rng)
        held.append(found.coverage_95)
    assert np.mean(held) < 0.965


def test_groups_are_left_out_together():
    """Forty rows a group, all in the same place: of a new group nothing is known but how far groups are from zero."""
    rng = np.random.default_rng(7)
    group = np.repeat(np.arange(20), 40)
    r = rng.standard_normal(20)[group] + 0.01 * rng.standard_normal(len(group))
    new = rng.standard_normal(10_000)
    apart, together = (learned(r, np.random.default_rng(0), group=each) for each in (None, group))
    densities = [found.shape.log_density(new).mean() for found in (together, apart)]
    assert densities[0] > densities[1]
    assert together.gain < apart.gain
    fold = _folds(group, rng, 5)
    assert all(len(set(fold[group == each])) == 1 for each in range(20))
    assert sorted(set(_folds(np.zeros(9, dtype=np.int64), rng, 5))) == [0, 1, 2, 3, 4]


def test_weights_count_residuals_again():
    rng = np.random.default_rng(4)
    r = rng.standard_t(3, 300)
    weight = rng.integers(1, 4, 300).astype(float)
    options = ShapeOptions(starts=ShapeOptions().starts[:1], coverages=())
    once = learned(r, np.random.default_rng(0), weight, options).shape
    again = learned(np.repeat(r, weight.astype(int)), np.random.default_rng(0), None, options).shape
    at = np.linspace(-4.0, 4.0, 41)
    # the unit is that of the residuals without their weights
    assert np.allclose(once.log_density(at), again.log_density(at), atol=0.02)


@pytest.mark.parametrize(
    "residuals",
    [np.zeros(300), np.zeros(0), np.ones(1), np.repeat([-1.0, 1.0], 200), np.append(np.zeros(500), 50.0)],
    ids=["all zero", "none", "one", "two values", "an outlier"],
)
def test_odd_residuals_give_a_proper_distribution(residuals):
    found = learned(residuals, np.random.default_rng(0))
    shape = found.shape
    assert np.isfinite([*shape.weight, *shape.location, *shape.width]).all()
    assert (shape.width > 0).all()
    assert shape.weight.sum() == pytest.approx(1.0)
    assert np.isfinite(shape.log_density(np.array([-60.0, 0.0, 60.0]))).all()
    assert 0.0 < shape.var < np.inf


def test_intervals_that_held_too_few_are_widened():
    """A shape that does not follow the residuals, here the standard normal, is stretched until it holds them."""
    rng = np.random.default_rng(5)
    r = DRAWS["uniform"](rng, 4_000) + np.where(rng.random(4_000) < 0.08, 4.0, 0.0)
    narrow = ShapeOptions(starts=())
    found = learned(r, rng, None, narrow)
    assert found.widened > 1.0
    assert coverage(found.shape, r, 0.95) >= 0.95


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize(("n", "loss"), [(2_000, 0.045), (5_000, 0.035)])
def test_residuals_within_limits_have_a_flat_top(n, loss, seed):
    """Uniform residuals: close to the density of the uniform, and intervals that hold what they say."""
    rng = np.random.default_rng(seed)
    half = np.sqrt(3.0)
    shape = learned(rng.uniform(-half, half, n), rng).shape
    fresh = rng.uniform(-half, half, 20_000)
    assert -shape.log_density(fresh).mean() < np.log(2.0 * half) + loss
    for level in (0.5, 0.8, 0.95):
        assert coverage(shape, fresh, level) == pytest.approx(level, abs=0.02)

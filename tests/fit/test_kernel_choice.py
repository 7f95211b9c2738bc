"""kernel="auto": smooth data get a smooth kernel, rough data a rough one; the rest of the fit is that of its name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone

from problems import FEW_ROUNDS
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPRegressor, kernels
from sparsegp.core.block import Block
from sparsegp.core.dense import ExactPosterior
from sparsegp.errors import FactorizationError
from sparsegp.fit import kernel_choice
from sparsegp.fit.budget import Budget
from sparsegp.fit.kernel_choice import KernelOptions, Score, winner
from sparsegp.fit.problem import Start
from sparsegp.learn.hyperparameters import Hyperparameters
from sparsegp.learn.neighbourhoods import predicted_by_neighbours

pytestmark = pytest.mark.usefixtures("every_kernel")


def drawn(kernel, n=250, noise_std=0.05, seed=0):
    """Rows of a function drawn from a kernel."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    covariance = kernel(torch.from_numpy(X)).detach().numpy() + 1e-10 * np.eye(n)
    return X, np.linalg.cholesky(covariance) @ rng.standard_normal(n) + noise_std * rng.standard_normal(n)


@pytest.fixture
def small_choice(options, brief_learning):
    """A choice from few and small neighbourhoods, and a fit that hardly learns: the chosen kernel is looked at."""
    few = replace(FEW_ROUNDS, counts=(2, 2), n_rows=120, n_neighbours=32)
    options(
        kernel={
            "first_rounds": few,
            "rounds": replace(few, counts=(2,), iterations=15, openings=()),
            "n_cells": 2,
            "cell_rows": 150,
            "iterations": 12,
        }
    )


@pytest.fixture
def two_kernels(options):
    """For what is the same however many there are."""
    options(kernel={"candidates": ("matern12", "se")})


RUGGED, SLEEK = ("Matern12",), ("SquaredExponential", "Matern52", "Matern32")
ROUGH, SMOOTH = kernels.Matern12(1.0, [1.0]), kernels.SquaredExponential(1.0, [1.0])


@pytest.mark.usefixtures("small_choice")
@pytest.mark.parametrize(("kernel", "allowed"), [(ROUGH, RUGGED), (SMOOTH, SLEEK)])
def test_the_kernel_follows_the_data(kernel, allowed):
    model = SparseGPRegressor(approximation="vfe", kernel="auto", n_inducing=20, random_state=0).fit(*drawn(kernel))
    assert type(model.kernel_).__name__ in allowed
    assert model.kernel == "auto"


@pytest.mark.usefixtures("small_choice", "two_kernels")
def test_the_fit_is_that_of_the_chosen_kernel():
    X, y = drawn(ROUGH)
    model = SparseGPRegressor(approximation="vfe", kernel="auto", n_inducing=15, random_state=0).fit(X, y)
    named = SparseGPRegressor(approximation="vfe", kernel="matern12", n_inducing=15, random_state=0).fit(X, y)
    assert model.log_evidence_ == pytest.approx(named.log_evidence_, rel=0.05)


@pytest.mark.usefixtures("small_choice", "two_kernels")
@pytest.mark.parametrize(
    "model",
    [
        HeteroscedasticGPRegressor(kernel="auto", n_inducing=10, n_noise_inducing=5, random_state=0),
        CommitteeGPRegressor(kernel="auto", n_experts=2, random_state=0),
    ],
    ids=["heteroscedastic", "committee"],
)
def test_every_estimator_has_it(model):
    X, y = drawn(SMOOTH, 150)
    model.fit(X, y)
    assert np.corrcoef(model.predict(X), y)[0, 1] > 0.98


def noisy_in_places(kernel, n=300, seed=0):
    """Rows of a function drawn from a kernel, in every other unit of x with a hundred times the noise."""
    X, f = drawn(kernel, n, noise_std=0.0, seed=seed)
    noise_std = np.where(X[:, 0] % 2 < 1, 0.01, 1.0)
    return X, f + noise_std * np.random.default_rng(seed + 1).standard_normal(n)


WITH_LEARNED_NOISE = {
    "heteroscedastic": HeteroscedasticGPRegressor(n_inducing=40, n_noise_inducing=20, kernel="auto", random_state=0),
    "committee": CommitteeGPRegressor(expert="vhgp", n_experts=2, n_noise_inducing=15, kernel="auto", random_state=0),
}


@pytest.mark.parametrize(
    ("name", "kernel", "expected"),
    [
        ("heteroscedastic", ROUGH, "Matern12"),
        ("heteroscedastic", SMOOTH, "SquaredExponential"),
        ("committee", SMOOTH, "SquaredExponential"),
    ],
)
@pytest.mark.usefixtures("small_choice", "two_kernels")
def test_learned_noise_does_not_hide_the_kernel(name, kernel, expected):
    model = clone(WITH_LEARNED_NOISE[name]).fit(*noisy_in_places(kernel, 200))
    assert type(model.kernel_).__name__ == expected


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "allowed"), [(ROUGH, ("Matern12",)), (SMOOTH, ("SquaredExponential", "Matern52"))])
@pytest.mark.parametrize("name", WITH_LEARNED_NOISE)
def test_learned_noise_does_not_hide_the_kernel_among_all(name, kernel, allowed):
    """With the candidates and sizes of every fit."""
    model = clone(WITH_LEARNED_NOISE[name]).fit(*noisy_in_places(kernel))
    assert type(model.kernel_).__name__ in allowed


def test_the_judge_of_learned_noise_leaves_nothing_behind():
    """A score does not depend on those given before it: residuals that show no variation fall back on the kernel given,
    with a smaller variance."""
    X, y = drawn(SMOOTH)
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    given = kernel_choice.LearnedNoise(kernels.SquaredExponential(8.0, [1.0]), 0.05)
    common = Hyperparameters(SMOOTH, 0.1, block.X[:1], learn_inducing=False)
    judge = given.prepared(block, common, np.random.default_rng(0))
    assert judge.least_noise_var > 0.0
    scores = []
    for _ in range(2):
        hyper = Hyperparameters(SMOOTH, 0.1, block.X[:1], learn_inducing=False)
        scores.append(float(judge.score(hyper, block, np.random.default_rng(3)).density.sum()))
    assert scores[0] == scores[1] > -np.inf
    assert float(given.noise_kernel.log_variance.detach().exp()) == pytest.approx(8.0)


def test_a_kernel_that_cannot_be_factorised_is_of_no_use(monkeypatch):
    X, y = noisy_in_places(SMOOTH, 60)
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    hyper = Hyperparameters(SMOOTH, 0.1, block.X[:1], learn_inducing=False)
    judge = kernel_choice.LearnedNoise(kernels.SquaredExponential(1.0, [1.0]), 0.05)
    judge = judge.prepared(block, hyper, np.random.default_rng(0))

    def fails(*_, **__):
        raise FactorizationError("covariance", "not positive definite", "nothing")

    monkeypatch.setattr(kernel_choice.lbfgs, "maximize", fails)
    assert judge.score(hyper, block, np.random.default_rng(0)).density.sum() <= -1e99


def score(density, square_error):
    return Score(np.array(density), np.array(square_error))


def test_the_winner_is_better_by_more_than_chance():
    noise = 0.1 * np.tile([1.0, -1.0], 50)  # of differences, the standard error is 0.02
    usual, worse = score(noise, np.ones(100)), score(noise - 0.1, np.ones(100))
    assert winner({"first": usual, "second": score(0.01 - noise, np.ones(100))}, 2.0) == "first"
    assert winner({"first": worse, "second": usual}, 2.0) == "second"
    assert winner({"first": usual, "second": worse}, 2.0) == "first"
    # of two whose densities are equal but for chance, the one with the nearer means, if these are clearly nearer
    same = noise[::-1]
    assert winner({"first": usual, "second": score(same, np.full(100, 0.9) + noise)}, 2.0) == "second"
    assert winner({"first": usual, "second": score(same, np.full(100, 0.99) + noise)}, 2.0) == "first"
    # a density that is worse by one and a half standard errors may be as good, by two and a half it is not
    assert winner({"first": usual, "second": score(same - 0.03, np.full(100, 0.9) + noise)}, 2.0) == "second"
    assert winner({"first": usual, "second": score(same - 0.05, np.full(100, 0.9) + noise)}, 2.0) == "first"
    # one that fails is of no use, wherever it stands
    failed = Score.of(kernel_choice.OF_NO_USE)
    assert winner({"first": failed, "second": usual}, 2.0) == "second"
    assert winner({"first": usual, "second": failed}, 2.0) == "first"


@pytest.mark.parametrize("n", [200, 400])
def test_the_judge_leaves_rows_out_of_cells(n, monkeypatch):
    """As if each row had been left out of its cell; more than `whole_rows` are judged in cells of near rows."""
    X, y = drawn(SMOOTH, n)
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    hyper = Hyperparameters(SMOOTH, 0.01, block.X[:1], learn_inducing=False)
    options = KernelOptions(whole_rows=250, judged_cells=3, judged_cell_rows=120)
    judge = kernel_choice.LeftOutRows(options).prepared(block, hyper, np.random.default_rng(0))
    assert [len(cell) for cell in judge.cells] == ([n] if n <= 250 else [120, 120, 120])
    seen = []
    monkeypatch.setattr(
        kernel_choice, "calibrated_log_density", lambda y, mean, std, *_, **__: seen.append((mean, std)) or -y
    )
    judge.score(hyper, block, np.random.default_rng(0))
    cell, k = judge.cells[0], 17
    others = cell.take(torch.tensor([i for i in range(len(cell)) if i != k]))
    mean, var = ExactPosterior.build(SMOOTH, others, torch.tensor(0.01, dtype=torch.float64)).marginals(cell.X[[k]])
    np.testing.assert_allclose(seen[0][0][k], float(mean), rtol=1e-8)
    np.testing.assert_allclose(seen[0][1][k], float((var + 0.01).sqrt()), rtol=1e-8)


@pytest.mark.usefixtures("small_choice")
def test_rows_that_are_there_twice_do_not_hide_the_kernel():
    """Without noise between the copies the likeliest noise is none, and the likeliest lengthscale nothing."""
    X, y = drawn(SMOOTH, 100, noise_std=0.3)
    model = SparseGPRegressor(approximation="vfe", kernel="auto", n_inducing=20, random_state=0)
    once = type(model.fit(X, y).kernel_).__name__
    twice = type(model.fit(np.concatenate([X, X]), np.concatenate([y, y])).kernel_).__name__
    assert once == twice
    assert once in SLEEK


def test_a_copy_does_not_tell_a_row():
    X, y = drawn(SMOOTH, 40, noise_std=0.3)
    hyper = Hyperparameters(SMOOTH, 0.09, torch.zeros(1, 1, dtype=torch.float64))
    rows = torch.arange(40)
    once = Block(torch.from_numpy(X), torch.from_numpy(y))
    twice = Block.concat([once, once])
    with torch.no_grad():
        alone = predicted_by_neighbours(once, hyper, rows, 39)
        beside_copies = predicted_by_neighbours(Block.concat([once, once.take(rows[:1])]), hyper, rows[:1], 39)
        # without any other inputs, equal ones are all there is
        same = Block(torch.zeros(3, 1, dtype=torch.float64), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
        mean, _ = predicted_by_neighbours(same, hyper, torch.tensor([0]), 39)
    np.testing.assert_allclose(beside_copies[0], alone[0][:1], rtol=1e-10)
    assert float(mean) > 1.0
    assert len(twice.distinct()) == 40


@pytest.mark.parametrize("n", [1, 3])
def test_few_rows(n):
    X, y = drawn(SMOOTH, n)
    assert np.isfinite(
        SparseGPRegressor(kernel="auto", approximation="exact", random_state=0).fit(X, y).predict(X)
    ).all()


@pytest.mark.usefixtures("small_choice", "two_kernels")
def test_many_rows_are_sampled(options):
    options(kernel={"most_rows": 200})
    model = SparseGPRegressor(approximation="vfe", kernel="auto", n_inducing=10, random_state=0).fit(*drawn(ROUGH, 400))
    assert type(model.kernel_).__name__ == "Matern12"


@pytest.fixture
def scored(monkeypatch):
    """Names of the kernels that were tried."""
    tried, score = [], kernel_choice.LeftOutRows.score

    def recorded(judge, hyper, *given):
        tried.append(type(hyper.kernel).__name__)
        return score(judge, hyper, *given)

    monkeypatch.setattr(kernel_choice.LeftOutRows, "score", recorded)
    return tried


@pytest.mark.parametrize(
    ("budget", "tried"), [(10.0, []), (40.0, ["Matern32", "Matern12"]), (None, ["Matern32", "Matern12"])]
)
def test_a_budget_bounds_the_choice(budget, tried, scored):
    X, y = drawn(SMOOTH, 60)
    block = Block(torch.from_numpy(X), torch.from_numpy(y))
    starts = {name: Start(kernels.get(name)(1.0, [1.0]), 0.01) for name in KernelOptions().candidates}
    # a trial takes three seconds of a clock that stands still otherwise
    within = Budget(budget, 0.0, clock=lambda: 3.0 * len(scored))
    chosen = kernel_choice.best_start(starts, block, np.random.default_rng(0), within)
    assert scored[:2] == tried
    assert len(scored) == (len(starts) if budget is None else len(tried))
    assert tried or chosen.name == "matern32"


def test_without_time_to_compare_two_kernels_the_first_is_taken(monkeypatch):
    X, y = noisy_in_places(ROUGH, 80)
    given = {"n_inducing": 10, "n_noise_inducing": 5, "random_state": 0}
    monkeypatch.setattr(kernel_choice.LearnedNoise, "prepared", None)  # not reached
    model = HeteroscedasticGPRegressor(kernel="auto", time_budget=25.0, **given).fit(X, y)
    assert type(model.kernel_).__name__ == "Matern32"


@pytest.mark.usefixtures("small_choice")
def test_a_chosen_approximation_has_the_kernel_chosen_once(scored, options):
    options(auto={"exact_rows": 50})
    model = SparseGPRegressor(kernel="auto", random_state=0).fit(*drawn(ROUGH, 220))
    assert len(scored) == len(KernelOptions().candidates)
    assert type(model.kernel_).__name__ in ("Matern12", "Matern32")
    assert (model.kernel, model.approximation) == ("auto", "auto")


def test_nothing_learned_nothing_chosen():
    model = SparseGPRegressor(approximation="vfe", optimizer=None, noise_var=0.1).fit(*drawn(SMOOTH, 20))
    assert type(model.kernel_).__name__ == "Matern32"

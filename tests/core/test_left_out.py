"""Leave-one-out predictions in closed form against models of the other rows, and against the dense oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from problems import ALL_ROWS, CHANGES, COMBINATIONS, DenseProblem, Problem, agree, get_row, random_problem
from sparsegp.core import approximations
from sparsegp.core.approximations import Approximation, Family
from sparsegp.core.block import MemoryRows
from sparsegp.core.dense import ExactPosterior, NystromPosterior
from sparsegp.core.left_out import LeftOut, LeftOutOfRows, left_out_of_exact, left_out_of_nystrom
from sparsegp.core.partition import block_slices
from sparsegp.core.trend import Trend
from sparsegp.errors import InputError
from sparsegp.infer import batch
from sparsegp.testing import oracle

POWERS = (0.0, 0.5, 1.0)
ROWS = [*ALL_ROWS, *COMBINATIONS]


def plain(problem: Problem) -> Problem:
    return problem


def fractional(problem: Problem) -> Problem:
    weight = torch.from_numpy(np.random.default_rng(5).uniform(0.2, 3.0, len(problem.y)))
    return replace(problem, weight=weight)


VARIANTS: dict[str, Callable[[Problem], Problem]] = {"plain": plain, "fractional weights": fractional, **CHANGES}


def sorted_rows(problem: Problem) -> MemoryRows:
    order, offsets = block_slices(problem.labels, problem.n_blocks)
    return MemoryRows(problem.block.take(order), offsets, order)


def left_out(problem: Problem, row: Approximation) -> LeftOut:
    """In the order of the problem."""
    if row.family is Family.EXACT:
        noise_var = torch.tensor(problem.noise_var).double()
        posterior = ExactPosterior.build(problem.kernel, problem.block, noise_var, problem.trend)
        found, held = left_out_of_exact(posterior, problem.block, noise_var)
        assert held.all()
        return found
    rows = sorted_rows(problem)
    state, posterior_, _ = batch.infer(problem.prior(row), rows)
    if row.family is Family.NYSTROM:
        nystrom = NystromPosterior.build(state.prior, rows.all, posterior_.q)
        return left_out_of_nystrom(nystrom, rows.all).unsorted(rows.serials)
    found_ = rows.sum(LeftOutOfRows(state.prior, posterior_.q))
    found_.require_rows_of(state.statistics, rows.dtype)
    return found_.left_out.unsorted(rows.serials)


def without(problem: Problem, i: int) -> Problem:
    """The other rows; the row itself is the one to predict."""
    others = torch.arange(len(problem.y)) != i
    parts = {"row_noise": problem.row_noise, "weight": problem.weight}
    return replace(
        problem,
        X=problem.X[others],
        y=problem.y[others],
        labels=problem.labels[others],
        X_test=problem.X[i : i + 1],
        test_labels=problem.labels[i : i + 1],
        **{name: None if value is None else value[others] for name, value in parts.items()},
    )


def refitted(problem: Problem, row: Approximation) -> tuple[Tensor, Tensor]:
    means, variances = [], []
    for i in range(len(problem.y)):
        rest = without(problem, i)
        if row.family is Family.EXACT:
            noise_var = torch.tensor(rest.noise_var).double()
            posterior = ExactPosterior.build(rest.kernel, rest.block, noise_var, rest.trend)
            mean, cov = posterior.joint(rest.X_test)
        else:
            found, _ = rest.infer(row)
            nystrom = row.family is Family.NYSTROM
            at = NystromPosterior.build(rest.prior(row), rest.rows.all, found.q) if nystrom else found
            mean, cov = at.joint(rest.X_test, rest.test_labels)
        means.append(mean)
        variances.append(cov[0])
    return torch.cat(means), torch.cat(variances)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ROWS)
def test_rows_left_out_are_predicted_as_by_a_fit_of_the_others(name: str, variant: str) -> None:
    problem, row = VARIANTS[variant](random_problem(3, "matern32")), get_row(name)
    found = left_out(problem, row)
    agree((found.mean, found.f_var), refitted(problem, row))


@pytest.mark.parametrize("variant", ["plain", "weights and row noise"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_left_out_of_a_trend(name: str, variant: str) -> None:
    problem = replace(VARIANTS[variant](random_problem(3, "matern32")), trend=Trend((0, 1)))
    found, row = left_out(problem, get_row(name)), get_row(name)
    agree((found.mean, found.f_var), refitted(problem, row), rtol=1e-7)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("name", ["pep", "block-pep"])
def test_every_power_leaves_rows_out_exactly(name: str, power: float) -> None:
    problem, row = VARIANTS["weights and row noise"](random_problem(7, "rq")), approximations.get(name, power)
    found = left_out(problem, row)
    agree((found.mean, found.f_var), refitted(problem, row))


@pytest.mark.parametrize("name", [row for row in ALL_ROWS if row != "nystrom"])
def test_sum_of_log_densities_is_that_of_the_dense_oracle(name: str) -> None:
    problem = VARIANTS["row noise"](random_problem(11, "product"))
    found, dense, total = left_out(problem, get_row(name)), DenseProblem.of(problem), 0.0
    for i in range(len(problem.y)):
        others = np.arange(len(problem.y)) != i
        data = dense.k, dense.X[others], dense.y[others], dense.Z, dense.noise_var[others]
        mean, cov = oracle.predict(
            name, *data, dense.X[i : i + 1], dense.blocks[others], dense.blocks[i : i + 1], power=0.4
        )
        total += oracle.log_gaussian(dense.y[i : i + 1] - mean, cov + dense.noise_var[i])
    density = -0.5 * ((2 * np.pi * found.var).log() + (found.y - found.mean).square() / found.var)
    assert float(density.sum()) == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("name", [row for row in ROWS if row != "nystrom"])
def test_a_model_without_the_row_is_less_certain_of_it(name: str) -> None:
    problem, row = random_problem(13), get_row(name)
    if name == "exact":
        noise_var = torch.tensor(problem.noise_var).double()
        posterior = ExactPosterior.build(problem.kernel, problem.block, noise_var, problem.trend)
        _, var = posterior.marginals(problem.X)
    else:
        _, var = problem.infer(row)[0].marginals(problem.X, problem.labels)
    assert bool((left_out(problem, row).f_var >= var - 1e-12).all())


@pytest.mark.parametrize("name", ROWS)
def test_rows_in_another_order_have_the_same_answers(name: str) -> None:
    problem, row = VARIANTS["weights and row noise"](random_problem(17)), get_row(name)
    order = torch.randperm(len(problem.y), generator=torch.Generator().manual_seed(1))
    changed = {key: getattr(problem, key)[order] for key in ("X", "y", "labels", "row_noise", "weight")}
    one, other = left_out(problem, row), left_out(replace(problem, **changed), row)
    agree((other.mean, other.f_var, other.noise, other.y), tuple(getattr(one, c)[order] for c in vars(one)), rtol=1e-10)


@pytest.mark.parametrize("name", ROWS)
def test_of_two_equal_rows_each_is_predicted_by_the_other(name: str) -> None:
    problem, row = random_problem(19), get_row(name)
    twice = {key: torch.cat([getattr(problem, key), getattr(problem, key)[:1]]) for key in ("X", "y", "labels")}
    doubled = replace(problem, **twice)
    found = left_out(doubled, row)
    mean, var = refitted(doubled, row)
    agree((found.mean, found.f_var), (mean, var))
    agree((found.mean[0], found.f_var[0]), (found.mean[-1], found.f_var[-1]), rtol=1e-10)


@pytest.mark.parametrize("labels", ["blocks of one row", "one block", "with empty blocks"])
@pytest.mark.parametrize("name", ["pitc", "pic", "block-pep", "all shapes"])
def test_blocks_of_any_size(name: str, labels: str) -> None:
    problem, row = random_problem(23), get_row(name)
    n = len(problem.y)
    chosen = {"blocks of one row": torch.arange(n), "one block": torch.zeros(n, dtype=torch.int64)}
    problem = replace(problem, labels=chosen.get(labels, 3 * problem.labels + 1))
    found = left_out(problem, row)
    agree((found.mean, found.f_var), refitted(problem, row))


def test_singleton_blocks_make_pic_fic_and_one_block_makes_it_exact() -> None:
    problem = random_problem(29)
    alone = left_out(replace(problem, labels=torch.arange(len(problem.y))), get_row("pic"))
    fic, exact = left_out(problem, get_row("fic")), left_out(problem, get_row("exact"))
    together = left_out(replace(problem, labels=torch.zeros_like(problem.labels)), get_row("pic"))
    agree((alone.mean, alone.f_var), (fic.mean, fic.f_var))
    agree((together.mean, together.f_var), (exact.mean, exact.f_var))


@pytest.mark.parametrize("variant", ["plain", "weights and row noise"])
@pytest.mark.parametrize("name", ROWS)
def test_float32_rows_give_nearly_the_float64_answers(name: str, variant: str) -> None:
    problem, row = VARIANTS[variant](random_problem(31)), get_row(name)
    fields = {field: getattr(problem, field) for field in ("X", "y", "row_noise", "weight")}
    single = {field: None if value is None else value.float() for field, value in fields.items()}
    one, other = left_out(problem, row), left_out(replace(problem, **single), row)
    agree((other.mean, other.f_var, other.noise), (one.mean, one.f_var, one.noise), rtol=5e-4)
    assert other.mean.dtype == torch.float64


def test_chunks_and_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(37)
    expected = [left_out(problem, get_row(name)) for name in ("vfe", "pitc", "nystrom")]
    monkeypatch.setattr("sparsegp.core.block.MemoryRows.chunks.__defaults__", (3,))
    monkeypatch.setattr("sparsegp.core.left_out.CHUNK_ROWS", 7)
    monkeypatch.setattr("sparsegp.parallel.available", lambda: 3)
    for name, one in zip(("vfe", "pitc", "nystrom"), expected, strict=True):
        other = left_out(problem, get_row(name))
        agree((other.mean, other.f_var, other.y), (one.mean, one.f_var, one.y), rtol=1e-11)


def test_a_subset_leaves_out_its_own_rows_and_predicts_the_others() -> None:
    problem, index = CHANGES["row noise"](random_problem(41)), torch.tensor([1, 4, 7, 8, 15])
    noise = torch.tensor(problem.noise_var).double()
    posterior = ExactPosterior.build(problem.kernel, problem.block.take(index), noise)
    found, held = left_out_of_exact(posterior, problem.block, noise)
    assert held.nonzero()[:, 0].tolist() == index.tolist()
    for i in range(len(problem.y)):
        rest = index[index != i]
        expected = ExactPosterior.build(problem.kernel, problem.block.take(rest), noise).joint(problem.X[i : i + 1])
        agree((found.mean[i : i + 1], found.f_var[i : i + 1]), (expected[0], expected[1][0]))


@pytest.mark.parametrize("scale", [1e-6, 1e-10])
@pytest.mark.parametrize("name", ["sor", "vfe", "fitc", "pitc", "pic"])
def test_noise_that_is_nearly_none_leaves_numbers_that_are_numbers(name: str, scale: float) -> None:
    problem = replace(random_problem(43), noise_var=scale)
    found = left_out(problem, get_row(name))
    prior_var = problem.kernel.diagonal(problem.X)
    assert bool(found.mean.isfinite().all())
    assert bool((found.f_var >= 0).all() and (found.f_var <= prior_var * (1 + 1e-9)).all())


@pytest.mark.parametrize("change", ["y", "X", "weight", "fewer"])
@pytest.mark.parametrize("name", ALL_ROWS)
def test_rows_of_another_model_are_refused(name: str, change: str) -> None:
    problem, row = random_problem(47), get_row(name)
    other = {
        "y": replace(problem, y=problem.y.flip(0)),
        "X": replace(problem, X=problem.X + 0.01),
        "weight": replace(problem, weight=torch.linspace(0.9, 1.1, len(problem.y)).double()),
        "fewer": without(problem, 0),
    }[change]
    with pytest.raises(InputError, match="not the rows of the model"):
        _left_out_by(problem, row, other)


def _left_out_by(problem: Problem, row: Approximation, other: Problem) -> None:
    """The rows of one problem, left out of the model of another."""
    noise, rows, held = torch.tensor(problem.noise_var).double(), sorted_rows(other), sorted_rows(problem)
    if row.family is Family.EXACT:
        left_out_of_exact(ExactPosterior.build(problem.kernel, problem.block, noise), other.block, noise)
        return
    state, posterior, _ = batch.infer(problem.prior(row), held)
    if row.family is Family.NYSTROM:
        left_out_of_nystrom(NystromPosterior.build(state.prior, held.all, posterior.q), rows.all)
        return
    rows.sum(LeftOutOfRows(state.prior, posterior.q)).require_rows_of(state.statistics, rows.dtype)

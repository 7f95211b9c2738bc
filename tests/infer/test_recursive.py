"""Recursive inference: both forms against the batch, the golden steps, and the algebra of forgetting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import COMBINATIONS, INDUCING_ROWS, agree, get_row, random_problem, with_row_noise, with_weights
from sparsegp import FingerprintError, InputError, kernels, parallel
from sparsegp.core import approximations
from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior, log_evidence
from sparsegp.core.prior import SparsePrior
from sparsegp.core.statistics import BlockStatistics
from sparsegp.core.trend import Trend
from sparsegp.infer import recursive, revise
from sparsegp.infer.drift import Innovations
from sparsegp.testing import check_engine
from test_golden import RECURSIVE, golden_problem, row_of

FORMS = ("kalman", "information", "auto")
ROW_NAMES = st.sampled_from([*INDUCING_ROWS, *COMBINATIONS])
laws = settings(deadline=None, max_examples=12)


def run(prior, blocks, form="auto"):
    state, infos = recursive.init(prior), []
    for block in blocks:
        state, info = recursive.step(state, block, form)
        infos.append(info)
    return state, infos


def moments(state):
    return state.mean, state.covariance


def batch(prior, blocks):
    statistics = BlockStatistics.from_blocks(prior, blocks)
    q = InducingPosterior.from_statistics(statistics)
    return q, log_evidence(statistics, q)


def stream_problem(n_rows, n_inducing=20, row="vfe", seed=0, n_dims=2):
    """Rows of a GP-like function with noise of variance 0.1, seen through 20 random inducing inputs."""
    rng = np.random.default_rng(seed)
    inducing = torch.from_numpy(rng.uniform(-2.0, 2.0, (n_inducing, n_dims)))
    prior = SparsePrior.build(kernels.SquaredExponential(1.3, 1.4), inducing, 0.1, approximations.get(row, 0.4))
    X = torch.from_numpy(rng.uniform(-2.0, 2.0, (n_rows, n_dims)))
    y = torch.sin(X.sum(1)) + 0.1**0.5 * torch.from_numpy(rng.standard_normal(n_rows))
    return prior, Block(X, y)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", RECURSIVE)
def test_golden_steps(golden, model, form):
    problem = golden_problem(golden)
    prior = problem.prior(row_of(golden, model))
    L, state, total = prior.Luu.factor, recursive.init(prior), 0.0
    for expected in golden["recursive"][model]["steps"]:
        state, info = recursive.step(state, problem.rows.block(expected["block"]), form)
        mean, covariance = moments(state)
        got = L @ mean, L @ covariance @ L.mT, info.psi
        agree(got, (expected["mu"], expected["Sigma"], expected["psi_k"]))
        total += info.psi
    agree((total, state.log_evidence), (golden["recursive"][model]["total"],) * 2)


@pytest.mark.parametrize("form", FORMS)
def test_engine_conforms(form):
    check_engine(recursive.init, lambda state, block: recursive.step(state, block, form))
    check_engine(recursive.init, lambda state, block: recursive.step(state, block, form), trend=Trend((0, 1)))


def test_the_conformance_check_sees_a_wrong_engine():
    def twice(state, block):
        new, _ = recursive.step(state, block)
        return recursive.step(new, block)

    def wrong_bound(state, block):
        new, info = recursive.step(state, block)
        return new, replace(info, psi=info.psi + 1e-5)

    def in_place(state, block):
        new, info = recursive.step(state, block)
        state.q.mean.add_(0.1)
        return new, info

    for step, message in ((twice, "q after step 0"), (wrong_bound, "psi of step 0"), (in_place, "the state before")):
        with pytest.raises(AssertionError, match=message):
            check_engine(recursive.init, step, rows=["vfe"])


@laws
@given(seed=st.integers(0, 1000), name=ROW_NAMES, form=st.sampled_from(FORMS), change=st.integers(0, 3))
def test_any_form_is_the_batch_with_row_noise_and_weights(seed, name, form, change):
    problem = random_problem(seed, "rq")
    problem = with_row_noise(problem, seed) if change & 1 else problem
    problem = with_weights(problem, seed) if change & 2 else problem
    prior = problem.prior(get_row(name))
    blocks = list(problem.rows.blocks())
    state, infos = run(prior, blocks, form)
    q, evidence = batch(prior, blocks)
    agree((*moments(state), state.q.mean), (q.mean, q.covariance, q.mean))
    agree((sum(info.psi for info in infos), state.log_evidence), (evidence, evidence))


@laws
@given(seed=st.integers(0, 1000), name=st.sampled_from(["sor", "vfe", "fitc", "pep", "points"]))
def test_single_rows_are_the_batch(seed, name):
    """The lean path of one row, with noise of its own or not, and a kernel with or without a constant diagonal."""
    problem = random_problem(seed, "se-ard" if seed % 2 else "se+linear")
    problem = with_row_noise(problem, seed) if seed % 3 else problem
    prior = problem.prior(get_row(name))
    rows = [problem.block.take(slice(i, i + 1)) for i in range(len(problem.y))]
    state, infos = run(prior, rows, "kalman")
    q, evidence = batch(prior, [problem.block])
    agree((*moments(state), sum(info.psi for info in infos)), (q.mean, q.covariance, evidence))
    for one, block in zip(infos, run(prior, rows, "information")[1], strict=True):
        agree((one.nis, one.clipped_nis, one.expected_nis), (block.nis, block.clipped_nis, block.expected_nis))


@pytest.mark.parametrize("name", INDUCING_ROWS)
def test_innovation_is_that_of_the_predictive_distribution(name):
    """nis = r^T S^-1 r and psi = log N(r; 0, S) - a_k, with S = H Sigma H^T + V written out."""
    problem = random_problem(3)
    prior = problem.prior(get_row(name))
    first, second = problem.rows.block(0), problem.rows.block(2)
    state, _ = run(prior, [first])
    with torch.no_grad():
        W = prior.features(second.X)
        residual = problem.kernel(second.X) - W @ W.mT
    keep = {"none": torch.zeros_like(residual), "diagonal": residual.diag().diag(), "block": residual}
    component = prior.approx.components[0]
    V = component.alpha * keep[component.residual.value] + problem.noise_var * torch.eye(
        len(second), dtype=torch.float64
    )
    r, S = second.y - W @ state.mean, W @ state.covariance @ W.mT + V
    density = torch.distributions.MultivariateNormal(torch.zeros(len(r), dtype=torch.float64), S).log_prob(r)
    penalty = BlockStatistics.from_block(prior, second).penalty
    for form in ("kalman", "information"):
        info = recursive.step(state, second, form)[1]
        agree((info.nis, info.psi), (r @ torch.linalg.solve(S, r), density - penalty))
        assert info.z == pytest.approx((info.nis - len(r)) / (2 * len(r)) ** 0.5)
        assert info.form == form


@pytest.mark.parametrize("name", ["dtc", "vfe", "fitc", "pep", "pitc", "block-pep"])
def test_transformed_parametrisation_is_equivalent(name):
    """003 sec. 3.2.2: prior Kuu^-1 and H~ = K_xu propagate Kuu^-1 mu and Kuu^-1 Sigma Kuu^-1, and predict the same."""
    problem = random_problem(5)
    prior = problem.prior(get_row(name))
    with torch.no_grad():
        Kuu, K_test = problem.kernel(problem.inducing), problem.kernel(problem.X_test, problem.inducing)
    mean, covariance = torch.zeros(len(Kuu), dtype=torch.float64), torch.linalg.inv(Kuu)
    for block in problem.rows.blocks():
        with torch.no_grad():
            H, K = problem.kernel(block.X, problem.inducing), problem.kernel(block.X)
        D = K - H @ torch.linalg.solve(Kuu, H.mT)
        component = prior.approx.components[0]
        shape = {"none": torch.zeros_like(D), "diagonal": D.diag().diag(), "block": D}[component.residual.value]
        S = H @ covariance @ H.mT + component.alpha * shape + problem.noise_var * torch.eye(len(H), dtype=torch.float64)
        G = torch.linalg.solve(S, H @ covariance).mT
        mean, covariance = mean + G @ (block.y - H @ mean), covariance - G @ S @ G.mT
    state, _ = run(prior, problem.rows.blocks(), "kalman")
    L = prior.Luu.factor
    u_mean, u_covariance = L @ state.mean, L @ state.covariance @ L.mT
    agree((Kuu @ mean, Kuu @ covariance @ Kuu), (u_mean, u_covariance))
    H_test = torch.linalg.solve(Kuu, K_test.mT).mT
    agree((K_test @ mean, K_test @ covariance @ K_test.mT), (H_test @ u_mean, H_test @ u_covariance @ H_test.mT))


def test_auto_chooses_by_the_size_of_the_block():
    prior, block = stream_problem(60)
    state = recursive.init(prior)
    assert recursive.step(state, block.take(slice(0, 5)))[1].form == "kalman"
    assert recursive.step(state, block.take(slice(0, 6)))[1].form == "information"
    with pytest.raises(InputError, match="'kalman', 'information'; got 'smoother'"):
        recursive.step(state, block, "smoother")


@pytest.mark.parametrize("name", ["vfe", "fitc", "pitc"])
def test_rows_shared_among_threads_are_those_of_one(name, monkeypatch):
    """With row noise and weights; rows that are correlated given u stay together."""
    prior, block = stream_problem(61, row=name)
    draw = np.random.default_rng(1)
    noise, weight = draw.uniform(0.03, 0.5, len(block)), draw.integers(1, 5, len(block)).astype(float)
    block = replace(block, noise_var=torch.from_numpy(noise), weight=torch.from_numpy(weight))
    usual, (alone,) = run(prior, [block], "information")
    monkeypatch.setattr(recursive, "ENTRIES_OF_A_THREAD", 64)
    monkeypatch.setattr(parallel, "available", lambda: 3)
    assert len(recursive._whitened(prior, block)) == (1 if name == "pitc" else 3)
    found, (shared,) = run(prior, [block], "information")
    agree(moments(found), moments(usual), 1e-11)
    for figure in ("n_rows", "psi", "nis", "clipped_nis", "expected_nis"):
        assert getattr(shared, figure) == pytest.approx(getattr(alone, figure), rel=1e-10)


def test_moments_are_refreshed_from_the_accumulators():
    prior, block = stream_problem(3 * 64)
    state, ages = recursive.init(prior), []
    for i in range(len(block)):
        state, _ = recursive.step(state, block.take(slice(i, i + 1)))
        ages.append(-1 if state.moments is None else state.moments.age)
    assert [i for i, age in enumerate(ages) if age < 0] == [63, 127, 191]


def drift_from_batch(prior, block, check_every):
    """Largest relative difference of mean and covariance, and the smallest eigenvalue met."""
    state, smallest = recursive.init(prior), np.inf
    for i in range(len(block)):
        state, _ = recursive.step(state, block.take(slice(i, i + 1)))
        if i % check_every == check_every - 1:
            smallest = min(smallest, float(torch.linalg.eigvalsh(state.covariance).min()))
    q, _ = batch(prior, (block.take(part) for part in torch.arange(len(block)).split(1000)))
    errors = (((a - b).norm() / b.norm()).item() for a, b in zip(moments(state), (q.mean, q.covariance), strict=True))
    return max(errors), smallest


def test_many_single_rows_agree_with_the_batch():
    prior, block = stream_problem(1500)
    prior = SparsePrior.build(prior.kernel, prior.inducing, 1e-5, prior.approx)
    error, smallest = drift_from_batch(prior, block, check_every=37)
    assert error < 1e-6
    assert smallest > 0.0


@pytest.mark.slow
def test_a_million_single_rows_agree_with_the_batch():
    # 99 more, so that the moments compared are those carried longest since the last refresh
    error, smallest = drift_from_batch(*stream_problem(1_000_099, n_inducing=100, n_dims=8), check_every=997)
    assert error < 1e-6
    assert smallest > 0.0


def forgets_everything(n_rows, n_inducing, batch_rows):
    prior, block = stream_problem(n_rows, n_inducing, row="fitc")
    parts = [block.take(slice(i, i + batch_rows)) for i in range(0, n_rows, batch_rows)]
    state, _ = run(prior, parts)
    for part in parts:
        state = revise.forget(state, part)
    np.testing.assert_allclose(state.mean, 0.0, atol=1e-6)
    np.testing.assert_allclose(state.covariance, np.eye(n_inducing), atol=1e-6)
    assert abs(state.log_evidence) < 1e-6
    assert abs(state.statistics.n_rows) < 1e-6


@pytest.mark.parametrize(("n_rows", "batch_rows"), [(300, 1), (2000, 100)])
def test_forgetting_everything_leads_back_to_the_prior(n_rows, batch_rows):
    forgets_everything(n_rows, 20, batch_rows)


@pytest.mark.slow
def test_forgetting_a_hundred_thousand_rows_leads_back_to_the_prior():
    forgets_everything(100_000, 100, 1000)


@pytest.mark.parametrize("name", ["vfe", "fitc", "pitc", "block-pep"])
def test_forgetting_what_was_never_added_is_refused(name):
    problem = random_problem(1)
    blocks = list(problem.rows.blocks())
    state, _ = run(problem.prior(get_row(name)), blocks[:2])
    before = moments(state)
    with pytest.raises(InputError, match="must have been added before"):
        revise.forget(state, blocks[2])
    wrong_target = replace(blocks[0], y=blocks[0].y + 10.0)
    with pytest.raises(InputError, match="must have been added before"):
        revise.forget(state, wrong_target)
    agree(moments(state), before, 0.0)


@laws
@given(seed=st.integers(0, 1000), name=ROW_NAMES, k=st.integers(0, 3))
def test_forgetting_and_merging_are_the_batch_of_what_remains(seed, name, k):
    problem = with_row_noise(random_problem(seed), seed)
    prior, blocks = problem.prior(get_row(name)), list(problem.rows.blocks())
    rest = blocks[:k] + blocks[k + 1 :]
    q, evidence = batch(prior, rest)
    forgotten = revise.forget(run(prior, blocks)[0], blocks[k])
    merged = revise.merge(run(prior, rest[:1])[0], run(prior, rest[1:])[0])
    for state in (forgotten, merged):
        agree((*moments(state), state.log_evidence), (q.mean, q.covariance, evidence), 1e-7)


@laws
@given(seed=st.integers(0, 1000), name=ROW_NAMES, cut=st.integers(0, 9))
def test_a_block_can_grow_and_shrink(seed, name, cut):
    problem = random_problem(seed)
    prior, (whole, *others) = problem.prior(get_row(name)), list(problem.rows.blocks())
    part = whole.take(slice(0, cut))
    small, _ = run(prior, [*others, part])
    large, _ = run(prior, [*others, whole])
    grown, info = revise.exchange(small, part, whole)
    agree((*moments(grown), grown.log_evidence), (*moments(large), large.log_evidence), 1e-7)
    assert info.psi == pytest.approx(large.log_evidence - small.log_evidence, rel=1e-7, abs=1e-8)
    agree(moments(revise.exchange(large, whole, part)[0]), moments(small), 1e-7)


def test_decay_counts_every_row_less():
    problem = random_problem(2)
    prior = problem.prior(get_row("vfe"))
    state = revise.decay(run(prior, [problem.block])[0], 0.3)
    light = replace(problem.block, weight=torch.full_like(problem.y, 0.3))
    q, evidence = batch(prior, [light])
    agree((*moments(state), state.log_evidence), (q.mean, q.covariance, evidence))
    for factor in (0.0, 1.1, float("nan")):
        with pytest.raises(InputError, match="lies in"):
            revise.decay(state, factor)


def test_states_of_different_models_do_not_merge():
    problem = random_problem(2)
    states = [recursive.init(problem.prior(get_row(name))) for name in ("vfe", "fitc")]
    with pytest.raises(FingerprintError, match="same inducing inputs"):
        revise.merge(*states)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_not_finite_are_refused(form):
    prior, block = stream_problem(4)
    state, _ = run(prior, [block])
    bad = replace(block, y=torch.full_like(block.y, torch.nan))
    with pytest.raises(InputError, match="not finite"):
        recursive.step(state, bad, form)


@pytest.mark.parametrize("rows", [1, 10, 400])
@pytest.mark.parametrize("name", ["vfe", "fitc", "pep"])
def test_no_alarm_while_the_model_is_right(name, rows):
    """Data drawn from the model itself, a stream in which VFE leaves out a residual as large as the noise."""
    rng = np.random.default_rng(8)
    prior, block = stream_problem(2000, n_inducing=6, row=name, seed=8)
    with torch.no_grad():
        K = prior.kernel(block.X) + 0.1 * torch.eye(2000, dtype=torch.float64)
    y = torch.linalg.cholesky(K) @ torch.from_numpy(rng.standard_normal(2000))
    state, innovations = run(prior, [Block(block.X[:400], y[:400])])[0], Innovations()
    for start in range(400, 2000, rows):
        part = slice(start, start + rows)
        state, info = recursive.step(state, Block(block.X[part], y[part]))
        innovations = innovations.after(info)
        assert not innovations.drift
    assert innovations.rows == 1600


def test_alarm_soon_after_a_jump_but_not_for_one_outlier():
    prior, block = stream_problem(700)
    state, innovations = recursive.init(prior), Innovations()
    for i in range(500):
        state, info = recursive.step(state, block.take(slice(i, i + 1)))
        innovations = innovations.after(info)
    outlier = Block(block.X[:1], block.y[:1] + 100.0)
    assert not innovations.after(recursive.step(state, outlier)[1]).drift
    for i in range(500, 530):
        row = Block(block.X[i : i + 1], block.y[i : i + 1] + 1.0)
        state, info = recursive.step(state, row)
        innovations = innovations.after(info)
        if innovations.drift:
            break
    assert innovations.drift
    assert i < 520
    assert innovations.summary()["mean_square"] > 1.5


def test_nothing_seen_is_no_drift():
    assert Innovations().summary() == {"rows": 0, "mean_square": 1.0, "z": 0.0, "drift": False}

"""Learned noise from rows wherever they are: bound, gradient, ascent and fitted model as from rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import sparsegp
from problems import Problem, agree, get_row, random_problem, with_weights
from sparsegp import HeteroscedasticGPRegressor, InputError, kernels
from sparsegp.core import reasons
from sparsegp.core.block import BlockStore, MemoryRows, Rows
from sparsegp.core.local import LocalPosterior
from sparsegp.data.disk_rows import DiskRows
from sparsegp.data.rows import SourceRows
from sparsegp.fit.scaling import Scaling
from sparsegp.learn.hyperparameters import Limits
from sparsegp.learn.trace import Deadline, Terms
from sparsegp.noise import noise_learning, svshgp
from sparsegp.noise.bound import BoundState, ProfiledBound, natural_ascent
from sparsegp.noise.noise_start import noise_start
from sparsegp.noise.process import NoiseProcess
from test_rows import LabelOf, as_source
from test_vshgp import joint_hyper

pytestmark = pytest.mark.usefixtures("short_start")

NOISE = (0.02, 5.0)
BY_POINTS, BY_BLOCKS = ("vfe", "fitc", "dtc"), ("pic", "pitc", "with blocks")
Place = Callable[[Problem, str], Rows]


def from_source(problem: Problem, name: str) -> SourceRows:
    return as_source(MemoryRows(problem.block))


def from_disk(problem: Problem, name: str) -> DiskRows:
    return as_source(problem.rows).in_blocks(LabelOf.of(problem.rows), problem.rows.n_blocks)


def on_workers(client: Any, problem: Problem, name: str) -> Rows:
    from sparsegp.cluster.shares import scanned
    from sparsegp.data import open_source

    block = problem.rows.all
    weight = None if block.weight is None else block.weight.numpy()
    source = open_source(block.X.numpy(), block.y.numpy(), sample_weight=weight)
    rows = scanned(client, source, 0).load(Scaling.identity(block.X.shape[1]), torch.float64)
    return rows.in_blocks(LabelOf.of(problem.rows), problem.rows.n_blocks) if get_row(name).by_block else rows


def weighted_problem() -> Problem:
    return with_weights(random_problem(11))


def check_place(place: Place, name: str, *, weighted: bool = True) -> None:
    """The bound, its gradient, the ascent, and the model that inference ends with."""
    problem = weighted_problem() if weighted else random_problem(11)
    rows, hyper = place(problem, name), joint_hyper(problem)
    assert not isinstance(rows, MemoryRows)
    memory = problem.rows if get_row(name).by_block else MemoryRows(problem.block)
    found, expected = (ProfiledBound(of, get_row(name), NOISE, tolerance=1e-7, max_steps=6) for of in (rows, memory))
    values, gradients = [], []
    for objective in (found, expected):
        values.append(objective.value_and_gradient(hyper))
        gradients.append(hyper.gradient())
    assert values[0] == pytest.approx(values[1], rel=1e-11)
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=0.0, atol=1e-9 * np.abs(gradients[1]).max())
    ascents = [objective.ascend(hyper) for objective in (found, expected)]
    assert ascents[0].evaluations == ascents[1].evaluations
    agree((ascents[0].state.process.q.mean,), (ascents[1].state.process.q.mean,), 1e-7)
    limits = Limits(NOISE, problem.X.amin(0), problem.X.amax(0))
    models = [
        noise_learning.infer(of, get_row(name), hyper, Terms(limits, np.random.default_rng(0)), None)
        for of in (rows, memory)
    ]
    X, labels = problem.X + 0.1, problem.labels if get_row(name).is_local else None
    (f, g), (f_memory, g_memory) = (
        (model.posterior.marginals(X, labels), model.process.predict(X)) for model in models
    )
    agree((*f, *g, models[0].bound), (*f_memory, *g_memory, models[1].bound), 1e-7)
    agree((models[0].state.statistics.precision,), (models[1].state.statistics.precision,), 1e-8)


@pytest.mark.parametrize("name", BY_POINTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_source_give_what_rows_in_memory_give(name: str, weighted: bool) -> None:
    check_place(from_source, name, weighted=weighted)


@pytest.mark.parametrize("name", BY_BLOCKS)
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_on_disk_give_what_blocks_in_memory_give(name: str, weighted: bool) -> None:
    check_place(from_disk, name, weighted=weighted)


@pytest.mark.parametrize("name", ["vfe", "fitc", "pitc", "pic"])
def test_rows_on_workers_give_what_rows_in_memory_give(both: Any, name: str) -> None:
    check_place(lambda problem, of: on_workers(both, problem, of), name)


# Recorded when the bound was still computed from rows in memory alone.
RECORDED = {
    "dtc": (-19.69732511884814, 36.94210571037023, 7),
    "vfe": (-67.26026486872829, 61.99720126130693, 7),
    "fitc": (-42.227038252497685, 25.53569996525311, 6),
    "pep": (-54.32851587569576, 39.24889919996943, 6),
    "pic": (-22.337428640587525, 22.6389424280448, 12),
    "with blocks": (-18.530813237542183, 30.742723058477708, 12),
}


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_bound_is_what_it_was(name: str) -> None:
    problem, (value, size, evaluations) = weighted_problem(), RECORDED[name]
    for rows in (problem.rows, (from_disk if get_row(name).by_block else from_source)(problem, name)):
        hyper = joint_hyper(problem)
        bound = ProfiledBound(rows, get_row(name), NOISE, tolerance=1e-7, max_steps=6)
        assert bound.value_and_gradient(hyper) == pytest.approx(value, rel=1e-10)
        assert np.linalg.norm(hyper.gradient()) == pytest.approx(size, rel=1e-8)
        fresh = ProfiledBound(rows, get_row(name), NOISE, tolerance=1e-7, max_steps=6)
        assert fresh.ascend(hyper).evaluations == evaluations


def start_at(problem: Problem) -> NoiseProcess:
    return NoiseProcess.at_prior(kernels.SquaredExponential(0.8, 1.2), problem.inducing[::2], -1.5, NOISE)


def test_an_evaluation_is_one_pass_and_a_step_two() -> None:
    problem = random_problem(7)
    rows, prior = from_source(problem, "vfe"), problem.prior(get_row("vfe"))
    before = rows.passes.count
    state = BoundState.evaluate(prior, start_at(problem), rows)
    assert rows.passes.count == before + 1
    ascent = natural_ascent(prior, start_at(problem), rows, max_steps=1)
    assert rows.passes.count == before + 2 + ascent.evaluations
    hyper = joint_hyper(problem)
    ProfiledBound(rows, get_row("vfe"), NOISE, max_steps=0).value_and_gradient(hyper)
    assert rows.passes.count == before + 4 + ascent.evaluations
    with pytest.raises(InputError, match="not in memory"):
        _ = state.row_noise


def test_an_ascent_ends_with_the_step_in_which_its_time_is_up() -> None:
    problem = random_problem(7)
    rows = from_source(problem, "vfe")
    given = problem.prior(get_row("vfe")), start_at(problem), rows
    long, short = natural_ascent(*given, tolerance=1e-12), natural_ascent(*given, deadline=Deadline(0.0))
    assert short.evaluations == 2 < long.evaluations
    assert short.state.value <= long.state.value


def blocks_of(store: BlockStore) -> list[torch.Tensor]:
    return [noise for k in range(store.n_blocks) if (noise := store.block(k).noise_var) is not None]


def test_a_local_model_reads_blocks_with_their_noise() -> None:
    problem = weighted_problem()
    prior, process = problem.prior(get_row("pic")), start_at(problem)
    stores = [BoundState.evaluate(prior, process, rows).store() for rows in (from_disk(problem, "pic"), problem.rows)]
    for found, expected in zip(*map(blocks_of, stores), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)


def test_the_start_takes_the_same_blocks_from_disk() -> None:
    problem = random_problem(11)
    limits = Limits(NOISE, problem.X.amin(0), problem.X.amax(0))
    found, expected = (
        noise_start(
            rows,
            problem.kernel,
            0.1,
            kernels.SquaredExponential(1.0, [1.0, 1.0]),
            limits,
            np.random.default_rng(0),
            local=True,
        )
        for rows in (from_disk(problem, "pic"), problem.rows)
    )
    assert found.mean == pytest.approx(expected.mean, rel=1e-9)
    torch.testing.assert_close(
        torch.cat([p.detach().ravel() for p in found.kernel.parameters()]),
        torch.cat([p.detach().ravel() for p in expected.kernel.parameters()]),
        rtol=1e-5,
        atol=1e-7,
    )


def test_parts_of_rows_elsewhere_are_no_larger_than_their_sample() -> None:
    problem, parts = random_problem(11), []

    class Watched(MemoryRows):
        @property
        def sample(self) -> MemoryRows:
            return MemoryRows(self.all.take(slice(0, 10)))

        def parts(self, sizes: Any, rng: Any, *, by_block: bool) -> Any:
            parts.extend(sizes)
            return super().parts(sizes, rng, by_block=by_block)

    small = replace(noise_learning.INFERENCE, parts=replace(noise_learning.INFERENCE.parts, first_rows=4, growth=2))
    limits, hyper = Limits(NOISE, problem.X.amin(0), problem.X.amax(0)), joint_hyper(problem)
    rows = Watched(problem.block)
    noise_learning.infer(rows, get_row("vfe"), hyper, Terms(limits, np.random.default_rng(0)), None, small)
    assert parts == [4, 8]


def test_mini_batches_of_a_sample_count_for_all_rows() -> None:
    """At fixed hyper-parameters a run that visits the sample alone ends near the bound of all rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (400, 2))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(400)
    source = sparsegp.data.open_source(X, y)
    found = sparsegp.data.scan(source, np.random.default_rng(0), sample_rows=200)
    rows = SourceRows.of(source, found, Scaling.identity(2))
    problem = random_problem(4)
    limits, hyper = Limits(NOISE, torch.from_numpy(X).amin(0), torch.from_numpy(X).amax(0)), joint_hyper(problem)
    for parameter in hyper.parameters():
        parameter.requires_grad_(False)
    given = {"batch_size": 50, "n_steps": 100}
    q, result = svshgp.learn(rows, get_row("vfe"), hyper, Terms(limits, np.random.default_rng(1)), **given)
    assert result.n_rows == 400
    reached = ProfiledBound(rows, get_row("vfe"), NOISE, q=q, max_steps=0).value(hyper)
    assert reached == pytest.approx(ProfiledBound(rows, get_row("vfe"), NOISE).value(hyper), abs=0.05 * 400)


# The estimator


def wave(n: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    std = 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X[:, 1]))
    y = 5.0 + np.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1] + std * rng.standard_normal(n)
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y, "w": rng.integers(1, 4, n).astype(float)})


@pytest.fixture
def path(tmp_path: Path) -> str:
    wave().to_parquet(tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


@pytest.fixture
def little_memory(options: Any) -> Callable[[], Any]:
    """Files of more than 300 rows stay on disk from now on."""
    return lambda: options(opening={"most_entries": 2 * 300})


def settled(approximation: str) -> HeteroscedasticGPRegressor:
    """Nothing is learned but q(g_u): the steps of an optimiser enlarge the last digits of what it is given."""
    frame = wave(60)[["a", "b"]].to_numpy()
    return HeteroscedasticGPRegressor(
        kernels.SquaredExponential(1.0, [1.0, 1.0]),
        approximation,
        inducing=frame[:20],
        noise_kernel=kernels.SquaredExponential(1.0, [2.0, 2.0]),
        noise_inducing=frame[20:30],
        noise_mean=-2.0,
        optimizer=None,
        random_state=0,
        n_blocks=1,
    )


def check_same(got: HeteroscedasticGPRegressor, expected: HeteroscedasticGPRegressor) -> None:
    X = wave(50)[["a", "b"]]
    agree(got.predict_components(X), expected.predict_components(X), 1e-6)
    agree((got.log_evidence_, got.noise_var_), (expected.log_evidence_, expected.noise_var_), 1e-7)
    assert got.n_samples_seen_ == expected.n_samples_seen_ == 500


@pytest.mark.parametrize("approximation", ["vfe", "fitc", "pitc", "pic"])
def test_a_file_larger_than_memory_gives_the_model_of_its_rows(
    approximation: str, path: str, little_memory: Callable[[], Any], tmp_path: Path
) -> None:
    """With one block, so that blocks are the same whatever sample they were found from."""
    expected = settled(approximation).fit(path, target="y", sample_weight="w")
    assert "passes" not in expected.info_
    little_memory()
    got = settled(approximation).fit(path, target="y", sample_weight="w")
    assert got.info_["passes"] > 3
    check_same(got, expected)
    got.save(tmp_path / "model")
    check_same(sparsegp.load(tmp_path / "model"), expected)
    new = wave(530)[500:]
    for model in (got, expected):
        model.partial_fit(new, target="y", sample_weight="w")
    agree(got.predict_components(new[["a", "b"]]), expected.predict_components(new[["a", "b"]]), 1e-6)


@pytest.mark.parametrize("approximation", ["vfe", "fitc", "pitc", "pic"])
def test_workers_give_the_model_of_their_rows(both: Any, approximation: str, path: str) -> None:
    expected = settled(approximation).fit(path, target="y", sample_weight="w")
    got = settled(approximation).fit(path, target="y", sample_weight="w", client=both)
    assert got.info_["cluster"]["workers"] == 2
    check_same(got, expected)


@pytest.mark.parametrize(("approximation", "inference"), [("vfe", "exact"), ("pic", "exact"), ("vfe", "stochastic")])
@pytest.mark.parametrize("place", ["file", "workers"])
def test_learning_finds_the_noise_wherever_rows_are(
    approximation: str, inference: str, place: str, path: str, little_memory: Any, request: pytest.FixtureRequest
) -> None:
    where = {"client": request.getfixturevalue("both")} if place == "workers" else {}
    little_memory()
    model = HeteroscedasticGPRegressor(
        approximation=approximation,
        n_inducing=30,
        n_noise_inducing=10,
        n_blocks=5,
        inference=inference,
        n_steps=200,
        batch_size=100,
        time_budget=20.0,
        random_state=0,
    ).fit(path, target="y", sample_weight="w", **where)
    assert model.info_["budget"]["asked"] == 20.0
    assert model.info_["budget"]["reason"] == reasons.ALL_ROWS
    assert model.info_["budget"]["used"] < 60.0
    X = wave(300)[["a", "b"]]
    noise = model.predict_components(X)[2]
    std = 0.05 + 0.4 / (1.0 + np.exp(-2.0 * X["b"].to_numpy()))
    assert np.abs(np.log(noise / std)).mean() < 0.5
    expected = np.mean(noise**2)
    assert model.noise_var_ == pytest.approx(expected, rel=0.5)


def test_a_budget_that_is_over_leaves_a_model_from_all_rows(path: str, little_memory: Any, options: Any) -> None:
    """A clock that jumps: learning stops at once, inference still sees every row."""
    little_memory()
    ticks = iter(range(10**9))
    options(clock=lambda: 0.2 * next(ticks))
    model = HeteroscedasticGPRegressor(n_inducing=15, n_noise_inducing=8, time_budget=5.0, random_state=0)
    model.fit(path, target="y", sample_weight="w")
    assert model.n_samples_seen_ == 500
    assert model.info_["passes"] < 40
    assert np.isfinite(model.predict(wave(20)[["a", "b"]])).all()


def test_an_exact_f_says_that_it_needs_its_rows_in_memory(both: Any, path: str) -> None:
    with pytest.raises(InputError, match="one block of all rows"):
        HeteroscedasticGPRegressor(approximation="exact").fit(path, target="y", client=both)


def test_blocks_of_the_user_need_rows_in_memory(both: Any, path: str) -> None:
    with pytest.raises(InputError, match="blocks="):
        HeteroscedasticGPRegressor(approximation="pic").fit(path, target="y", client=both, blocks=np.zeros(500, int))


def test_predictions_of_a_local_model_do_not_need_the_workers(both: Any, path: str) -> None:
    model = settled("pic").fit(path, target="y", sample_weight="w", client=both)
    assert isinstance(model.model_.posterior, LocalPosterior)
    again = model.to_local()
    X = wave(20)[["a", "b"]]
    np.testing.assert_array_equal(again.predict(X), model.predict(X))

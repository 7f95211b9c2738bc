"""The dense oracle: 60-digit golden values first, then the limits and orderings that tie the rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegp.testing import oracle

SAME_NAME = ["SoD", "SoR", "DTC", "VFE", "FITC", "FIC", "PITC", "PIC", "PEP", "Nystrom"]
GOLDEN_ROWS = {"GP": "exact", "PEPB": "block-pep"} | {name: name.lower() for name in SAME_NAME}
JOINT_MODELS = ["GP", "SoR", "DTC", "FITC", "FIC", "PITC", "PIC", "PEP", "PEPB"]
AUGMENTED = ["ASoR", "ADTC", "AFITC", "APITC"]


def squared_distance(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return ((A[:, None, :] - B[None, :, :]) ** 2).sum(-1)


def squared_exponential(ell: Any, variance: float) -> oracle.Covariance:
    return lambda A, B: variance * np.exp(-0.5 * squared_distance(A / ell, B / ell))


def matern12(ell: float, variance: float) -> oracle.Covariance:
    return lambda A, B: variance * np.exp(-np.sqrt(squared_distance(A, B)) / ell)


def column(values: Any) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def agree(got: Any, expected: Any, rtol: float = 1e-8) -> None:
    for value, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=rtol, atol=rtol * np.abs(reference).max())


@dataclass(frozen=True)
class Problem:
    k: oracle.Covariance
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    noise_var: Any
    Xs: np.ndarray
    blocks: np.ndarray | None
    test_blocks: np.ndarray | None

    @property
    def data(self) -> tuple[Any, ...]:
        return self.k, self.X, self.y, self.Z, self.noise_var

    def evidence(self, name: str, **options: Any) -> float:
        return oracle.log_evidence(name, *self.data, self.blocks, **options)

    def predict(self, name: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        return oracle.predict(name, *self.data, self.Xs, self.blocks, self.test_blocks, **options)

    def results(self, name: str, **options: Any) -> tuple[Any, ...]:
        return np.array(self.evidence(name, **options)), *self.predict(name, **options)


def golden_problem(golden: dict[str, Any]) -> Problem:
    meta, data = golden["meta"], golden["data"]
    k, X, y = squared_exponential(meta["ell"], meta["sf2"]), column(data["X"]), np.array(data["y"])
    blocks, test_blocks = np.array(meta["block_of_train"]), np.array(meta["block_of_test"])
    return Problem(k, X, y, column(meta["U"]), meta["sn2"], column(meta["Xs"]), blocks, test_blocks)


def random_problem(seed: int, n: int = 24, m: int = 6, n_dims: int = 2) -> Problem:
    """Uneven blocks (two test points in one, one in a block without rows), per-row noise, rough kernel."""
    rng = np.random.default_rng(seed)
    X, Z, Xs = (rng.normal(size=(rows, n_dims)) for rows in (n, m, 4))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n)
    k = matern12(rng.uniform(0.6, 2.5), rng.uniform(0.4, 2.5))
    blocks = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    return Problem(k, X, y, Z, rng.uniform(0.02, 0.5, n), Xs, blocks, np.array([0, 1, 1, 7]))


def test_every_golden_model_is_covered(golden: dict[str, Any]) -> None:
    assert set(golden["models"]) == {*GOLDEN_ROWS, *AUGMENTED, "BCM", "RVM"}
    assert set(golden["joint5"]["models"]) == {*JOINT_MODELS, "PIC_arbitrary_q"}


@pytest.mark.parametrize("model", GOLDEN_ROWS)
def test_golden_objective_and_prediction(golden: dict[str, Any], model: str) -> None:
    expected, subset = golden["models"][model], np.array(golden["meta"]["SoD_indices"])
    results = golden_problem(golden).results(GOLDEN_ROWS[model], power=golden["meta"]["alpha"], subset=subset)
    agree(results, (expected["objective"], expected["mean"], expected["cov"]))


@pytest.mark.parametrize("model", [model for model in GOLDEN_ROWS if model != "Nystrom"])
def test_golden_gradient_by_central_differences(golden: dict[str, Any], model: str) -> None:
    problem, meta = golden_problem(golden), golden["meta"]

    def objective(p: np.ndarray) -> float:
        k = squared_exponential(np.exp(p[0]), np.exp(p[1]))
        moved = replace(problem, k=k, noise_var=np.exp(p[2]), Z=p[3:, None])
        return moved.evidence(GOLDEN_ROWS[model], power=meta["alpha"], subset=np.array(meta["SoD_indices"]))

    start = np.concatenate([np.log([meta["ell"], meta["sf2"], meta["sn2"]]), meta["U"]])
    agree([oracle.gradient(objective, start)], [golden["models"][model]["grad"]], rtol=1e-7)


@pytest.mark.parametrize("model", AUGMENTED)
def test_golden_augmented(golden: dict[str, Any], model: str) -> None:
    p, values = golden_problem(golden), golden["models"][model]
    expected = values["mean"], values["var"], values["objective"]
    agree(oracle.augmented(model[1:].lower(), *p.data, p.Xs, p.blocks), expected)


def test_golden_bcm_and_rvm(golden: dict[str, Any]) -> None:
    p, expected = golden_problem(golden), golden["models"]["BCM"]
    results = oracle.bcm(p.k, p.X, p.y, p.noise_var, p.Xs, p.blocks)
    agree(results, (expected["mean"], expected["cov"], expected["objective"]))
    k, expected = squared_exponential(golden["meta"]["ell"], 1.0), golden["models"]["RVM"]
    args = (p.X, p.y, p.noise_var, p.Xs, np.array(expected["alpha"]))
    mean, cov, evidence = oracle.rvm(lambda A: k(A, p.Z), *args)
    agree((mean, np.diag(cov), evidence), (expected["mean"], expected["var"], expected["objective"]))


@pytest.mark.parametrize("model", JOINT_MODELS)
def test_golden_joint_prediction(golden: dict[str, Any], model: str) -> None:
    joint, expected = golden["joint5"], golden["joint5"]["models"][model]
    test_blocks = np.array(joint["block_of_test"])
    problem = replace(golden_problem(golden), Xs=column(joint["Xs"]), test_blocks=test_blocks)
    results = problem.predict(GOLDEN_ROWS[model], power=golden["meta"]["alpha"])
    agree(results, (expected["mean"], expected["cov"]))


def test_golden_pic_with_an_arbitrary_posterior_of_u(golden: dict[str, Any]) -> None:
    p, joint = golden_problem(golden), golden["joint5"]
    expected, Xs = joint["models"]["PIC_arbitrary_q"], column(joint["Xs"])
    q = np.sin(np.arange(5) + 1), 0.3 * p.k(p.Z, p.Z) + 0.1 * np.eye(5)
    labels = p.blocks, np.array(joint["block_of_test"])
    results = oracle.predict_given_inducing("pic", *p.data, Xs, *q, *labels)
    agree(results, (expected["mean"], expected["cov"]))


@pytest.mark.parametrize("model", ["DTC", "FITC", "PITC", "combination"])
def test_golden_posterior_of_u(golden: dict[str, Any], model: str) -> None:
    p, anytime = golden_problem(golden), golden["anytime"]
    if model == "combination":
        q = anytime["combination_0.3DTC+0.7PITC"]
        weights, expected = {"dtc": 0.3, "pitc": 0.7}, (q["mu"], q["Sigma"], q["evidence"])
    else:
        q, objective = anytime[model], golden["models"][model]["objective"]
        weights, expected = {model.lower(): 1.0}, (q["mu_star"], q["Sigma_star"], objective)
    agree(oracle.combination(weights, *p.data, p.blocks), expected)


@pytest.mark.parametrize("model", ["GP", "DTC", "VFE", "FITC", "PEP", "PITC", "PEPB"])
def test_golden_two_dimensional_objective_and_gradient(golden: dict[str, Any], model: str) -> None:
    i = np.arange(20)
    X = np.column_stack([2 * np.sin(1.1 * i + 0.3), 2 * np.cos(0.7 * i + 0.5)])
    y = np.sin(X[:, 0]) + 0.5 * np.cos(X[:, 0] * X[:, 1]) + 0.1 * np.sin(7 * i)
    Z = [-1.4, -1.2, -1.0, 1.3, 0.1, 0.2, 1.2, -1.0, 1.5, 1.1]

    def objective(p: np.ndarray) -> float:
        k, blocks = squared_exponential(np.exp(p[:2]), np.exp(p[2])), (X[:, 0] >= 0).astype(int)
        args = (k, X, y, p[4:].reshape(5, 2), np.exp(p[3]), blocks)
        return oracle.log_evidence(GOLDEN_ROWS[model], *args, power=0.5)

    start, expected = np.concatenate([np.log([0.9, 1.4, 1.2, 0.05]), Z]), golden["ard2d"]["models"][model]
    agree([objective(start)], [expected["objective"]])
    agree([oracle.gradient(objective, start)], [expected["grad"]], rtol=1e-7)


@pytest.mark.parametrize(("left", "right"), [("pep", "fitc"), ("block-pep", "pitc")])
def test_power_one_is_the_plain_row(left: str, right: str) -> None:
    problem = random_problem(2)
    agree(problem.results(left, power=1.0), problem.results(right), rtol=1e-10)


@pytest.mark.parametrize("name", ["pep", "block-pep"])
def test_power_to_zero_is_vfe_and_the_error_is_of_order_power(name: str) -> None:
    p = random_problem(3)
    for power, rtol in ((1e-8, 1e-6), (0.0, 1e-12)):
        agree(p.results(name, power=power), p.results("vfe"), rtol)
    args = (name, p.k, p.X, p.Z, p.noise_var, p.blocks)
    sums = [oracle.regulariser(*args, power) for power in (0.0, 1e-5, 1e-4)]
    assert (sums[2] - sums[0]) / (sums[1] - sums[0]) == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize(("block_row", "point_row"), [("pitc", "fitc"), ("pic", "fic"), ("block-pep", "pep")])
def test_blocks_of_one_row_are_the_diagonal_row(block_row: str, point_row: str) -> None:
    problem = random_problem(5)
    singletons = replace(problem, blocks=np.arange(24), test_blocks=100 + np.arange(4))
    agree(singletons.results(block_row), problem.results(point_row), rtol=1e-10)


def test_one_block_makes_pic_exact_and_pitc_only_its_evidence() -> None:
    problem = replace(random_problem(6), blocks=np.zeros(24, int), test_blocks=np.zeros(4, int))
    exact, pic, pitc = (problem.results(name) for name in ("exact", "pic", "pitc"))
    agree(pic, exact, rtol=1e-10)
    agree(pitc[:1], exact[:1], rtol=1e-10)
    assert np.abs(pitc[1] - exact[1]).max() > 1e-3


@pytest.mark.parametrize("name", oracle.ROWS)
def test_inducing_inputs_equal_to_the_data_give_the_exact_gp(name: str) -> None:
    problem = replace(random_problem(7), Z=random_problem(7).X)
    evidence, mean, cov = problem.results(name)
    exact_evidence, exact_mean, exact_cov = problem.results("exact")
    if name == "sor":  # its degenerate prior drops D_ss
        Q_ss = oracle.nystrom_part(problem.k, problem.Xs, problem.Xs, problem.Z)
        cov = cov + problem.k(problem.Xs, problem.Xs) - Q_ss
    if name in ("fic", "pic"):  # they drop D_ss between (blocks of) test points
        cov, exact_cov = np.diag(cov), np.diag(exact_cov)
    agree((evidence, mean, cov), (exact_evidence, exact_mean, exact_cov), rtol=1e-9)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), n_dims=st.integers(1, 3))
def test_vfe_is_a_lower_bound_that_grows_with_another_inducing_input(seed: int, n_dims: int) -> None:
    problem = random_problem(seed, n_dims=n_dims)
    fewer = replace(problem, Z=problem.Z[:-1]).evidence("vfe")
    more, exact = problem.evidence("vfe"), problem.evidence("exact")
    assert fewer - 1e-7 <= more <= exact + 1e-7


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["pic", "pic", "fic", "sor", "fitc", "pitc"]))
def test_joint_priors_are_positive_semidefinite(seed: int, name: str) -> None:
    p = random_problem(seed)
    C_ff, C_fs, C_ss = oracle.effective_prior(name, p.k, p.X, p.Xs, p.Z, p.blocks, p.test_blocks)
    assert np.linalg.eigvalsh(np.block([[C_ff, C_fs], [C_fs.T, C_ss]])).min() > -1e-9 * np.trace(C_ff)


@pytest.mark.parametrize("name", ["dtc", "fitc", "pitc", "pep", "block-pep", "pic", "sor", "fic"])
def test_the_rows_own_posterior_of_u_gives_back_its_prediction(name: str) -> None:
    p = random_problem(11)
    q = oracle.combination({name: 1.0}, *p.data, p.blocks)[:2]
    got = oracle.predict_given_inducing(name, *p.data, p.Xs, *q, p.blocks, p.test_blocks)
    agree(got, p.predict(name), rtol=1e-9)


def test_pic_in_a_block_without_training_rows_predicts_as_pitc() -> None:
    pic, pitc = random_problem(12).predict("pic"), random_problem(12).predict("pitc")
    agree((pic[0][3], pic[1][3, 3]), (pitc[0][3], pitc[1][3, 3]), rtol=1e-10)
    assert np.abs(pic[0][:3] - pitc[0][:3]).min() > 1e-4


def test_augmenting_by_an_inducing_input_changes_nothing() -> None:
    p = random_problem(15)
    evidence, mean, cov = replace(p, Xs=p.Z[:2]).results("fitc")
    agree(oracle.augmented("fitc", *p.data, p.Z[:2]), (mean, np.diag(cov), np.full(2, evidence)), rtol=1e-12)


def test_subset_of_data_is_the_exact_gp_of_those_rows() -> None:
    p, rows = random_problem(9), np.array([3, 8, 11, 20])
    kept = replace(p, X=p.X[rows], y=p.y[rows], noise_var=p.noise_var[rows], blocks=None)
    agree(p.results("sod", subset=rows), kept.results("exact"), rtol=1e-12)


@pytest.mark.parametrize("name", ["exact", "dtc"])
def test_repeated_rows_are_rows_with_a_share_of_the_noise(name: str) -> None:
    p, weights = random_problem(16), np.arange(24) % 4
    X, y, blocks = oracle.repeat_rows(p.X, p.y, weights, p.blocks)
    repeated = replace(p, X=X, y=y, blocks=blocks, noise_var=np.repeat(p.noise_var, weights))
    kept = weights > 0
    shared = replace(p, X=p.X[kept], y=p.y[kept], noise_var=p.noise_var[kept] / weights[kept], blocks=None)
    agree(repeated.predict(name), shared.predict(name), rtol=1e-9)
    assert np.array_equal(blocks, np.repeat(p.blocks, weights))


def test_gradient_of_a_cubic_keeps_the_shape_of_its_parameters() -> None:
    start = np.array([[0.5, -1.0], [2.0, 0.1]])
    agree([oracle.gradient(lambda p: float((p**3).sum()), start)], [3 * start**2], rtol=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.evidence("ficc"), "unknown row 'ficc'; known: exact, sor"),
        (lambda p: replace(p, blocks=None).evidence("pitc"), "needs blocks: 24 labels"),
        (lambda p: replace(p, test_blocks=np.zeros(3)).predict("pic"), r"test_blocks: 4.*got shape \(3,\)"),
        (lambda p: p.predict("sod"), "sod needs subset"),
        (lambda p: oracle.log_gaussian(p.y[:2], np.diag([1.0, -1.0])), "eigenvalue -1"),
        (lambda p: replace(p, noise_var=0.0).evidence("dtc"), "noise_var must be positive"),
        (lambda p: oracle.augmented("pic", *p.data, p.Xs), "augmented form, got 'pic'"),
        (lambda p: oracle.combination({"dtc": 2.0}, *p.data), "sum to 1"),
        (lambda p: oracle.repeat_rows(p.X, p.y, np.full(24, 0.5)), "whole numbers"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(random_problem(1))


def test_the_oracle_shares_nothing_with_the_package() -> None:
    imported = re.findall(r"(?m)^\s*(?:from|import) (\w+)", Path(oracle.__file__).read_text())
    assert set(imported) == {"__future__", "collections", "numpy"}

"""Numbers of extreme size: a right model, or an error that says what to rescale. A file holds every digit."""

import numpy as np
import pyarrow as pa
import pytest

import sparsegp
from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, InputError, SparseGPRegressor

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=40)

MODELS = {
    "sparse": lambda: SparseGPRegressor("se", "vfe", n_inducing=8, optimizer=None, random_state=0),
    "committee": lambda: CommitteeGPRegressor(
        "se", expert="fitc", n_inducing=8, n_experts=3, optimizer=None, random_state=0
    ),
    "noise": lambda: HeteroscedasticGPRegressor("se", n_inducing=8, optimizer=None, random_state=0),
}


@pytest.mark.parametrize("size", [1e-320, 1e-170, 1e154, 1e200, 1e300])
@pytest.mark.parametrize("name", MODELS)
def test_targets_whose_squares_are_no_numbers_are_refused(name, size):
    with pytest.raises(InputError, match="another unit"):
        MODELS[name]().fit(X, y * size)


def test_one_target_far_from_all_others_is_enough():
    with pytest.raises(InputError, match="far from all others"):
        MODELS["sparse"]().fit(X, np.append(y[:-1], 1e200))


@pytest.mark.parametrize("size", [1e-130, 1e130])
@pytest.mark.parametrize("name", MODELS)
def test_the_unit_of_the_target_makes_no_difference(name, size):
    model, other = MODELS[name]().fit(X, y), MODELS[name]().fit(X, y * size)
    mean, std = model.predict(X, return_std=True)
    other_mean, other_std = other.predict(X, return_std=True)
    np.testing.assert_allclose(other_mean / size, mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other_std / size, std, rtol=1e-6)
    assert np.isfinite(other.log_density(X, y * size)).all()


@pytest.mark.parametrize("weight", [1e-300, 1e-30, 1e30, 1e300])
def test_weights_that_leave_no_digits_for_other_rows_are_refused(weight):
    weights = np.ones(40)
    weights[7] = weight
    with pytest.raises(InputError, match=r"between 1e-12 and 1e\+12; row 7"):
        MODELS["sparse"]().fit(X, y, sample_weight=weights)
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "y": y, "w": weights})
    with pytest.raises(InputError, match=r"row 7: the weight is .* between 1e-12 and 1e\+12"):
        MODELS["sparse"]().fit(table, target="y", sample_weight="w")
    model = MODELS["sparse"]().fit(X, y)
    with pytest.raises(InputError, match="sample_weight must be 0, or between"):
        model.partial_fit(X, y, sample_weight=weights)


@pytest.mark.parametrize("weight", [1e-12, 1e12])
@pytest.mark.parametrize("name", MODELS)
def test_a_file_holds_every_digit(name, weight, tmp_path):
    model = MODELS[name]().fit(X, 3.7 * y, sample_weight=np.full(40, weight))
    model.save(tmp_path / "model.sgp")
    loaded = sparsegp.load(tmp_path / "model.sgp")
    assert loaded.noise_var_ == model.noise_var_
    assert loaded.model_.noise_var == model.model_.noise_var
    for got, expected in zip(loaded.predict(X, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kernel", ["se", "matern12", "matern32", "matern52", "rq"])
def test_rows_at_any_distance_have_the_prior(kernel, tmp_path):
    """Squares of distances would overflow, and a polynomial times exp would be NaN."""
    X = np.linspace(-1.0, 1.0, 30)[:, None] * 1e-200
    model = SparseGPRegressor(kernel, "vfe", n_inducing=6, optimizer=None, normalize=False, trend=None)
    model.fit(X, np.sin(X[:, 0] * 3e200))
    model.save(tmp_path / "model.sgp")
    for one in (model, sparsegp.load(tmp_path / "model.sgp"), sparsegp.serving.load(tmp_path / "model.sgp")):
        mean, std = one.predict(np.array([[1.0], [-1e300], [1e-200]]), return_std=True)
        assert np.isfinite([mean, std]).all()
        if kernel != "rq":  # whose tails are long
            assert mean[:2] == pytest.approx([0.0, 0.0], abs=1e-9)


LINE = np.linspace(-1.0, 1.0, 30)[:, None]


@pytest.mark.parametrize(
    ("inputs", "targets", "asked"),
    [
        (LINE, LINE * 1e200, "The targets are as large as .* Divide them by one number"),
        (LINE, LINE * 1e-153, "The targets are all below .* Multiply them by one number"),
        (LINE * 1.7e308, LINE, "column 0 of the inputs .* Divide them"),
        (np.column_stack([LINE, LINE * 1e-305]), LINE, "column 1 of the inputs .* Multiply them"),
    ],
)
def test_numbers_that_nobody_standardises_are_refused_by_their_size(inputs, targets, asked):
    model = SparseGPRegressor("se", "vfe", n_inducing=5, normalize=False, time_budget=0.2)
    with pytest.raises(InputError, match=asked):
        model.fit(inputs, targets[:, 0])


def test_columns_whose_mean_overflows_are_refused():
    inputs = np.column_stack([LINE, np.full(30, 1.7e308)])
    with pytest.raises(InputError, match=r"Column 1 of the inputs .* sum overflows"):
        SparseGPRegressor("se", "pic", n_inducing=5, optimizer=None).fit(inputs, LINE[:, 0])


def test_blocks_of_columns_in_units_that_are_too_far_apart_are_refused():
    inputs = np.column_stack([LINE * 1e-200, np.full(30, 1e130)])
    with pytest.raises(InputError, match="quotient overflows"):
        SparseGPRegressor("se", "pic", n_inducing=5, n_blocks=3, optimizer=None, normalize=False).fit(
            inputs, LINE[:, 0]
        )


@pytest.mark.parametrize("name", ["exact", "vfe", "pic"])
@pytest.mark.parametrize(("size", "noise"), [(1.0, 1e-310), (1.0, 1e-320), (1e130, 1e-100)])
def test_noise_without_a_logarithm_is_refused(name, size, noise):
    """It was a math domain error."""
    with pytest.raises(InputError, match=r"below 1e-290 of the variance of the targets.*Give a larger one"):
        SparseGPRegressor("se", name, n_inducing=5, noise_var=noise, optimizer=None).fit(X, y * size)


@pytest.mark.parametrize(("size", "noise"), [(1e60, 1e-140), (1e130, 1e-5), (1e130, 1e-140)])
def test_nystrom_refuses_noise_that_leaves_no_digits(size, noise):
    """It was accepted, and predicted infinity; or the message was about normalize=."""
    model = SparseGPRegressor("se", "nystrom", n_inducing=5, optimizer=None, random_state=0)
    with pytest.raises(InputError, match=r"that of row [03] is only .* Give a larger noise variance"):
        model.fit(X, y * size, noise_var=np.where(np.arange(40) == 3, 0.5 * noise, noise))


@pytest.mark.parametrize("weights", [None, np.full(40, 1e12)])
def test_nystrom_with_the_least_noise_that_is_accepted_predicts_numbers(weights):
    noise = 1e-31 if weights is None else 1e-19
    model = SparseGPRegressor("se", "nystrom", n_inducing=5, optimizer=None, random_state=0, clip_variances=True)
    model.fit(X, y * 1e130, noise_var=np.full(40, noise * 1e260), sample_weight=weights)
    assert np.isfinite(model.predict(X, return_std=True)).all()

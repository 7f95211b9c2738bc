"""Masked values are refused, and rows of different unseen blocks do not go together."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from sparsegp import InputError, SparseGPRegressor

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 2))
y = np.sin(X[:, 0])
MASKED_X, MASKED_Y = np.ma.array(X, copy=True), np.ma.array(y, copy=True)
MASKED_X[3, 0] = np.ma.masked
MASKED_Y[2] = np.ma.masked


def model():
    return SparseGPRegressor("se", "vfe", n_inducing=5, optimizer=None, random_state=0)


def test_masked_values_are_refused_wherever_they_come():
    fitted = model().fit(X, y)
    for call in (
        lambda: model().fit(MASKED_X, y),
        lambda: model().fit(X, MASKED_Y),
        lambda: model().fit(X, y, sample_weight=np.ma.abs(MASKED_Y)),
        lambda: model().fit([(MASKED_X, y)]),
        lambda: fitted.partial_fit(MASKED_X, y),
        lambda: fitted.partial_fit(X, MASKED_Y),
        lambda: fitted.predict(MASKED_X),
    ):
        with pytest.raises(InputError, match="masked"):
            call()
    np.testing.assert_array_equal(model().fit(np.ma.array(X), np.ma.array(y)).predict(X), fitted.predict(X))


def test_rows_of_different_unseen_blocks_are_independent_given_the_inducing_values():
    gp = SparseGPRegressor("se", "pic", n_inducing=4, optimizer=None, noise_var=0.01)
    gp.fit(X, y, blocks=np.repeat([0, 1, 2, 3], 10))
    at = X[:3] * 0.3
    apart, together = (gp.predict(at, return_cov=True, latent=True, blocks=labels) for labels in ([7, 8, 9], [7, 7, 7]))
    np.testing.assert_allclose(apart[0], together[0], rtol=1e-12)
    np.testing.assert_allclose(np.diag(apart[1]), np.diag(together[1]), rtol=1e-10)
    prior = gp.model_.posterior.prior
    residual = together[1] - apart[1]
    inputs = gp.scaling_.tensor(at)
    expected = prior.residual_block(inputs, prior.features(inputs)).detach().numpy() * gp.scaling_.y_scale**2
    np.fill_diagonal(expected, 0.0)
    np.testing.assert_allclose(residual, expected, atol=1e-10)
    assert np.abs(expected).max() > 1e-3


STRANGE = {
    "sparse": (lambda X: scipy.sparse.csr_matrix(X), r"(?s)Sparse data.*toarray.*8 bytes"),
    "mixed names": (lambda X: pd.DataFrame(X, columns=["a", 7]), r"(?s)string names.*to_numpy"),
    "no columns": (lambda X: pd.DataFrame(index=range(len(X))), "no columns for the inputs: give one"),
    "same names": (lambda X: pd.DataFrame(X, columns=["a", "a"]), r"(?s)unique column names.*Rename"),
    "complex": (lambda X: X + 1j, r"(?s)Complex data.*real numbers"),
    "three axes": (lambda X: X[None], "dim 3"),
}


def test_a_missing_target_among_objects_is_named():
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = X[:, 0].astype(object)
    y[3] = float("nan")
    with pytest.raises(InputError, match=r"Input contains NaN.*leave its row out"):
        SparseGPRegressor("se", "vfe", n_inducing=4, optimizer=None).fit(X, y)


@pytest.mark.parametrize("name", STRANGE)
def test_what_scikit_learn_refuses_is_an_error_of_ours_with_a_hint(name):
    change, said = STRANGE[name]
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = SparseGPRegressor("se", "vfe", n_inducing=4, optimizer=None)
    with pytest.raises(InputError, match=said):
        model.fit(change(X), X[:, 0])
    model.fit(X, X[:, 0])
    if name not in ("mixed names", "same names"):
        with pytest.raises(InputError):
            model.predict(change(X))

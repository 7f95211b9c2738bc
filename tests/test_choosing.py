"""approximation="auto" and n_inducing="auto"."""

import numpy as np
import pytest

from sparsegp import InputError, SparseGPRegressor, load
from sparsegp.cli import options
from sparsegp.estimators import choosing


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(choosing, "EXACT_ROWS", 50)
    monkeypatch.setattr(choosing, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(choosing, "TRIAL_ROWS", 300)


def waves(n=400, columns=1):
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 10, (n, columns))
    return X, np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def test_few_rows_are_fitted_exactly():
    X, y = waves(60)
    model = SparseGPRegressor(approximation="auto", random_state=0).fit(X, y)
    exact = SparseGPRegressor(approximation="exact", random_state=0).fit(X, y)
    assert model.info_["choice"]["approximation"] == "exact"
    assert "60 rows" in model.info_["choice"]["reason"]
    np.testing.assert_allclose(model.predict(X), exact.predict(X), rtol=1e-10)


@pytest.mark.usefixtures("quick")
def test_the_best_of_the_held_out_densities_is_taken():
    X, y = waves()
    model = SparseGPRegressor(approximation="auto", n_inducing=15, random_state=0).fit(X, y)
    choice = model.info_["choice"]
    assert [trial["approximation"] for trial in choice["trials"]] == list(choosing.CANDIDATES)
    best = min(choice["trials"], key=lambda trial: trial["nlpd"])
    assert choice["approximation"] == best["approximation"]
    assert best["approximation"] in choice["reason"]
    chosen = SparseGPRegressor(approximation=best["approximation"], n_inducing=15, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), chosen.predict(X), rtol=1e-9)
    assert model.approximation == "auto"


@pytest.mark.usefixtures("quick")
def test_a_chosen_model_is_saved_updated_and_predicts_by_name(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = waves(200, columns=2)
    frame = pandas.DataFrame(X, columns=["a", "b"])
    model = SparseGPRegressor(approximation="auto", n_inducing=10, random_state=0).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    model.save(tmp_path / "model.sgp")
    np.testing.assert_allclose(load(tmp_path / "model.sgp").predict(frame), model.predict(frame), rtol=1e-12)
    model.partial_fit(frame[:20] + 0.01, y[:20])
    assert model.n_samples_seen_ == 220


def test_the_number_of_inducing_inputs_follows_rows_and_budget():
    assert choosing._n_inducing(100, None) == 32
    assert choosing._n_inducing(2000, None) == 250
    assert choosing._n_inducing(10**6, None) == 512
    assert 32 <= choosing._n_inducing(10**6, 5.0) < choosing._n_inducing(10**6, 60.0) <= 512


def test_only_the_number_of_inducing_inputs_is_chosen_when_the_row_is_named():
    X, y = waves(200)
    model = SparseGPRegressor(n_inducing="auto", random_state=0).fit(X, y)
    assert len(model.inducing_) == 32
    assert model.info_["choice"]["trials"] == ()
    assert "32 inducing inputs" in model.info_["choice"]["reason"]


def test_labels_of_blocks_need_a_named_approximation():
    X, y = waves(60)
    with pytest.raises(InputError, match="not with 'auto'"):
        SparseGPRegressor(approximation="auto").fit(X, y, blocks=np.zeros(60, int))


@pytest.mark.usefixtures("quick")
def test_a_budget_covers_the_trials_too():
    X, y = waves()
    model = SparseGPRegressor(approximation="auto", n_inducing="auto", time_budget=4.0, random_state=0).fit(X, y)
    spent = sum(trial["seconds"] for trial in model.info_["choice"]["trials"])
    assert model.info_["budget"]["asked"] <= 4.0
    assert model.info_["seconds"] >= spent


def test_the_command_line_takes_auto_or_a_number():
    typer = pytest.importorskip("typer")
    assert options.count_or_auto("auto") == "auto"
    assert options.count_or_auto("64") == 64
    with pytest.raises(typer.BadParameter, match="whole number or 'auto'; got 'many'"):
        options.count_or_auto("many")

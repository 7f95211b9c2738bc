"""Saved models come back as they were; files that are not whole, not ours or not honest are refused."""

import json
import os
import pickle
import re
import stat
import struct
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import sparsegp
from problems import KERNELS
from sparsegp import (
    CommitteeGPRegressor,
    HeteroscedasticGPRegressor,
    InputError,
    ModelFileError,
    SparseGPRegressor,
    files,
    kernels,
)
from sparsegp.files import container, kernel_records, schema, typed_json

FIXTURES = Path(__file__).parents[1] / "fixtures"
rng = np.random.default_rng(3)
X = rng.uniform(-3.0, 3.0, (90, 2))
y = 4.0 + 2.0 * np.sin(2.0 * X[:, 0]) + 0.6 * X[:, 1] + 0.2 * rng.standard_normal(90)
X_test = rng.uniform(-3.5, 3.5, (12, 2))
XL = rng.uniform(-3.0, 3.0, (450, 2))
yL = np.sin(2.0 * XL[:, 0]) + 0.2 * rng.standard_normal(450)
FIXED = {"optimizer": None, "random_state": 0, "n_inducing": 12}
WIDE = {**FIXED, "n_inducing": 140}
KERNEL = kernels.Matern52(1.7, [0.9, 1.6]) + kernels.Linear(0.2, active_dims=[1])


def sparse(approximation, **options):
    return SparseGPRegressor(KERNEL, approximation, noise_var=0.04, clip_variances=True, **{**FIXED, **options})


MODELS = {
    **{name: lambda name=name: sparse(name).fit(X, y) for name in ("exact", "sod", "sor", "fic", "vfe", "nystrom")},
    **{name: lambda name=name: sparse(name, n_blocks=5).fit(X, y) for name in ("pitc", "pic", "block-pep")},
    "combination": lambda: sparse({"dtc": 0.3, "fitc": 0.7}).fit(X, y),
    "float32": lambda: sparse("fitc", dtype="float32").fit(X, y),
    "known noise": lambda: sparse("vfe").fit(X, y, noise_var=np.linspace(0.01, 0.2, 90)),
    "exact, weights": lambda: sparse("exact").fit(X, y, sample_weight=np.arange(90) % 3),
    "nystrom, weights": lambda: sparse("nystrom").fit(X, y, sample_weight=1.0 + np.arange(90) % 3),
    "pic, labels": lambda: sparse("pic").fit(X, y, blocks=10 * (np.arange(90) % 4)),
    "streamed": lambda: sparse("vfe").fit(X[:50], y[:50]).partial_fit(X[50:], y[50:]),
    "window": lambda: sparse("fitc", window=60).fit(X[:70], y[:70]).partial_fit(X[70:], y[70:]),
    "pic, streamed": lambda: sparse("pic", n_blocks=4).fit(X[:70], y[:70]).partial_fit(X[70:], y[70:]),
    "learned": lambda: SparseGPRegressor(approximation="vfe", n_inducing=9, random_state=1).fit(X, y),
    "noise": lambda: HeteroscedasticGPRegressor(n_noise_inducing=6, **FIXED).fit(X, y),
    "noise, exact": lambda: HeteroscedasticGPRegressor(approximation="exact", n_noise_inducing=6, **FIXED).fit(X, y),
    "committee": lambda: CommitteeGPRegressor(n_experts=3, **FIXED).fit(X, y),
    "committee, pic": lambda: CommitteeGPRegressor(expert="pic", n_experts=2, **FIXED).fit(X, y),
    "committee, noise": lambda: CommitteeGPRegressor(expert="vshgp", n_noise_inducing=5, **FIXED).fit(X, y),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.sgp"


@pytest.fixture(scope="module")
def vfe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "vfe.sgp"
    MODELS["vfe"]().save(path)
    return path


def close(got, expected, rtol=1e-9):
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_is_the_saved_one(name, path):
    model = MODELS[name]()
    model.save(path)
    loaded = sparsegp.load(path)
    rtol = 1e-5 if name == "float32" else 1e-9
    for got, expected in zip(
        (*loaded.predict(X_test, return_std=True), loaded.predict(X_test, return_cov=True, latent=True)[1]),
        (*model.predict(X_test, return_std=True), model.predict(X_test, return_cov=True, latent=True)[1]),
        strict=True,
    ):
        close(got, expected, rtol)
    close(loaded.log_density(X, y), model.log_density(X, y), rtol)
    close(loaded.log_evidence_, model.log_evidence_)
    assert repr(loaded.kernel_) == repr(model.kernel_)
    assert loaded.noise_var_ == model.noise_var_
    assert loaded.n_samples_seen_ == model.n_samples_seen_
    assert loaded.info_ == model.info_
    chosen = {key: value for key, value in model.get_params().items() if key != "kernel"}
    assert {key: value for key, value in loaded.get_params().items() if key != "kernel"} == chosen


@pytest.mark.parametrize("name", ["vfe", "pitc", "pic", "pic, labels", "streamed", "window", "known noise"])
def test_a_loaded_model_takes_updates_as_the_saved_one_would(name, path):
    model = MODELS[name]()
    model.save(path)
    loaded = sparsegp.load(path)
    more = X[:20] + 0.1, y[:20] - 0.2
    extras = {"known noise": {"noise_var": np.full(20, 0.05)}, "pic, labels": {"blocks": np.full(20, 10)}}
    given = extras.get(name, {})
    for one in (model, loaded):
        one.partial_fit(*more, **given)
        if name != "window":
            one.forget(*more, **given)
            one.partial_fit(more[0] + 0.05, more[1], **given)
    close(loaded.predict(X_test), model.predict(X_test))
    close(loaded.log_evidence_, model.log_evidence_)


def test_saving_what_was_loaded_changes_nothing(path, vfe_file):
    sparsegp.load(vfe_file).save(path)
    first, second = sparsegp.load(vfe_file), sparsegp.load(path)
    np.testing.assert_array_equal(first.predict(X_test), second.predict(X_test))
    assert path.stat().st_size == vfe_file.stat().st_size


def test_column_names_and_scikit_learn_kernels_survive(path):
    import pandas as pd

    frame = pd.DataFrame(X, columns=["north", "east"])
    model = SparseGPRegressor(
        RBF(0.8) + WhiteKernel(0.1), approximation="vfe", random_state=np.random.RandomState(0), n_inducing=10
    )
    model.set_params(inducing=X[:10].tolist(), optimizer=None).fit(frame, y)
    model.save(path)
    loaded = sparsegp.load(path)
    assert list(loaded.feature_names_in_) == ["north", "east"]
    close(loaded.predict(frame[:9]), model.predict(frame[:9]))
    with pytest.raises(ValueError, match="column 'east' of the fit is not a column"):
        loaded.predict(frame.rename(columns={"east": "west"}))


def test_no_training_rows_unless_predictions_need_them(path):
    """The files of two models that differ in their number of rows alone have the same size."""

    def size(approximation, n):
        sparse(approximation, inducing=X[:12], n_blocks=3).fit(X[:n], y[:n]).save(path)
        return path.stat().st_size

    for approximation in ("vfe", "fitc", "pitc"):
        assert abs(size(approximation, 90) - size(approximation, 60)) < 64
    for approximation in ("exact", "pic"):
        assert size(approximation, 90) - size(approximation, 60) > 30 * 3 * 8


def test_512_inducing_inputs_take_less_than_5_megabytes(path):
    inputs = np.random.default_rng(0).uniform(-3, 3, (600, 8))
    model = SparseGPRegressor(approximation="vfe", optimizer=None, inducing="random", random_state=0)
    model.fit(inputs, inputs[:, 0]).save(path)
    assert path.stat().st_size < 5e6


@settings(deadline=None, max_examples=15)
@given(name=st.sampled_from(sorted(KERNELS)), seed=st.integers(0, 1000), scale=st.floats(0.1, 10.0))
def test_kernels_come_back_bit_by_bit(name, seed, scale):
    part = KERNELS[name](np.random.default_rng(seed), 2)
    kernel = (part + part) * kernels.Constant(scale) ** 2
    kernel = kernel.rescaled(torch.tensor([0.3, -1.0]), torch.tensor([scale, 2.0]), 1.5)
    description, arrays = typed_json.to_json(kernel_records.describe(kernel))
    record = typed_json.from_json(schema.Kernel, json.loads(json.dumps(description)), arrays)
    back = kernel_records.restore(record, {})
    inputs = torch.from_numpy(X[:7])
    assert torch.equal(back(inputs), kernel(inputs))
    assert repr(back) == repr(kernel)
    assert len(list(back.parameters())) == len(list(kernel.parameters()))  # what was shared is shared


class Bump(kernels.Kernel):
    def __init__(self, width, exponent):
        super().__init__()
        self.log_width = torch.nn.Parameter(torch.tensor(width, dtype=torch.float64).log())
        self.exponent = exponent

    def forward(self, A, B):
        return torch.exp(-((A[:, None] - B[None]).abs() / self.log_width.exp()).sum(2)) * self.exponent


def test_a_kernel_of_the_user_is_loaded_with_the_class_the_user_gives(path):
    model = SparseGPRegressor(Bump(1.3, 2) + kernels.Constant(0.5), "vfe", noise_var=0.1, **FIXED).fit(X, y)
    model.save(path)
    with pytest.raises(ModelFileError, match=r"kernels=\{'Bump': Bump\}"):
        sparsegp.load(path)
    with pytest.raises(ModelFileError, match="derived from"):
        sparsegp.load(path, kernels={"Bump": dict})
    close(sparsegp.load(path, kernels={"Bump": Bump}).predict(X_test), model.predict(X_test))


def test_a_kernel_that_holds_code_cannot_be_saved(path):
    kernel = Bump(1.3, 2)
    kernel.helper = np.sin
    model = SparseGPRegressor(kernel, "vfe", noise_var=0.1, **FIXED).fit(X, y)
    with pytest.raises(ModelFileError, match="cannot hold"):
        model.save(path)
    assert not path.exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, vfe_file, monkeypatch):
    path.write_bytes(vfe_file.read_bytes())

    def full_disk(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        MODELS["exact"]().save(path)
    assert path.read_bytes() == vfe_file.read_bytes()
    assert list(path.parent.iterdir()) == [path]


def test_saving_says_what_is_wrong_with_the_path(tmp_path):
    model = MODELS["vfe"]()
    with pytest.raises(ModelFileError, match="does not exist"):
        model.save(tmp_path / "nowhere" / "model.sgp")
    with pytest.raises(ModelFileError, match="is a folder"):
        model.save(tmp_path)


def test_every_truncation_is_noticed(path, vfe_file):
    whole = vfe_file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            sparsegp.load(path)


@settings(deadline=None, max_examples=25)
@given(place=st.floats(0.0, 1.0, exclude_max=True), flip=st.integers(1, 255))
def test_every_altered_byte_is_noticed(vfe_file, tmp_path_factory, place, flip):
    whole = bytearray(vfe_file.read_bytes())
    whole[int(place * len(whole))] ^= flip
    path = tmp_path_factory.getbasetemp() / "altered.sgp"
    path.write_bytes(whole)
    with pytest.raises(ModelFileError):
        sparsegp.load(path)


def test_other_files_are_refused(path, tmp_path):

    with pytest.raises(ModelFileError, match="no model file"):
        sparsegp.load(tmp_path / "missing.sgp")
    path.write_text("a,b,y\n1,2,3\n" * 20)
    with pytest.raises(ModelFileError, match="cannot be read"):
        sparsegp.load(path)
    save_file({"weights": torch.zeros(3)}, path)
    with pytest.raises(ModelFileError, match="not one of a sparsegp model"):
        sparsegp.load(path)
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(ModelFileError):
        sparsegp.load(path)


def hostile(change):
    """A description and arrays that were changed and given a checksum that fits."""

    def apply(vfe_file, path):
        description, arrays = container.read(vfe_file)
        change(description, arrays)
        container.write(path, description, arrays)

    return apply


def nested(depth):
    form = []
    for _ in range(depth):
        form = [form]
    return form


HOSTILE = {
    "newer schema": lambda d, a: d.update(schema_version=99),
    "no schema": lambda d, a: d.update(schema_version="one"),
    "unknown estimator": lambda d, a: d.update(kind="os.system"),
    "unknown parameter": lambda d, a: d["parameters"].update(command="rm"),
    "unknown part": lambda d, a: d.update(predict=3),
    "unknown field": lambda d, a: d["scaling"].update(__class__="x"),
    "unknown tag": lambda d, a: d["info"].update(note={"$pickle": "gASV"}),
    "wrong type": lambda d, a: d["scaling"].update(target_scale="1"),
    "wrong kind of array": lambda d, a: a.update({"posterior.inducing.mean": np.arange(12)}),
    "wrong word": lambda d, a: d["posterior"]["approximation"].update(new_rows="anything"),
    "kernel method": lambda d, a: d["kernel"]["nodes"][0].update(forward=1),
    "kernel in circles": lambda d, a: d["kernel"]["nodes"][-1].update(parts=[0, len(d["kernel"]["nodes"]) - 1]),
    "kernel of nothing": lambda d, a: d["kernel"].update(nodes=[]),
    "kernel without values": lambda d, a: d["kernel"]["nodes"][0].pop("log_variance"),
    "missing field": lambda d, a: d["scaling"].pop("input_mean"),
    "missing part": lambda d, a: d.pop("posterior"),
    "missing array": lambda d, a: a.pop("posterior.inducing.mean"),
    "another kind": lambda d, a: d.update(kind="committee"),
    "shapes": lambda d, a: a.update({name: value[:-1] for name, value in a.items() if value.ndim == 1}),
    "fewer columns": lambda d, a: d["columns"].update(count=1),
    "nested without end": lambda d, a: d["info"].update(note=nested(900)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_give_a_clear_error(name, path, vfe_file):
    hostile(HOSTILE[name])(vfe_file, path)
    with pytest.raises(ModelFileError, match=r"cannot be used|schema"):
        sparsegp.load(path)


def test_values_that_are_not_finite_are_neither_written_nor_read(path, vfe_file):
    description, arrays = container.read(vfe_file)
    arrays["posterior.inducing.mean"] = np.full(12, np.nan)
    with pytest.raises(ModelFileError, match="not finite"):
        container.write(path, description, arrays)
    assert not path.exists()


def test_a_file_whose_std_is_no_number_is_refused(path, vfe_file):
    description, arrays = container.read(vfe_file)
    description["mean_noise_var"], description["scaling"]["target_scale"] = 1e308, 1e10
    container.write(path, description, arrays)
    with pytest.raises(ModelFileError, match="variance"):
        sparsegp.load(path)


FORGED = {
    "negative noise": lambda d, a: d.update(noise_var=-5.0, mean_noise_var=-5.0),
    "infinite noise": lambda d, a: d.update(mean_noise_var={"$number": "inf"}),
    "no scale": lambda d, a: d["scaling"].update(target_scale=0.0),
    "negative scale": lambda d, a: d["scaling"].update(target_scale=-1.0),
    "a mean that is no number": lambda d, a: d["scaling"].update(target_mean={"$number": "nan"}),
    "columns without scale": lambda d, a: a.update({"scaling.input_scale": np.zeros(2)}),
    "singular precision": lambda d, a: a.update(zeroed(a, "posterior.inducing.precision_cholesky")),
    "singular prior": lambda d, a: a.update(zeroed(a, "posterior.inducing.prior_cholesky")),
    "endless variance": lambda d, a: a.update(
        {name: np.full_like(value, 1e5) for name, value in a.items() if name.endswith("log_variance")}
    ),
    "negative power": lambda d, a: d["posterior"]["approximation"]["components"][0].update(power=-3.0),
    "negative count": lambda d, a: d["statistics"].update(n_rows=-1.0),
    "overflow": lambda d, a: a.update({"posterior.inducing.mean": np.full(12, 1e308)}),
    "a digest of another size": lambda d, a: a.update({"row_digest": np.zeros(7, np.uint8)}),
}


def zeroed(arrays, name):
    """The triangle with a zero in the middle of its diagonal."""
    triangle = arrays[name].copy()
    triangle[5 * 6 // 2 - 1] = 0.0
    return {name: triangle}


@pytest.mark.parametrize("name", FORGED)
def test_values_that_no_fitted_model_has_are_refused(name, path, vfe_file):
    hostile(FORGED[name])(vfe_file, path)
    with pytest.raises(ModelFileError, match="cannot be used"):
        sparsegp.load(path)
    if name not in ("negative count", "negative power", "a digest of another size"):  # of no use for predictions
        with pytest.raises(ModelFileError, match="cannot be used"):
            sparsegp.serving.load(path)


def test_json_has_no_constants_beyond_json(path, vfe_file):
    description, arrays = container.read(vfe_file)
    text = json.dumps(description).replace('"rows_seen": 90', '"rows_seen": NaN')
    header = {"format": container.FORMAT, "description": text, "checksum": container.checksum(text, arrays)}
    save_file({name: torch.from_numpy(value) for name, value in arrays.items()}, path, metadata=header)
    with pytest.raises(ModelFileError, match="not JSON"):
        sparsegp.load(path)


def test_what_could_not_be_loaded_is_not_saved(path, vfe_file):
    model = sparsegp.load(vfe_file)
    before = vfe_file.read_bytes()
    model.fitted_ = replace(model.fitted_, n_samples=-3)
    with pytest.raises(ModelFileError, match=r"rows_seen .*expected not negative.*was not written"):
        model.save(vfe_file)
    assert vfe_file.read_bytes() == before


def test_a_prediction_that_is_no_number_is_an_error(vfe_file):
    for model in (sparsegp.load(vfe_file), sparsegp.serving.load(vfe_file)):
        with pytest.raises(InputError, match="not a finite number"):
            model.predict(np.array([[0.0, 1e308]]), return_std=True)  # its kernel has a linear part


def test_loading_runs_no_pickle(vfe_file, monkeypatch):
    def refuse(*given, **options):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler", "dumps", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for path in (vfe_file, FIXTURES / "model_v1_committee.sgp"):
        sparsegp.load(path).save(vfe_file.with_name("again.sgp"))


def test_a_file_keeps_its_permissions_and_a_new_one_gets_the_usual_ones(path, vfe_file):
    usual = path.with_name("usual")
    usual.touch()
    sparsegp.load(vfe_file).save(path)
    assert path.stat().st_mode == usual.stat().st_mode
    path.chmod(0o640)
    sparsegp.load(vfe_file).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


SAVED = ("vfe", "pic", "heteroscedastic", "committee", "exact", "nystrom", "window", "noise_committee")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", SAVED)
def test_files_of_every_version_are_read(name, version, path):
    expected = json.loads((FIXTURES / f"model_v{version}.json").read_text())
    loaded = sparsegp.load(FIXTURES / f"model_v{version}_{name}.sgp")
    for model in (loaded, saved_again(loaded, path)):
        mean, std = model.predict(np.array(expected["X"]), return_std=True)
        close(mean, np.array(expected[name]["mean"]))
        close(std, np.array(expected[name]["std"]))
    if name in ("vfe", "pic", "heteroscedastic", "window"):
        n = loaded.n_samples_seen_
        loaded.partial_fit(X, y)
        assert loaded.n_samples_seen_ == (30 if name == "window" else n + 90)
    if name == "vfe":
        assert files.batch_ids(loaded) == ("first", "second")


def saved_again(model, path):
    model.save(path)
    return sparsegp.load(path)


HOSTILE_V1 = {
    "unknown estimator": lambda d, a: d.update(estimator="os.system"),
    "unknown parameter": lambda d, a: d["parameters"].update(command="rm"),
    "unknown type": lambda d, a: d["state"].update(_fitted={"$record": "Popen", "values": {}, "id": 0}),
    "unknown tag": lambda d, a: d["state"].update(_row={"$pickle": "gASV"}),
    "wrong type": lambda d, a: d["state"]["_standardizer"]["values"].update(y_scale="1"),
    "missing field": lambda d, a: d["state"]["_standardizer"]["values"].pop("x_mean"),
    "missing state": lambda d, a: d["state"].pop("_fitted"),
    "missing array": lambda d, a: a.pop("t0"),
    "shapes": lambda d, a: a.update({name: value[:-1] for name, value in a.items() if value.ndim == 1}),
    "nested without end": lambda d, a: d["state"]["info_"]["$dict"].append(["note", {"$list": [nested(900)]}]),
}


@pytest.mark.parametrize("name", HOSTILE_V1)
def test_hostile_files_of_version_1_give_a_clear_error(name, path):
    hostile(HOSTILE_V1[name])(FIXTURES / "model_v1_vfe.sgp", path)
    with pytest.raises(ModelFileError, match="cannot be used"):
        sparsegp.load(path)


def test_what_an_old_file_may_not_say_is_not_taken_over(path):
    """Attributes of the estimator were names in version 1: no other name reaches an object."""

    def change(description, arrays):
        description["state"].update(predict=3, __class__="x", fit="y")

    hostile(change)(FIXTURES / "model_v1_vfe.sgp", path)
    loaded = sparsegp.load(path)
    assert callable(loaded.predict)
    assert callable(loaded.fit)
    assert "predict" not in vars(loaded)


def test_the_translator_of_old_files_knows_no_living_class():
    """What it imports is numpy and the standard library: so it never has to change."""
    import ast

    from sparsegp.files import read_v1

    tree = ast.parse(Path(read_v1.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert modules == {"math", "collections.abc", "typing", "numpy", "numpy.typing"}


LARGER = {
    "vfe": lambda: sparse("vfe", n_inducing=140).fit(XL, yL),
    "vfe, updated": lambda: sparse("vfe", n_inducing=140).fit(XL, yL).partial_fit(X, y - 4.0),
    "pitc, updated": lambda: sparse("pitc", n_blocks=5, n_inducing=140).fit(XL, yL).partial_fit(X, y - 4.0),
    "pic": lambda: sparse("pic", n_blocks=5, n_inducing=140).fit(XL, yL),
    "exact": lambda: sparse("exact").fit(XL, yL),
    "noise, updated": lambda: (
        HeteroscedasticGPRegressor(n_noise_inducing=6, **WIDE).fit(XL, yL).partial_fit(X, y - 4.0)
    ),
    "committee": lambda: CommitteeGPRegressor(n_experts=3, **WIDE).fit(XL, yL),
    "committee, pic": lambda: CommitteeGPRegressor(expert="pic", n_experts=2, **WIDE).fit(XL, yL),
    "committee, noise": lambda: CommitteeGPRegressor(expert="vshgp", n_noise_inducing=5, **WIDE).fit(XL, yL),
}
"""Large enough for a second thread and for the second BLAS, whose last digits are others."""


def require_same_digits(model, path, rows):
    loaded = saved_again(model, path)
    for got, expected in zip(
        (*loaded.predict(rows, return_std=True), *loaded.predict(rows, return_cov=True, latent=True)),
        (*model.predict(rows, return_std=True), *model.predict(rows, return_cov=True, latent=True)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_after_loading_are_the_same_to_the_last_digit(name, path):
    require_same_digits(MODELS[name](), path, X_test)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("name", LARGER)
def test_so_are_those_of_larger_models_on_any_number_of_threads(name, n_threads, path):
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        model = LARGER[name]()
        for rows in (XL[::3], X_test[:1]):
            require_same_digits(model, path, rows)
    finally:
        torch.set_num_threads(before)


def test_no_name_of_a_class_or_of_a_private_attribute_is_in_a_file(path):
    """Every key is a field of the schema, a parameter of the estimator, or one of info_."""
    for model in (MODELS[name]() for name in ("window", "pic, streamed", "noise", "committee, noise")):
        model.save(path)
        description, arrays = container.read(path)
        text = json.dumps({key: value for key, value in description.items() if key != "info"})
        assert not re.search(r'"_|\$record|\$kernel|[a-z][A-Z]', text)
        assert all(part and not part.startswith("_") for name in arrays for part in name.split("."))


def test_the_content_of_rows_names_them_however_they_are_cut():
    whole = files.content_id([(X, y)])
    assert whole == files.content_id([(X[:30], y[:30]), (X[30:], y[30:])])
    assert whole != files.content_id([(X, y + 1e-12)])
    assert whole != files.content_id([(X[::-1], y[::-1])])


def test_batches_are_remembered_by_the_file_and_forgotten_by_a_new_fit(path):
    model = MODELS["vfe"]()
    files.record_batches(model, "monday", "tuesday", "monday")
    model.save(path)
    loaded = sparsegp.load(path)
    assert files.batch_ids(loaded) == ("monday", "tuesday")
    with pytest.raises(InputError, match="'monday'"):
        files.require_disjoint(model, loaded)
    assert files.batch_ids(loaded.fit(X, y)) == ()


@pytest.mark.parametrize("approximation", ["vfe", "pitc", "pic"])
def test_parts_filled_apart_merge_into_the_model_of_all_rows(approximation):
    base = sparse(approximation, n_blocks=4).fit(X[:50], y[:50])
    together = sparse(approximation, n_blocks=4).fit(X[:50], y[:50])
    part = base.without_rows()
    part.partial_fit(X[50:], y[50:])
    assert (part.n_samples_seen_, base.n_samples_seen_) == (40, 50)
    base.merge(part)
    together.partial_fit(X[50:], y[50:])
    close(base.predict(X_test), together.predict(X_test))
    assert base.n_samples_seen_ == 90


def test_a_lock_is_held_by_one_at_a_time(path):
    order = []

    def other():
        with files.locked(path):
            order.append("other")

    with files.locked(path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(timeout=0.3)
        order.append("first")
    thread.join(timeout=30.0)
    assert order == ["first", "other"]

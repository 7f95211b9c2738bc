"""docs/file-format.md is the schema in words, and enough to write a reader from."""

import hashlib
import json
import re
import struct
import types
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from sparsegp import CommitteeGPRegressor, HeteroscedasticGPRegressor, SparseGPRegressor, kernels
from sparsegp.files import schema

PAGE = Path(__file__).parents[2] / "docs" / "file-format.md"
PLAIN = {int: "integer", float: "number", str: "text", bool: "true or false"}


def type_in_words(hint: Any, field: Any) -> str:
    """The type of a field as the page says it."""
    if hint is Any:
        return "any"
    if hint in PLAIN:
        words = field.metadata["words"]
        return ", ".join(f'`"{word}"`' for word in words) if words else PLAIN[hint]
    if is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (one,) = (part for part in inner if part is not types.NoneType)
        return type_in_words(one, field)
    if origin is list:
        return f"list of {type_in_words(inner[0], field)}"
    if origin is dict:
        return f"object of {type_in_words(inner[1], field)}"
    assert origin is np.ndarray
    kind = {schema.FLOATS: "floats", schema.INTEGERS: "integers", schema.NUMBERS: "numbers"}[field.metadata["kinds"]]
    shape = field.metadata["shape"]
    return f"array of {kind}, any shape" if shape == "any" else f"array of {kind} [{shape}]"


def table(record: type[Any]) -> str:
    """The section of a record."""
    hints = get_type_hints(record)
    lines = [f"### {record.__name__}", "", record.__doc__, "", "| field | type | | meaning |", "|---|---|---|---|"]
    for field in fields(record):
        needed = "" if field.default is MISSING else "optional"
        words = type_in_words(hints[field.name], field)
        lines.append(f"| `{field.name}` | {words} | {needed} | {field.metadata['meaning']} |")
    return "\n".join(lines)


@pytest.mark.parametrize("record", schema.RECORDS, ids=lambda record: record.__name__)
def test_the_page_has_the_fields_of_the_schema(record):
    assert table(record) in PAGE.read_text(), f"docs/file-format.md should say:\n{table(record)}"


def test_the_page_has_no_other_records_and_the_schema_no_hidden_ones():
    assert set(re.findall(r"^### (\w+)$", PAGE.read_text(), flags=re.M)) == {r.__name__ for r in schema.RECORDS}
    found, waiting = set(), [schema.Model]
    while waiting:
        record = waiting.pop()
        found.add(record)
        for hint in get_type_hints(record).values():
            waiting += [part for part in parts_of(hint) if is_dataclass(part) and part not in found]
    assert found == set(schema.RECORDS)


def parts_of(hint):
    inner = get_args(hint)
    return [hint] if not inner else [part for one in inner for part in parts_of(one)]


def test_the_page_says_every_word_that_a_text_may_be():
    text = PAGE.read_text()
    for record in schema.RECORDS:
        for field in fields(record):
            assert all(f'`"{word}"`' in text for word in field.metadata["words"])


# A reader written from the page: json, struct and numpy, nothing of sparsegp.

TYPES = {"F64": ("<f8", "float64"), "F32": ("<f4", "float32"), "I64": ("<i8", "int64"), "U8": ("u1", "uint8")}


def read(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    about, body, arrays = header.pop("__metadata__"), content[8 + length :], {}
    digest = hashlib.sha256(about["description"].encode())
    for name in sorted(header):
        entry = header[name]
        start, end = entry["data_offsets"]
        dtype, word = TYPES[entry["dtype"]]
        arrays[name] = np.frombuffer(body[start:end], dtype).reshape(entry["shape"])
        digest.update(f"|{name}|torch.{word}|{tuple(entry['shape'])}|".encode() + body[start:end])
    assert about["format"] == "sparsegp-model"
    assert about["checksum"] == digest.hexdigest()
    return json.loads(about["description"]), arrays


def filled(value, arrays):
    if isinstance(value, dict):
        return arrays[value["$array"]] if "$array" in value else {k: filled(v, arrays) for k, v in value.items()}
    return [filled(item, arrays) for item in value] if isinstance(value, list) else value


def covariance(nodes, number, X, Z):
    node = nodes[number]
    if "active_columns" in node:
        X, Z = X[:, node["active_columns"]], Z[:, node["active_columns"]]
    if node["kind"] == "sum":
        return sum(covariance(nodes, part, X, Z) for part in node["parts"])
    if node["kind"] == "linear":
        slope = np.exp(node["log_variance"]) / node["units"] ** 2
        return ((X - node["center"]) * slope) @ (Z - node["center"]).T
    lengthscales = np.exp(node["log_lengthscales"])
    lengthscales = (lengthscales[node["groups"]] if "groups" in node else lengthscales) * node["units"]
    r = np.sqrt((((X[:, None] - Z[None]) / lengthscales) ** 2).sum(2))
    s = np.sqrt(5.0) * r
    shape = {"squared_exponential": np.exp(-(r**2) / 2), "matern52": (1 + s + s**2 / 3) * np.exp(-s)}
    return np.exp(node["log_variance"]) * shape[node["kind"]]


def triangle(values, size):
    A = np.zeros((size, size))
    A[np.tril_indices(size)] = values
    return A


def diagonal(nodes, x):
    return np.array([covariance(nodes, -1, row[None], row[None])[0, 0] for row in x])


def whitened(nodes, values, x):
    size = len(values["inputs"])
    L, B = triangle(values["prior_cholesky"], size), triangle(values["precision_cholesky"], size)
    return np.linalg.solve(L, covariance(nodes, -1, values["inputs"], x)), L, B


def inducing_moments(nodes, values, x):
    w, _, B = whitened(nodes, values, x)
    var = np.maximum(diagonal(nodes, x) - (w**2).sum(0), 0.0) + (np.linalg.solve(B, w) ** 2).sum(0)
    return w.T @ values["mean"], var


def exact_moments(nodes, rows, x):
    C = covariance(nodes, -1, rows["inputs"], rows["inputs"])
    noisy = rows["covariance_diagonal"]
    np.fill_diagonal(C, noisy + rows["jitter"] * noisy.mean())
    K = covariance(nodes, -1, x, rows["inputs"])
    return K @ rows["weights"], diagonal(nodes, x) - (K * np.linalg.solve(C, K.T).T).sum(1)


def nystrom_moments(nodes, posterior, x):
    rows, K = posterior["nystrom"], covariance(nodes, -1, x, posterior["nystrom"]["inputs"])
    W, _, B = whitened(nodes, posterior["inducing"], rows["inputs"])
    root = np.sqrt(rows["noise_precision"])
    A = root[:, None] * W.T
    inverse = np.diag(rows["noise_precision"]) - root[:, None] * (A @ np.linalg.solve(B @ B.T, A.T)) * root
    var, prior = diagonal(nodes, x) - (K @ inverse * K).sum(1), diagonal(nodes, x)
    return K @ rows["weights"], np.maximum(var, 1e-14 * prior) if rows["clip"] else var


def local_moments(nodes, posterior, x):
    rows, cells, values = posterior["rows"], posterior["partition"], posterior["inducing"]
    ends = np.cumsum(rows["block_sizes"])
    out = []
    for row in x:
        k = ((cells["centroids"] - cells["metric"] * row) ** 2).sum(1).argmin()
        block = slice(ends[k] - rows["block_sizes"][k], ends[k])
        P, y = rows["inputs"][block], rows["targets"][block]
        noise = rows["noise_var"][block] if "noise_var" in rows else np.full(len(y), values["noise_var"])
        noise = noise / rows["weights"][block] if "weights" in rows else noise
        w, _, B = whitened(nodes, values, row[None])
        W = whitened(nodes, values, P)[0].T
        D = covariance(nodes, -1, P, P) - W @ W.T
        np.fill_diagonal(D, np.maximum(np.diag(D), 0.0))
        c = (covariance(nodes, -1, P, row[None]) - W @ w)[:, 0]
        a = np.linalg.solve(D + np.diag(noise), c)
        spread = np.linalg.solve(B, w[:, 0] - W.T @ a)
        first = max(diagonal(nodes, row[None])[0] - (w**2).sum(), 0.0)
        out.append((w[:, 0] @ values["mean"] + a @ (y - W @ values["mean"]), first - c @ a + spread @ spread))
    return np.array(out).T


def moments(nodes, posterior, x):
    form = posterior["form"]
    if form == "inducing":
        return inducing_moments(nodes, posterior["inducing"], x)
    if form == "exact":
        return exact_moments(nodes, posterior["dense"], x)
    return (local_moments if form == "local" else nystrom_moments)(nodes, posterior, x)


def noise_moments(nodes, noise, x):
    mean, var = inducing_moments(nodes, noise["inducing"], x)
    mean, lowest, highest = mean + noise["mean"], np.log(noise["least_var"]), np.log(noise["largest_var"])

    def above(t):
        return np.logaddexp(0.0, 6.0 * t) / 6.0

    return lowest + above(mean - lowest) - above(mean - highest), np.maximum(var, 1e-14)


def joined(aggregation, base, answers, n):
    (m_0, v_0), kind = base, aggregation["weighting"]
    gain, pull, total = 0.0, 0.0, 1e-4 if kind == "squared_precision" else 1.0
    for i, (m, v, near) in enumerate(answers):
        v = np.minimum(v, v_0)
        weights = {"one": 1.0, "one_over_experts": 1.0 / n, "entropy": np.log(v_0 / v) / 2}
        weights["squared_precision"] = (v_0 / v) ** 2 - 1
        w = near * (1.0 if aggregation["communicates"] and i == 0 else weights[kind])
        gain, pull = gain + w * (1 / v - 1 / v_0), pull + w * (m - m_0) / v
        total = total + w if kind == "squared_precision" else total
    c = 1.0 if aggregation["base_count"] == "once" or kind == "one_over_experts" else max(n, 1)
    var = 1.0 / (c / v_0 + gain / total)
    return m_0 + var * pull / total, var


def committee_moments(model, x, function):
    committee = model["committee"]
    nodes = model["kernel" if function == "f" else "noise_kernel"]["nodes"]

    def answer(expert):
        return moments(nodes, expert["posterior"], x) if function == "f" else noise_moments(nodes, expert["noise"], x)

    experts, near = committee["experts"], np.ones((len(x), len(committee["experts"])))
    n = len(experts)
    if "nearest" in committee:
        limit = committee["nearest"]
        n, near = limit["most"], np.zeros_like(near)
        distance = ((x * limit["metric"])[:, None] - limit["centres"]) ** 2
        np.put_along_axis(near, distance.sum(2).argsort(1)[:, :n], 1.0, 1)
    prior = np.full(len(x), 0.0 if function == "f" else committee.get("noise_mean")), diagonal(nodes, x)
    base = answer(committee["common"]) if "common" in committee else prior
    return joined(committee["aggregation"], base, [(*answer(e), near[:, i]) for i, e in enumerate(experts)], n)


def completed(completion, x):
    """The 31 rows that a row with gaps stands for."""
    z, values = -3.0 + 6.0 * np.arange(65) / 64.0, completion["values"]
    D = len(x)
    R = triangle(completion["correlation"], D)
    P = np.linalg.inv(R + np.tril(R, -1).T)
    m, o = np.flatnonzero(np.isnan(x)), np.flatnonzero(~np.isnan(x))

    def score(j):
        same = values[:, j] == x[j]
        if not same.any():
            return np.interp(x[j], values[:, j], z)
        share = np.array([NormalDist().cdf(score) for score in z])
        return np.interp((share[same][0] + share[same][-1]) / 2.0, share, z)

    C = np.linalg.inv(P[np.ix_(m, m)])
    mean, A = -C @ P[np.ix_(m, o)] @ np.array([score(j) for j in o]), np.linalg.cholesky(C)
    rows = np.tile(x, (31, 1))
    for k in range(31):
        e = [NormalDist().inv_cdf(((k * 12**entry + 15) % 31 + 0.5) / 31) for entry in range(len(m))]
        i = np.rint((mean + A @ e + 3.0) * 64.0 / 6.0).astype(int).clip(0, 64)
        rows[k, m] = values[i, m]
    return rows


def predict(model, X):
    scaling, kind = model["scaling"], model["kind"]
    x = (X - scaling["input_mean"]) / scaling["input_scale"]
    scale, noise_var = scaling["target_scale"], model["noise_var"]
    if kind == "committee":
        mean, var = committee_moments(model, x, "f")
    else:
        mean, var = moments(model["kernel"]["nodes"], model["posterior"], x)
    if "noise_kernel" in model:
        nodes = model["noise_kernel"]["nodes"]
        g = committee_moments(model, x, "g") if kind == "committee" else noise_moments(nodes, model["noise"], x)
        noise_var = scale**2 * np.exp(g[0] + g[1] / 2)
    return scaling["target_mean"] + scale * mean, np.sqrt(var * scale**2 + noise_var)


rng = np.random.default_rng(0)
X = rng.uniform(-3.0, 3.0, (150, 2)) * [1.0, 100.0]
y = 40.0 + 3.0 * np.sin(2.0 * X[:, 0]) + 0.02 * X[:, 1] + 0.2 * rng.standard_normal(150)
KERNEL = kernels.Matern52(1.7, [0.9, 160.0]) + kernels.SquaredExponential(0.5, 0.3, active_dims=[0])
TIED = kernels.Matern52(1.7, [0.9], groups=[0, 0]) + kernels.SquaredExponential(0.5, [0.3, 90.0], groups=[0, 1])
GIVEN = {"n_inducing": 20, "optimizer": None, "random_state": 0}


def sparse(approximation, **options):
    kernel = KERNEL + kernels.Linear(1e-4, active_dims=[1])
    return SparseGPRegressor(kernel, approximation, noise_var=0.05, n_blocks=5, **GIVEN, **options)


def committee(**options):
    return CommitteeGPRegressor(KERNEL, n_experts=4, n_noise_inducing=6, skip_tolerance=0.0, **GIVEN, **options)


WRITTEN = {
    "vfe": lambda: sparse("vfe").fit(X, y),
    "vfe, updated": lambda: sparse("vfe").fit(X[:100], y[:100]).partial_fit(X[100:], y[100:]),
    "fitc, window": lambda: sparse("fitc", window=60).fit(X[:100], y[:100]).partial_fit(X[100:], y[100:]),
    "groups": lambda: SparseGPRegressor(TIED, "vfe", noise_var=0.05, **GIVEN).fit(X, y),
    "exact": lambda: sparse("exact").fit(X, y, sample_weight=1.0 + np.arange(150) % 2),
    "pic": lambda: sparse("pic").fit(X, y, sample_weight=1.0 + np.arange(150) % 2),
    "pic, known noise": lambda: sparse("pic").fit(X, y, noise_var=np.linspace(0.01, 0.2, 150)),
    "nystrom": lambda: sparse("nystrom", clip_variances=True).fit(X, y),
    "learned noise": lambda: HeteroscedasticGPRegressor(KERNEL, n_noise_inducing=6, **GIVEN).fit(X, y),
    "learned noise, pic": lambda: HeteroscedasticGPRegressor(KERNEL, "pic", n_blocks=3, **GIVEN).fit(X, y),
    **{
        name: lambda name=name: committee(aggregation=name).fit(X, y)
        for name in ("grbcm", "rbcm", "bcm", "gpoe", "poe")
    },
    "nearest": lambda: committee(aggregation="tpoe", most_asked=2).fit(X, y),
    "committee of pic": lambda: committee(expert="pic", aggregation="rbcm").fit(X, y),
    "committee with noise": lambda: committee(expert="vshgp", aggregation="tpoe").fit(X, y),
    "communicating committee with noise": lambda: committee(expert="vshgp", aggregation="grbcm").fit(X, y),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_reader_written_from_the_page_predicts_the_same(name, tmp_path):
    model = WRITTEN[name]()
    model.save(tmp_path / "model.sgp")
    description, arrays = read(tmp_path / "model.sgp")
    assert description["schema_version"] == 2
    new = X[:30] + 0.1
    mean, std = predict(filled(description, arrays), new)
    expected = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-8)
    np.testing.assert_allclose(std, expected[1], rtol=1e-7)


@pytest.mark.filterwarnings("ignore:Values that the fit has not met")
def test_a_reader_written_from_the_page_predicts_rows_with_gaps(tmp_path):
    inputs = np.column_stack([X, np.round(X[:, 0])])
    model = SparseGPRegressor(kernels.Matern52(1.7, [0.9, 160.0, 3.0]), "vfe", noise_var=0.05, **GIVEN).fit(inputs, y)
    model.save(tmp_path / "model.sgp")
    description = filled(*read(tmp_path / "model.sgp"))
    scaling = description["scaling"]
    new = inputs[:3].copy()
    new[0, 0] = new[1, :2] = new[2, 2] = np.nan
    found = model.forecast(new)
    for row, mean, std in zip(new, found.mean, found.std, strict=True):
        rows = completed(description["columns"]["completion"], (row - scaling["input_mean"]) / scaling["input_scale"])
        means, stds = predict(description, rows * scaling["input_scale"] + scaling["input_mean"])
        assert mean == pytest.approx(means.mean(), rel=1e-8)
        assert std**2 == pytest.approx((stds**2).mean() + means.var(), rel=1e-8)

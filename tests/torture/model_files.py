"""Altered model files: damage is always noticed, and a forged file that is accepted predicts numbers."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import sparsegp
from sparsegp import ModelFileError, SparseGPError, serving
from sparsegp.files import container
from torture.campaign import Campaign, Case

FIXTURES = Path(__file__).parents[1] / "fixtures"
Rng = np.random.Generator
NASTY: tuple[Any, ...] = (
    0, -1, 1, 2, 1e308, -1e308, 1e-320, 2**63, -(2**70), "x", "", None, [], {}, True, [0], [[]], {"$number": "nan"},
    {"$number": "inf"}, {"$number": "-inf"}, {"$tuple": [1]}, {"$texts": ["a"]}, {"$array": "posterior.inducing.mean"},
    {"$pairs": [[1, 2]]}, 10**400, "\x1b[31m", 0.5, -0.5, 1e9, 1000000007,
)  # fmt: skip
NUMBERS = (0.0, -1.0, 1e308, -1e308, 1e-320, 1e150, -1e150, 1e20, np.nan, np.inf, -np.inf)


def damaged(content: bytes, rng: Rng, other: bytes) -> bytes:
    """What disks and transfers do."""
    a, b = sorted(int(k) for k in rng.integers(0, len(content), 2))
    choice = int(rng.integers(5))
    if choice == 0:
        return content[:a] + bytes([content[a] ^ (1 << int(rng.integers(8)))]) + content[a + 1 :]
    if choice == 1:
        return content[:a]
    if choice == 2:
        return content[:a] + rng.bytes(int(rng.integers(1, 50))) + content[a:]
    if choice == 3:
        return content[:a] + bytes(b - a) + content[b:]
    return content[:a] + other[a:]


def places(form: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
    return [path] * bool(path) + [place for key, item in inner for place in places(item, (*path, key))]


def forged_description(description: dict[str, Any], rng: Rng) -> None:
    found = places(description)
    *way, last = found[rng.integers(len(found))]
    holder: Any = description
    for key in way:
        holder = holder[key]
    choice = rng.random()
    if choice < 0.15 and isinstance(holder, dict):
        del holder[last]
    elif choice < 0.25 and isinstance(holder, dict):
        holder["extra"] = 1
    else:
        # a copy: the next forgery would change the list itself, and put it into itself
        holder[last] = deepcopy(NASTY[rng.integers(len(NASTY))])


def forged_arrays(arrays: dict[str, Any], rng: Rng) -> None:
    name = sorted(arrays)[rng.integers(len(arrays))]
    array, choice = arrays[name].copy(), int(rng.integers(7))
    if choice == 0 and array.dtype.kind == "f" and array.size:
        array.flat[rng.integers(array.size)] = NUMBERS[rng.integers(len(NUMBERS))]
    elif choice == 1:
        array = np.zeros_like(array)
    elif choice == 2:
        array = -array if array.dtype.kind in "fi" else array
    elif choice == 3:
        array = array.reshape(-1)[: rng.integers(array.size + 1)]
    elif choice == 4:
        array = array.astype([np.float32, np.int64, np.int8, np.uint8][rng.integers(4)])
    elif choice == 5:
        array = array[None] if rng.random() < 0.5 else array.T
    elif array.dtype.kind == "f":
        array = array * 10.0 ** rng.uniform(-150, 150)
    arrays[name] = np.ascontiguousarray(array)


def write_forged(path: Path, description: dict[str, Any], arrays: dict[str, Any]) -> None:
    """With a checksum that fits."""
    text = json.dumps(description)
    header = {"format": container.FORMAT, "description": text, "checksum": container.checksum(text, arrays)}
    save_file(arrays, path, metadata=header)


def require_numbers(path: Path, columns: int, rng: Rng) -> str:
    """Refused, or a model whose answers are numbers or an error of ours."""
    rows = rng.normal(size=(6, columns)) * 10.0 ** rng.uniform(-1, 3)
    outcomes = []
    for load in (sparsegp.load, serving.load):
        try:
            model = load(path)
        except ModelFileError:
            outcomes.append("refused")
            continue
        outcomes.append("accepted")
        try:
            mean, std = model.predict(rows[:, : model.n_features_in_], return_std=True)
            lower, upper = model.predict_interval(rows[:, : model.n_features_in_])
        except SparseGPError:
            continue
        assert np.isfinite([mean, std, lower, upper]).all(), f"{load.__module__} accepts what predicts no numbers"
        assert (std > 0).all(), f"{load.__module__}: std"
        assert (lower <= upper).all(), f"{load.__module__}: interval"
    return outcomes[0]


def calibrated(path: Path) -> Path:
    """What a fit with the default settings leaves behind."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.sin(X[:, 0]) + np.exp(X[:, 1]) * 0.1 * rng.standard_t(3, 300)
    model = sparsegp.SparseGPRegressor("se", "vfe", n_inducing=10, random_state=0).fit(X, y)
    assert model.calibration_ is not None
    model.save(path)
    return path


def prepare(folder: Path) -> Case:
    files = [*sorted(FIXTURES.glob("*.sgp")), calibrated(folder / "calibrated.sgp")]
    contents, path = [file.read_bytes() for file in files], folder / "altered.sgp"

    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        k = int(rng.integers(len(files)))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if rng.random() < 0.4:
                spoilt = damaged(contents[k], rng, contents[(k + 1) % len(files)])
                path.write_bytes(spoilt)
                outcome = require_numbers(path, 12, rng)
                assert outcome == "refused" or spoilt in contents, "damage was not noticed"
                return "damage noticed" if outcome == "refused" else "not changed"
            description, arrays = container.read(files[k])
            change = forged_description if rng.random() < 0.6 else forged_arrays
            for _ in range(rng.integers(1, 4)):
                change(description if change is forged_description else arrays, rng)
            write_forged(path, description, arrays)
            return f"forged, {require_numbers(path, 12, rng)}"

    return case


CAMPAIGN = Campaign("model files", prepare, share=0.15, goal=10_000)

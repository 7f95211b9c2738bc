"""Little memory, and files that ask for much of it: an answer or an error of ours, in bounded time."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparsegp.files import container
from torture.campaign import Campaign, Case
from torture.model_files import FIXTURES, write_forged

START = """
import os, resource, sys
import numpy as np, torch, sparsegp
from sparsegp import SparseGPRegressor, kernels, serving
torch.set_num_threads(1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]) * 2**20, resource.RLIM_INFINITY))
def fitted(n=50, m=10, name="vfe", **options):
    X = np.random.default_rng(0).uniform(-3, 3, (n, 2))
    options = {"optimizer": None, "noise_var": 0.1, "n_inducing": m, "random_state": 0, **options}
    return SparseGPRegressor(kernels.SquaredExponential(), name, **options).fit(X, np.sin(X[:, 0]))
try:
    exec(sys.argv[1])
    print("answered")
except sparsegp.SparseGPError as error:
    print(type(error).__name__, error)
"""
WORK = (
    "fitted().predict(np.zeros((6000, 2)), return_cov=True)",
    "fitted().sample_y(np.zeros((5000, 2)))",
    "fitted(4000, m=2000, inducing='random')",
    "fitted(3000, name='exact')",
    "fitted(200_000, m=50, name='pic', inducing='random', n_blocks=400)",
    "fitted().predict(np.broadcast_to(0.0, (20_000_000, 2)))",
    "SparseGPRegressor('se', 'vfe', n_inducing=20, optimizer=None).fit('rows.parquet', target='y')",
    "SparseGPRegressor('se', 'nystrom', n_inducing=20, optimizer=None).fit('rows.parquet', target='y')",
)
SECONDS = 900
MOST_SECONDS = 60.0
"""Of processor time, the imports included."""


def said_by(folder: Path, code: str, megabytes: int) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", START, code, str(megabytes)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
    )
    assert done.returncode == 0, f"{code} with {megabytes} MB: {done.returncode}, {done.stdout}{done.stderr}"
    word: str = done.stdout.split()[0]
    return word


def prepare(folder: Path) -> Case:
    x = np.random.default_rng(0).uniform(-3, 3, 2_000_000)
    pd.DataFrame({"a": x, "b": x[::-1], "y": np.sin(x)}).to_parquet(folder / "rows.parquet", row_group_size=100_000)

    def case(seed: int) -> str:
        rng = np.random.default_rng(seed)
        return said_by(folder, WORK[seed % len(WORK)], int(2.0 ** rng.uniform(7.0, 11.0)))

    return case


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def _bomb_header(path: Path, facts: dict[str, Any]) -> None:
    head = json.dumps(facts).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head)


def _many_entries(path: Path) -> None:
    empty = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
    header = {"format": container.FORMAT, "description": "{}", "checksum": ""}
    _bomb_header(path, {"__metadata__": header, **{f"a{k}": empty for k in range(100_000)}})


def _huge_shape(path: Path) -> None:
    description, arrays = container.read(FIXTURES / "model_v2_vfe.sgp")
    arrays["posterior.inducing.inputs"] = np.zeros((10**9, 0))
    write_forged(path, description, arrays)


def _lying_shape(path: Path) -> None:
    _bomb_header(path, {"a": {"dtype": "F64", "shape": [10**9, 10**9], "data_offsets": [0, 8]}})


def _deep(path: Path) -> None:
    header = {"format": container.FORMAT, "description": _nested(10**6), "checksum": ""}
    _bomb_header(path, {"__metadata__": header})


def _deep_info(path: Path) -> None:
    description, arrays = container.read(FIXTURES / "model_v2_vfe.sgp")
    text = json.dumps(description)[:-1] + f', "more": {_nested(100_000)}}}'
    header = {"format": container.FORMAT, "description": text, "checksum": container.checksum(text, arrays)}
    from safetensors.numpy import save_file

    save_file(arrays, path, metadata=header)


def _long_list(path: Path) -> None:
    description, arrays = container.read(FIXTURES / "model_v2_vfe.sgp")
    description["kernel"]["nodes"] = description["kernel"]["nodes"] * 100_000
    write_forged(path, description, arrays)


def _endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 * 2**30)


def _tall_trees(path: Path) -> None:
    description, arrays = container.read(FIXTURES / "model_v2_vfe.sgp")
    arrays |= {
        "t.columns": np.zeros((0, 10**9), np.int64),
        "t.thresholds": np.zeros((0, 10**9)),
        "t.l": np.zeros((0, 0)),
    }
    scale = {"base": 0.0, "strength": 1.0, "most": 2.0, "columns": {"$array": "t.columns"}}
    scale |= {"thresholds": {"$array": "t.thresholds"}, "leaves": {"$array": "t.l"}}
    arrays |= {"t.w": np.ones(1), "t.z": np.zeros(1), "t.s": np.ones(1)}
    parts = {"weights": {"$array": "t.w"}, "locations": {"$array": "t.z"}, "widths": {"$array": "t.s"}}
    description["calibration"] = {**parts, "rows": 5, "gain": 0.0, "scale": scale}
    write_forged(path, description, arrays)


MAKERS: tuple[Callable[[Path], None], ...] = (
    _many_entries, _huge_shape, _lying_shape, _deep, _deep_info, _long_list, _endless, _tall_trees,
)  # fmt: skip


def prepare_bombs(folder: Path) -> Case:
    def case(seed: int) -> str:
        path = folder / "bomb.sgp"
        MAKERS[seed % len(MAKERS)](path)
        load = ("sparsegp.load", "serving.load")[seed // len(MAKERS) % 2]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        word = said_by(folder, f"{load}('bomb.sgp')", 2048)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert used < MOST_SECONDS, f"{used:.0f} seconds of processor time"
        # a kernel whose parts are listed a hundred thousand times is long, but right
        fine = ("answered",) if MAKERS[seed % len(MAKERS)] is _long_list else ()
        assert word in ("ModelFileError", "MemoryLimitError", *fine), word
        return word

    return case


CAMPAIGN = Campaign("memory", prepare, share=0.05, goal=100)
BOMBS = Campaign("bombs", prepare_bombs, share=0.05, goal=2 * len(MAKERS))

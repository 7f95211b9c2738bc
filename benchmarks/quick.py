"""`make bench-quick`: has anything become slower? Ten operations against the machine's own products, in three minutes.

An operation and a product of about its size take turns, and the ratio is that of their best times: it says how many
products an operation costs, whatever the machine. Ratios are compared with those of `results/quick.json`, and what is
more than a quarter worse is named. `--keep` writes them there. Ratios depend on the kind of processor and on what else
it does: compare on a machine like the one that the file names, with nothing else running.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.jobs import Arrays
from benchmarks.measure import seconds_of
from benchmarks.ours import vfe_value_and_gradient
from benchmarks.problems import synthetic
from benchmarks.results import console, machine_facts, number, print_table, read_results, write_results

from sparsegp import CommitteeGPRegressor, SparseGPRegressor, kernels, load

NAME = "quick"
WORSE = 1.25
SECONDS_EACH = 8.0
FEWEST_TURNS = 3
N_INDUCING, BLOCK_ROWS = 256, 400
Work = Callable[[], object]


def operations() -> dict[str, Work]:
    """Each as a call without arguments, prepared and called once."""
    data, rows = synthetic(20_000, N_INDUCING, 8), synthetic(20_000, 1, 8, seed=1)["X"]
    few = {name: values[:600] if name in ("X", "y") else values for name, values in data.items()}
    global_model, local, committee = _fitted(data, "vfe"), _fitted(data, "pic"), _committee(data)
    with tempfile.NamedTemporaryFile(suffix=".sgp") as file:
        global_model.save(file.name)
        written = Path(file.name).read_bytes()
    return {
        "vfe, value and gradient, 20,000 rows": _objective(data, "vfe"),
        "fitc, value and gradient, 20,000 rows": _objective(data, "fitc"),
        "pitc, value and gradient, 20,000 rows": _objective(data, "pitc"),
        "vfe, fit of 20,000 rows, nothing learned": lambda: _fitted(data, "vfe"),
        "vfe, mean and std of 20,000 rows": lambda: global_model.predict(rows, return_std=True),
        "pic, mean and std of 20,000 rows": lambda: local.predict(rows, return_std=True),
        "grbcm of exact experts, mean and std of 500 rows": lambda: committee.predict(rows[:500], return_std=True),
        "vfe, mean and std of one row, 200 times": lambda: _each(global_model, rows[:200]),
        "default, fit of 600 rows": lambda: SparseGPRegressor(random_state=0).fit(few["X"], few["y"]),
        "vfe, load": lambda: _loaded(written),
    }


def _objective(data: Arrays, row: str) -> Work:
    labels = np.arange(len(data["y"])) // BLOCK_ROWS if row == "pitc" else None
    given = (data[name] for name in ("X", "y", "Z", "lengthscales"))
    return vfe_value_and_gradient(*given, float(data["variance"]), float(data["noise_var"]), row, labels)


def _given(data: Arrays) -> dict[str, Any]:
    kernel = kernels.SquaredExponential(variance=float(data["variance"]), lengthscales=data["lengthscales"])
    return {"kernel": kernel, "noise_var": float(data["noise_var"]), "optimizer": None, "random_state": 0}


def _fitted(data: Arrays, approximation: str) -> SparseGPRegressor:
    n_blocks = len(data["y"]) // BLOCK_ROWS if approximation == "pic" else None
    given = {"inducing": data["Z"], "n_inducing": N_INDUCING, "n_blocks": n_blocks, "normalize": False, "trend": None}
    model = SparseGPRegressor(approximation=approximation, **given, **_given(data))
    return model.fit(data["X"], data["y"])


def _committee(data: Arrays) -> CommitteeGPRegressor:
    given = {"expert": "exact", "n_experts": 20, "aggregation": "grbcm"}
    return CommitteeGPRegressor(**given, **_given(data)).fit(data["X"][:5_000], data["y"][:5_000])


def _each(model: SparseGPRegressor, rows: np.ndarray) -> None:
    for k in range(len(rows)):
        model.predict(rows[k : k + 1], return_std=True)


def _loaded(written: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".sgp") as file:
        Path(file.name).write_bytes(written)
        load(file.name)


def own_products() -> Work:
    """Products and exponentials of the machine, with all threads of torch."""
    A = torch.rand(4096, 512, dtype=torch.float64)
    B, out = torch.rand(512, 512, dtype=torch.float64), torch.empty_like(A)

    def work() -> None:
        torch.mm(A, B, out=out)
        torch.exp(A, out=out)

    return work


def measured(operation: Work, products: Work) -> float:
    """Best seconds of the operation by the best ones of the products, in turns."""
    operation()
    ours: list[float] = []
    theirs: list[float] = []
    began = time.perf_counter()
    while len(ours) < FEWEST_TURNS or time.perf_counter() - began < SECONDS_EACH:
        theirs += [seconds_of(products) for _ in range(3)]
        ours.append(seconds_of(operation))
    return min(ours) / min(theirs)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure, print and compare; nothing is written."""
    before, products = read_results(NAME).get("ratios", {}), own_products()
    products()
    ratios = {name: measured(operation, products) for name, operation in operations().items()}
    table = [
        [name, number(ratio, 2), number(before.get(name), 2), _verdict(ratio, before.get(name))]
        for name, ratio in ratios.items()
    ]
    print_table("times the machine's own products", ["operation", "now", "kept", ""], table)
    slower = [name for name, ratio in ratios.items() if ratio > WORSE * before.get(name, np.inf)]
    console.print(f"More than {WORSE - 1:.0%} worse: {'; '.join(slower)}" if slower else "Nothing is worse.")
    return {"machine": machine_facts(), "ratios": ratios}


def _verdict(ratio: float, before: float | None) -> str:
    return "new" if before is None else "WORSE" if ratio > WORSE * before else f"{ratio / before - 1:+.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.quick", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="write the ratios to results/quick.json")
    keep = parser.parse_args().keep
    document = run()
    if keep:
        write_results(NAME, document)


if __name__ == "__main__":
    main()

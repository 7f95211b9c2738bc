"""The table of methods of the real-data benchmark: worker, settings, exceptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DATASETS = (
    "flights_nyc2013",
    "kin40k",
    "protein",
    "coads_slp",
    "etopo5_europe",
    "bike_noleak",
    "pol",
    "sarcos_test4449",
    "kin8nm",
    "concrete",
)
ON_REQUEST = ("era5_t2m_uk",)  # over a million rows: only when named by --only
QUICK_DATASETS = ("concrete", "kin8nm")
QUICK_ROWS = 1500

LEVELS = [0.025, 0.05, *(round(0.1 * k, 1) for k in range(1, 10)), 0.95, 0.975]


@dataclass(frozen=True)
class Method:
    """One row: a worker module, its options, and what changes on some datasets or in a quick run."""

    name: str
    module: str
    options: dict[str, Any]
    peer: bool = False
    per_dataset: dict[str, dict[str, Any]] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)

    def options_for(self, dataset: str, quick: bool) -> dict[str, Any]:
        return {**self.options, **self.per_dataset.get(dataset, {}), **(self.quick if quick else {})}


# Where neighbours differ most, local models do better with the rougher kernel.
ROUGH = {"flights_nyc2013": {"kernel": "matern12"}, "protein": {"kernel": "matern12"}}


QUICK_POINTS = {"n_inducing": 50}
QUICK_BLOCKS = {"n_inducing": 50, "block_rows": 200}
QUICK_AUTO = {"time_budget": 10.0}


def _ours(approximation: str, **options: Any) -> Method:
    """A row of our table; `block_rows` (block rows only) is turned into a number of blocks by the worker."""
    return Method(
        approximation,
        "benchmarks.own.datasets",
        {"approximation": approximation, **options},
        per_dataset=ROUGH if "block_rows" in options else {},
        quick=QUICK_BLOCKS if "block_rows" in options else QUICK_AUTO if approximation == "auto" else QUICK_POINTS,
    )


SVGP_OPTIONS = {
    "n_inducing": 300,
    "batch": 1024,
    "seconds": 80.0,
    "natural_step": 0.1,
    "adam_step": 0.03,
    "lengthscale": 0.5,
    "noise_var": 0.1,
}

LIGHTGBM_OPTIONS = {
    "levels": LEVELS,
    "held_fraction": 0.1,
    "patience": 50,
    "max_rounds": 1000,
    "trees": {"learning_rate": 0.1, "num_leaves": 127, "min_data_in_leaf": 20, "max_bin": 255},
}

# Hundreds of thousands of rows: fewer levels and rounds, or this one method takes longer than all others together.
LIGHTGBM_LARGE = {"levels": [0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975], "max_rounds": 400}

METHODS = (
    _ours("vfe", kernel="se", n_inducing=300),
    _ours("fitc", kernel="se", n_inducing=300),
    _ours("pep", kernel="se", n_inducing=300, power=0.5),
    _ours("pitc", kernel="matern32", n_inducing=500, block_rows=800),
    _ours("pic", kernel="matern32", n_inducing=500, block_rows=800),
    _ours("auto", kernel="matern32", n_inducing="auto", time_budget=60.0),
    Method(
        "gpflow-svgp",
        "benchmarks.peers.gpflow_svgp",
        {**SVGP_OPTIONS, "kernel": "se"},
        peer=True,
        quick={"n_inducing": 50, "seconds": 8.0},
    ),
    Method(
        "lightgbm",
        "benchmarks.peers.lightgbm_quantiles",
        LIGHTGBM_OPTIONS,
        peer=True,
        per_dataset=dict.fromkeys(("flights_nyc2013", "coads_slp", "etopo5_europe"), LIGHTGBM_LARGE),
        quick={"levels": [0.025, 0.25, 0.5, 0.75, 0.975], "max_rounds": 50},
    ),
)

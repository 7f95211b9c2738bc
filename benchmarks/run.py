"""Run benchmarks: `python -m benchmarks.run [names] [--quick] [--only dataset:method]`."""

from __future__ import annotations

import argparse
from importlib import import_module

from benchmarks.results import console

CELLS = (
    "datasets",
    "flagship",
    "noise_experiments",
    "budgets",
    "honesty",
    "honesty_peers",
    "quality_curves",
    "spatial",
    "tables",
    "tables_peers",
)
NOISE = ("noise_toys", "noise_sizes", "committee_speed")
SRGP = ("srgp_toy", "srgp_simulation", "srgp_airline", "srgp_plant")
SCALE = ("out_of_core", "growth", "dask_speed", "plan_accuracy", "tables_memory")
CALIBRATION = ("calibration_experiment",)
ANYTIME = (
    "anytime_step",
    "svgp_equality",
    "anytime_scale",
    "anytime_race",
    "anytime_learning",
    "budget_optimizers",
    "anytime_reproduction",
)
BENCHMARKS = (
    "bound",
    "predict",
    "local_predict",
    "product",
    "fit_memory",
    *CELLS,
    "recursive_speed",
    *ANYTIME,
    *SCALE,
    *SRGP,
    *NOISE,
    *CALIBRATION,
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(BENCHMARKS)}; all when none is named")
    parser.add_argument("--quick", action="store_true", help="small sizes, to exercise the harness; not kept")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="DATASET:METHOD",
        help=f"{', '.join(CELLS)}: run these cells again (shell patterns allowed, repeatable)",
    )
    parser.add_argument("--plot", action="store_true", help="srgp_*, noise_toys: write plots to docs/images")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    if arguments.only and not arguments.names:
        arguments.names = ["datasets"]
    return arguments


def main() -> None:
    arguments = _arguments()
    for name in arguments.names or BENCHMARKS:
        console.rule(name)
        module = import_module(f"benchmarks.{name}")
        extra = (
            {"only": arguments.only}
            if name in CELLS
            else {"plot": arguments.plot}
            if name in (*SRGP, "noise_toys")
            else {}
        )
        module.run(quick=arguments.quick, **extra)


if __name__ == "__main__":
    main()

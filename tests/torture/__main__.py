"""`python tests/torture`: campaigns of faults, bounded in time, or in full length with --long. Counts are printed."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import torch  # noqa: E402

from torture import campaign, campaigns  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="of a bounded run, all campaigns together")
    parser.add_argument("--long", action="store_true", help="as many cases as the goal of each campaign")
    parser.add_argument("--only", nargs="*", default=[], help="names of campaigns")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next one has the next")
    parser.add_argument("--count", type=int, default=None, help="cases of each campaign")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in every process that is started as well")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what came of the cases so far is printed
    chosen = [one for one in campaigns.ALL if not given.only or one.name in given.only]
    whole = sum(one.share for one in chosen)
    failed = 0
    for one in chosen:
        goal = given.count or one.goal
        seconds = float("inf") if given.long or given.count else given.seconds * one.share / whole
        tally = campaign.run(one, range(given.seed, given.seed + goal), seconds)
        failed += len(tally.failures)
        print(tally.line(), flush=True)
    print(f"{failed} failed" if failed else "all held")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

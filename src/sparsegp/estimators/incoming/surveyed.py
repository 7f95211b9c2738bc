"""A fit that knows its rows from one survey pass: a sample to start and choose from, units and counts of all rows."""

from dataclasses import replace
from typing import Any

import numpy as np

from sparsegp.approximations import Approximation
from sparsegp.estimators.choices.starting_points import starting_point
from sparsegp.estimators.families import Fitted
from sparsegp.estimators.incoming import arrivals
from sparsegp.estimators.incoming.standardizer import Standardizer
from sparsegp.estimators.tasks import Accepted
from sparsegp.sources import Scan, Source


def accepted(estimator: Any, row: Approximation, source: Source, survey: Scan, seed: int) -> Accepted:
    """What a fit in memory makes of its arguments, from the sample. With all rows in the sample it is the same."""
    arrivals.take_columns(estimator, source)
    rng, units = np.random.default_rng(seed), _units(survey, normalize=estimator.normalize)
    block = estimator._block_in(units, survey.sample)
    start = starting_point(estimator, units, block, rng)
    task = estimator._task(row, units, block, None, start, rng)
    n_blocks = estimator.n_blocks or max(1, round(survey.n_rows / estimator.n_inducing))
    return Accepted(replace(task, n_blocks=n_blocks), units, survey.n_rows + survey.n_weightless)


def with_known_noise(fitted: Fitted, survey: Scan, units: Standardizer) -> Fitted:
    """The mean noise variance of all rows where it was given, not that of the sample."""
    known = survey.mean_noise_var
    return fitted if known is None else replace(fitted, noise_var=known / units.y_scale**2)


def _units(survey: Scan, *, normalize: bool) -> Standardizer:
    if survey.is_complete or not normalize:
        return Standardizer.of(survey.sample, normalize=normalize)
    return Standardizer(survey.x_mean, survey.x_scale, survey.y_mean, survey.y_scale)

"""What a missing number may be: the Gaussian copula of the columns, against its formulas in another form."""

import numpy as np
import pytest
from scipy.stats import norm

from sparsegp.data.completion import KNOTS, MOST_COLUMNS, N_DRAWS, Completion, normal_points
from sparsegp.errors import InputError


def correlated(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal(np.zeros(3), [[1.0, 0.8, 0.0], [0.8, 1.0, 0.3], [0.0, 0.3, 1.0]], n)
    return np.column_stack([np.exp(z[:, 0]), 5.0 + 2.0 * z[:, 1], norm.cdf(z[:, 2])])


def test_scores_are_those_of_the_distribution_of_a_column():
    X = correlated()
    scores = Completion.of(X).scores(X)
    inner = np.abs(scores) < 2.0
    np.testing.assert_allclose(scores[inner[:, 1], 1], ((X[:, 1] - 5.0) / 2.0)[inner[:, 1]], atol=0.15)
    logs = np.column_stack([np.log(X[:, 0]), X[:, 1:]])
    np.testing.assert_allclose(scores[:, 0], Completion.of(logs).scores(logs)[:, 0], atol=0.05)
    assert Completion.of(X).scores(X * 100.0)[:, 1].max() == KNOTS[-1]


def test_equal_values_have_the_score_of_their_middle_row():
    X = np.repeat([[0.0], [1.0]], [750, 250], axis=0)
    zero, one = Completion.of(X).scores(np.array([[0.0], [1.0]])).ravel()
    assert zero == pytest.approx(norm.ppf(0.375), abs=KNOTS[1] - KNOTS[0])
    assert one == pytest.approx(norm.ppf(0.875), abs=KNOTS[1] - KNOTS[0])


def test_draws_are_those_of_the_gaussian_given_the_other_scores():
    """Against regression of scores on scores, which needs the inverse of another block."""
    completion = Completion.of(correlated())
    R, row = completion.correlation, np.array([[np.nan, 7.0, 0.9]])
    others = completion.scores(np.array([[0.0, 7.0, 0.9]]))[0, 1:]
    slopes = np.linalg.solve(R[1:, 1:], R[1:, 0])
    mean, std = slopes @ others, np.sqrt(R[0, 0] - slopes @ R[1:, 0])
    done = completion.completed(row)
    assert done.drawn.shape == (N_DRAWS, 3)
    assert (done.drawn[:, 1:] == row[0, 1:]).all()
    scores = completion.scores(done.drawn)[:, 0]
    step = KNOTS[1] - KNOTS[0]
    assert scores.mean() == pytest.approx(mean, abs=0.5 * step)
    expected = mean + std * norm.ppf((np.arange(N_DRAWS) + 0.5) / N_DRAWS)
    np.testing.assert_allclose(np.sort(scores), expected, atol=0.5 * step + 1e-9)


def test_several_gaps_of_a_row_go_together_as_the_columns_do():
    completion = Completion.of(correlated())
    done = completion.completed(np.array([[np.nan, np.nan, 0.5]]))
    found = np.corrcoef(completion.scores(done.drawn)[:, :2], rowvar=False)[0, 1]
    R = completion.correlation
    partial = (R[0, 1] - R[0, 2] * R[1, 2]) / np.sqrt((1 - R[0, 2] ** 2) * (1 - R[1, 2] ** 2))
    assert found == pytest.approx(partial, abs=0.05)


@pytest.mark.parametrize("n_columns", [1, 2, 5, 12, 30])
def test_points_stand_for_a_normal_in_each_column(n_columns):
    points = normal_points(n_columns)
    expected = norm.ppf((np.arange(N_DRAWS) + 0.5) / N_DRAWS)
    for column in points.T:
        np.testing.assert_allclose(np.sort(column), expected, atol=1e-12)
    mirrored = {tuple(np.round(row, 9)) for row in -points}
    assert mirrored == {tuple(np.round(row, 9)) for row in points}
    most = {1: 0.0, 2: 0.14, 5: 0.45, 12: 0.45, 30: 0.46}[n_columns]
    assert np.abs(np.corrcoef(points, rowvar=False) - np.eye(n_columns)).max() <= most


def test_whole_rows_stay_as_they_are_and_others_follow_by_row():
    completion = Completion.of(correlated())
    X = correlated(6, seed=1)
    assert completion.completed(X).is_complete
    X[1, 0] = X[4] = np.nan
    done = completion.completed(X)
    np.testing.assert_array_equal(done.whole, X[[0, 2, 3, 5]])
    assert (done.drawn[:N_DRAWS, 1:] == X[1, 1:]).all()
    assert np.isfinite(done.drawn).all()
    np.testing.assert_array_equal(done.drawn[N_DRAWS:], completion.completed(X[4:5]).drawn)
    np.testing.assert_array_equal(
        done.pooled(np.array([1.0, 2.0, 3.0, 4.0]), np.repeat([5.0, 6.0], N_DRAWS)), [1, 5, 2, 3, 6, 4]
    )
    own, drawn = done.labels([0, 1, 2, 3, 4, 5])
    assert own.tolist() == [0, 2, 3, 5]
    assert drawn.tolist() == [1] * N_DRAWS + [4] * N_DRAWS
    with pytest.raises(InputError, match="one label for each of the 6 rows"):
        done.labels([0, 1])


def test_a_column_of_a_few_values_has_no_others():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 3, 500).astype(float), rng.normal(size=500)])
    drawn = Completion.of(X).completed(np.array([[np.nan, 0.3]])).drawn
    assert set(drawn[:, 0]) == {0.0, 1.0, 2.0}


@pytest.mark.parametrize("X", [np.array([[1.0, 2.0]]), np.ones((5, 3)), np.repeat(np.arange(9.0), 2).reshape(9, 2)])
def test_few_rows_constant_and_equal_columns_can_be_completed(X):
    gap = X[:1].copy()
    gap[0, 0] = np.nan
    drawn = Completion.of(X).completed(gap).drawn
    assert np.isfinite(drawn).all()
    assert set(drawn[:, 0]) <= set(X[:, 0])


def test_wide_tables_take_each_column_alone():
    X = np.random.default_rng(0).normal(size=(30, MOST_COLUMNS + 1))
    completion = Completion.of(X)
    assert completion.correlation is None
    gap = X[:1].copy()
    gap[0, 7] = np.nan
    expected = np.quantile(X[:, 7], norm.cdf(0.0), method="inverted_cdf")
    assert np.sort(completion.completed(gap).drawn[:, 7])[N_DRAWS // 2] == expected

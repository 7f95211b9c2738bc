"""Which columns belong together, and which are standardised."""

import numpy as np
import pytest

from sparsegp.data import FeatureLayout, open_source
from sparsegp.errors import InputError


def test_plain_is_a_group_for_each_standardised_column() -> None:
    plain = FeatureLayout.plain(3)
    assert plain == FeatureLayout((0, 1, 2), (True, True, True))
    assert plain.is_plain
    assert (plain.n_features, plain.n_groups) == (3, 3)


@pytest.mark.parametrize(
    "other",
    [FeatureLayout((0, 0, 1), (True,) * 3), FeatureLayout((0, 1, 2), (True, False, True))],
    ids=["tied", "raw"],
)
def test_a_layout_that_ties_columns_or_leaves_them_as_they_are_is_not_plain(other: FeatureLayout) -> None:
    assert not other.is_plain


@pytest.mark.parametrize(("groups", "standardized"), [((0, 2), (True, True)), ((1, 1), (True, True)), ((0,), ())])
def test_a_layout_numbers_its_groups_without_gaps(groups: tuple[int, ...], standardized: tuple[bool, ...]) -> None:
    with pytest.raises(InputError, match="number of its group"):
        FeatureLayout(groups, standardized)


def test_the_layout_of_a_source_of_numbers_is_plain() -> None:
    X, y = np.zeros((4, 2)), np.zeros(4)
    for source in (open_source(X, y), open_source(lambda: [(X, y)])):
        assert source.layout == FeatureLayout.plain(2)

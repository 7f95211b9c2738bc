"""Tables in memory: pandas, polars or pyarrow, with the target as one of the columns."""

from typing import Any

from sparsegp.errors import InputError


def split_target(X: Any, y: Any, target: str | None) -> tuple[Any, Any]:
    """(features, target) of a table when `target` names a column; (X, y) as given otherwise."""
    if target is None:
        if y is None:
            raise InputError(
                "fit requires y to be passed, but the target y is None. Give y, or target='column' when X is a table."
            )
        return as_frame(X), y
    if y is not None:
        raise InputError("Give either y or target=, not both.")
    columns = _columns(X)
    if target not in columns:
        raise InputError(f"target={target!r} is not a column of the table; it has {', '.join(map(repr, columns))}.")
    features = [name for name in columns if name != target]
    if not features:
        raise InputError(f"The table has no column besides the target {target!r}.")
    return as_frame(X.select(features) if hasattr(X, "select") else X[features]), _column(X, target)


def _columns(X: Any) -> list[str]:
    names = getattr(X, "column_names", None) or getattr(X, "columns", None)
    if names is None:
        raise InputError(
            f"target= needs a table with named columns (pandas, polars or pyarrow); got {type(X).__name__}."
        )
    return list(names)


def _column(X: Any, name: str) -> Any:
    column = X[name]
    return column.to_numpy() if hasattr(column, "to_numpy") else column


def as_frame(X: Any) -> Any:
    """pyarrow tables as pandas frames, which scikit-learn reads with their column names; anything else as it is."""
    is_arrow = type(X).__module__.partition(".")[0] == "pyarrow"
    return X.to_pandas() if is_arrow and hasattr(X, "to_pandas") else X

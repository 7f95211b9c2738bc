"""Grids of xarray and tables of GeoPandas as rows, and forecasts in the same form.

Columns of places are called "longitude" and "latitude", in degrees, for `kernels.GreatCircle`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparsegp.core.predictive import Predictive
from sparsegp.errors import InputError
from sparsegp.estimators.checks import column_names

if TYPE_CHECKING:
    import geopandas
    import xarray

__all__ = ["places_of", "predict_grid", "predict_places", "rows_of"]

DEGREES = 4326
"""EPSG code of longitude and latitude in degrees (WGS 84)."""


def rows_of(grid: "xarray.Dataset | xarray.DataArray", *, target: str | None = None) -> Any:
    """A row for each cell of a grid: its coordinates, then its variables.

    Parameters
    ----------
    grid : xarray.Dataset or xarray.DataArray
        Its dimensions have coordinates.
    target : str, optional
        The variable to predict. Cells in which it is missing are left out, and the answer is (X, y).

    Returns
    -------
    X : pandas.DataFrame
    y : ndarray, with `target` only

    Raises
    ------
    InputError
        If this is no grid, a dimension has no coordinate, or there is no such variable.
    """
    table = _table(grid).reset_index()
    if target is None:
        return table
    if target not in table:
        raise InputError(f"target={target!r} is not a variable of the grid; it has {', '.join(map(str, table))}.")
    known = table[table[target].notna()].reset_index(drop=True)
    return known.drop(columns=target), known[target].to_numpy(dtype=np.float64)


def predict_grid(model: Any, grid: "xarray.Dataset | xarray.DataArray", *, coverage: float = 0.95) -> "xarray.Dataset":
    """Forecasts for every cell of a grid, on the same coordinates.

    Parameters
    ----------
    model : a fitted estimator
        Its columns are coordinates or variables of the grid. A model without names of columns sees the coordinates and
        then the variables, in their order.
    grid : xarray.Dataset or xarray.DataArray
    coverage : float, default 0.95
        What the intervals promise.

    Returns
    -------
    xarray.Dataset
        With the variables mean, std, lower and upper; missing where a column of the model is missing.
    """
    import xarray

    table = _table(grid)
    rows = _columns_for(model, table.reset_index(), list(table.columns))
    answers = _answers(model, rows, coverage).set_index(table.index)
    found = xarray.Dataset.from_dataframe(answers)
    return found.assign_attrs(coverage=coverage)


def places_of(places: "geopandas.GeoDataFrame") -> Any:
    """The columns of a table of places, with "longitude" and "latitude" in place of its geometry.

    Parameters
    ----------
    places : geopandas.GeoDataFrame
        Points, in any coordinate system that it names. Of other shapes the centre is taken. Without a coordinate system
        they are taken for degrees.

    Returns
    -------
    pandas.DataFrame
    """
    import geopandas

    if not isinstance(places, geopandas.GeoDataFrame):
        raise InputError(f"places must be a GeoDataFrame of geopandas; got {type(places).__name__}.")
    geometry = places.geometry
    empty = geometry.isna() | geometry.is_empty
    if empty.any():
        raise InputError(
            f"{int(empty.sum())} of {len(places)} rows have no geometry, the first is row {int(np.argmax(empty))}: "
            "drop them."
        )
    if not (geometry.geom_type == "Point").all():
        geometry = geometry.representative_point()
    if geometry.crs is not None:
        geometry = geometry.to_crs(DEGREES)
    plain = pd.DataFrame(places.drop(columns=places.geometry.name))
    return plain.assign(longitude=geometry.x.to_numpy(), latitude=geometry.y.to_numpy())


def predict_places(model: Any, places: "geopandas.GeoDataFrame", *, coverage: float = 0.95) -> "geopandas.GeoDataFrame":
    """The same places, with the columns mean, std, lower and upper.

    Parameters
    ----------
    model : a fitted estimator
        Its columns are among those of `places_of(places)`; without names they are longitude and latitude.
    places : geopandas.GeoDataFrame
    coverage : float, default 0.95
        What the intervals promise.
    """
    table = places_of(places)
    others = [name for name in table.columns if name not in ("longitude", "latitude")]
    rows = _columns_for(model, table[["longitude", "latitude", *others]], others)
    answers = _answers(model, rows, coverage)
    return places.assign(**{name: answers[name].to_numpy() for name in answers})


def _dataset(grid: Any) -> Any:
    import xarray

    if isinstance(grid, xarray.DataArray):
        grid = grid.to_dataset(name=grid.name or "value")
    if not isinstance(grid, xarray.Dataset):
        raise InputError(f"grid must be a Dataset or DataArray of xarray; got {type(grid).__name__}.")
    bare = [str(name) for name in grid.dims if name not in grid.coords]
    if bare or not grid.dims:
        raise InputError(
            f"Every dimension of a grid needs a coordinate; {', '.join(bare) or 'this one'} has none. Assign them: "
            "grid.assign_coords(...)."
        )
    return grid


def _table(grid: Any) -> Any:
    """A row for each cell, indexed by its coordinates in the order in which the variables have their dimensions."""
    cells = _dataset(grid)
    order = dict.fromkeys(dim for variable in cells.data_vars.values() for dim in variable.dims)
    return cells.to_dataframe(dim_order=list(dict.fromkeys([*order, *cells.dims])))


def _columns_for(model: Any, table: Any, variables: Sequence[Any]) -> Any:
    """The columns that the model was fitted with: by name, or the places and then as many variables as it needs."""
    names = column_names(model)
    if names is not None:
        missing = [str(name) for name in names if name not in table]
        if missing:
            raise InputError(
                f"The model needs the columns {', '.join(missing)}; these rows have {', '.join(map(str, table))}."
            )
        return table[list(names)]
    n_places = table.shape[1] - len(variables)
    if model.n_features_in_ not in (n_places, table.shape[1]):
        raise InputError(
            f"The model has {model.n_features_in_} columns without names; these rows have {n_places} coordinates and "
            f"{len(variables)} variables. Fit it to a table with names."
        )
    return table.iloc[:, : model.n_features_in_].to_numpy(dtype=np.float64)


def _answers(model: Any, rows: Any, coverage: float) -> Any:
    """mean, std, lower and upper of every row, NaN where a row is not whole."""
    whole = ~pd.isna(rows).any(axis=1)
    whole = np.asarray(whole)
    answers = np.full((len(rows), 4), np.nan)
    if whole.any():
        forecast: Predictive = model.forecast(rows[whole])
        answers[whole] = np.column_stack([forecast.mean, forecast.std, *forecast.interval(coverage)])
    return pd.DataFrame(answers, columns=["mean", "std", "lower", "upper"])

"""Grids of xarray and tables of GeoPandas, in and out, with the great-circle kernel."""

import numpy as np
import pytest

pytest.importorskip("pandas")

from sparsegp import InputError, SparseGPRegressor, kernels
from sparsegp.neighbours.grids import places_of, predict_grid, predict_places, rows_of

GIVEN = {"approximation": "vfe", "n_inducing": 30, "noise_var": 0.01, "optimizer": None, "random_state": 0}


@pytest.fixture(scope="module")
def grid():
    xarray = pytest.importorskip("xarray")
    longitude, latitude = np.arange(-180.0, 180.0, 20.0), np.arange(-80.0, 81.0, 20.0)
    temperature = 25 * np.cos(np.radians(latitude))[:, None] + 2 * np.sin(np.radians(longitude))
    temperature[0, :3] = np.nan
    height = np.broadcast_to(np.linspace(0, 1, 18), temperature.shape)
    dims = ("latitude", "longitude")
    return xarray.Dataset(
        {"t": (dims, temperature), "height": (dims, height)}, {"longitude": longitude, "latitude": latitude}
    )


def globe_model(X, y):
    at = [list(X.columns).index(name) for name in ("longitude", "latitude")]
    return SparseGPRegressor(kernels.GreatCircle(100.0, 4000.0, active_dims=at), **GIVEN).fit(X, y)


def test_a_grid_in_and_a_grid_out(grid):
    X, y = rows_of(grid, target="t")
    assert sorted(X.columns) == ["height", "latitude", "longitude"]
    assert len(X) == grid["t"].size - 3
    model = globe_model(X, y)
    found = predict_grid(model, grid, coverage=0.9)
    assert found["mean"].dims == grid["t"].dims
    assert found.attrs["coverage"] == 0.9
    for lat, lon in ((-40.0, 100.0), (80.0, -180.0)):
        cell = {"latitude": lat, "longitude": lon}
        row = X.iloc[:1].assign(**cell, height=float(grid["height"].sel(cell)))
        lower, upper = model.predict_interval(row, 0.9)
        at = found.sel(cell)
        assert float(at["mean"]) == pytest.approx(model.predict(row)[0])
        assert (float(at["lower"]), float(at["upper"])) == (pytest.approx(lower[0]), pytest.approx(upper[0]))
    # the missing corner is filled from its neighbours, across the date line
    corner = found["mean"].sel(latitude=-80.0, longitude=-160.0)
    assert float(corner) == pytest.approx(float(found["mean"].sel(latitude=-80.0, longitude=160.0)), abs=3.0)


def test_cells_without_a_column_have_no_forecast(grid):
    X, y = rows_of(grid, target="t")
    model = globe_model(X, y)
    holes = grid.assign(height=grid["height"].where(grid["longitude"] > 0))
    found = predict_grid(model, holes)
    assert bool(np.isnan(found["mean"].sel(longitude=-20.0)).all())
    assert bool(np.isfinite(found["mean"].sel(longitude=20.0)).all())


def test_a_single_variable_and_models_without_names(grid):
    X, y = rows_of(grid["t"].dropna("latitude"), target="t")
    model = SparseGPRegressor(kernels.GreatCircle(100.0, 4000.0, active_dims=[1, 0]), **GIVEN).fit(X.to_numpy(), y)
    found = predict_grid(model, grid["t"])
    assert float(found["mean"][2, 5]) == pytest.approx(model.predict([[grid.latitude[2], grid.longitude[5]]])[0])


def test_what_is_no_grid_is_refused(grid):
    model = globe_model(*rows_of(grid, target="t"))
    with pytest.raises(InputError, match="Dataset or DataArray of xarray; got ndarray"):
        rows_of(np.zeros((3, 3)))
    with pytest.raises(InputError, match="'wind' is not a variable of the grid; it has latitude, longitude, t, height"):
        rows_of(grid, target="wind")
    with pytest.raises(InputError, match=r"latitude has none. Assign them"):
        rows_of(grid.drop_vars("latitude"))
    with pytest.raises(InputError, match="The model needs the columns height"):
        predict_grid(model, grid["t"])


@pytest.mark.parametrize("metres", [False, True])
def test_places_in_and_places_out(metres):
    geopandas = pytest.importorskip("geopandas")
    rng = np.random.default_rng(0)
    longitude, latitude = rng.uniform(5, 15, 80), rng.uniform(47, 55, 80)
    y = 10 - latitude / 10 + np.sin(longitude)
    table = geopandas.GeoDataFrame(
        {"height": rng.uniform(0, 1, 80)}, geometry=geopandas.points_from_xy(longitude, latitude), crs=4326
    )
    given = table.to_crs(3035) if metres else table
    X = places_of(given)
    np.testing.assert_allclose(X[["longitude", "latitude"]], np.column_stack([longitude, latitude]), atol=1e-6)
    model = globe_model(X, y)
    found = predict_places(model, given, coverage=0.8)
    assert found.crs == given.crs
    assert list(found.columns) == ["height", "geometry", "mean", "std", "lower", "upper"]
    np.testing.assert_allclose(found["lower"], model.predict_interval(X, 0.8)[0])
    areas = given.set_geometry(given.to_crs(3035).buffer(1000.0).to_crs(given.crs))
    np.testing.assert_allclose(predict_places(model, areas)["mean"], found["mean"], atol=0.2)
    with pytest.raises(InputError, match="GeoDataFrame of geopandas; got DataFrame"):
        places_of(X)
    with pytest.raises(InputError, match="1 of 80 rows have no geometry, the first is row 4"):
        places_of(given.set_geometry(given.geometry.where(given.index != 4)))

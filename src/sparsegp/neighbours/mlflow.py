"""Models in MLflow: saved as model files, loaded as `mlflow.pyfunc` functions that return intervals.

What MLflow stores is the file that `save` writes. It holds numbers and no code, so nothing is unpickled.
"""

import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

from sparsegp.errors import InputError
from sparsegp.estimators.estimator import Estimator
from sparsegp.estimators.loading import load
from sparsegp.estimators.pipelines import PipelineRegressor

__all__ = ["load_model", "log_model", "save_model"]

FILE = "model.sgp"
COVERAGE = 0.95
ANSWERS = ("mean", "std", "lower", "upper")


def save_model(model: Any, path: Any, *, coverage: float = COVERAGE, **about: Any) -> None:
    """Write a model as a folder of MLflow, which `mlflow.pyfunc.load_model` reads.

    The loaded model returns a table with the columns mean, std, lower and upper.

    Parameters
    ----------
    model : a fitted estimator of this package, or a Pipeline wrapped by `sparsegp.wrap`
    path : str or Path
        A folder that does not exist yet.
    coverage : float, default 0.95
        What the intervals promise. `predict(X, params={"coverage": 0.8})` asks for others.
    **about
        Passed on to `mlflow.pyfunc.save_model`, as input_example= or metadata=.

    Raises
    ------
    InputError
        If the model is of another kind, or the coverage is not between 0 and 1.
    """
    with _saved(model, coverage) as folder:
        mlflow.pyfunc.save_model(path, **_flavour(folder, coverage, about))


def log_model(model: Any, *, name: str = "model", coverage: float = COVERAGE, **about: Any) -> Any:
    """Log a model to the current run of MLflow.

    Parameters
    ----------
    model, coverage : as for `save_model`
    name : str, default "model"
        What the run calls the model.
    **about
        Passed on to `mlflow.pyfunc.log_model`, as registered_model_name=.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its `model_uri` is what `mlflow.pyfunc.load_model` and `load_model` take.
    """
    with _saved(model, coverage) as folder:
        return mlflow.pyfunc.log_model(name=name, **_flavour(folder, coverage, about))


def load_model(model_uri: str | Path) -> Any:
    """The estimator itself, with everything that it can do: as `sparsegp.load` of the file that MLflow keeps.

    Parameters
    ----------
    model_uri : str or Path
        A folder, or a URI of MLflow as "runs:/.../model".
    """
    from mlflow.artifacts import download_artifacts

    folder = Path(download_artifacts(artifact_uri=str(model_uri)))
    described = Model.load(folder).flavors.get(mlflow.pyfunc.FLAVOR_NAME, {})
    if described.get(mlflow.pyfunc.MAIN) != __name__:
        raise InputError(
            f"{model_uri} is not a model that sparsegp saved: its loader is {described.get(mlflow.pyfunc.MAIN)!r}. "
            "Load it with mlflow.pyfunc.load_model."
        )
    return load(folder / described[mlflow.pyfunc.DATA] / FILE)


class _saved:
    """Within, a folder with the file of a model, for MLflow to copy."""

    def __init__(self, model: Any, coverage: float) -> None:
        if not isinstance(model, Estimator | PipelineRegressor):
            raise InputError(
                f"model must be a fitted estimator of sparsegp, or sparsegp.wrap(pipeline); got {type(model).__name__}."
            )
        _require_probability(coverage)
        self.model, self.folder = model, tempfile.TemporaryDirectory()

    def __enter__(self) -> Path:
        folder = Path(self.folder.name)
        self.model.save(folder / FILE)
        return folder

    def __exit__(self, *error: Any) -> None:
        self.folder.cleanup()


def _flavour(folder: Path, coverage: float, about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that MLflow gets for a model. Those of the caller take precedence."""
    outputs = Schema([ColSpec(DataType.double, name) for name in ANSWERS])
    parameters = ParamSchema([ParamSpec("coverage", DataType.double, coverage)])
    return {
        "loader_module": __name__,
        "data_path": str(folder),
        "model_config": {"coverage": coverage},
        "signature": ModelSignature(outputs=outputs, params=parameters),
        "pip_requirements": [f"sparsegp=={version('sparsegp')}"],
        **about,
    }


def _load_pyfunc(data_path: str, model_config: Mapping[str, Any] | None = None) -> "_PyFunc":
    """What MLflow calls."""
    return _PyFunc(load(Path(data_path) / FILE), float((model_config or {}).get("coverage", COVERAGE)))


class _PyFunc:
    """What `mlflow.pyfunc.load_model` gives: predict(X) is a table."""

    def __init__(self, model: Any, coverage: float) -> None:
        self.model, self.coverage = model, coverage

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        coverage = float((params or {}).get("coverage", self.coverage))
        _require_probability(coverage)
        forecast = self.model.forecast(model_input)
        columns = np.column_stack([forecast.mean, forecast.std, *forecast.interval(coverage)])
        return pd.DataFrame(columns, columns=list(ANSWERS), index=getattr(model_input, "index", None))


def _require_probability(coverage: Any) -> None:
    if not isinstance(coverage, int | float) or not 0.0 < coverage < 1.0:
        raise InputError(f"coverage is a probability strictly between 0 and 1, as 0.95 for 95%; got {coverage!r}.")

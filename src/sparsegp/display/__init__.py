"""Pictures of fitted models, as scikit-learn's Display classes: `from_estimator(model, X, y)` and `plot(ax)`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsegp.display.column_plots import EffectDisplay, ImportanceDisplay, RelevanceDisplay
    from sparsegp.display.curves import AnytimeDisplay, LearningCurveDisplay
    from sparsegp.display.forecast import MapDisplay, PredictionDisplay
    from sparsegp.display.residuals import CalibrationDisplay, CoverageDisplay, ResidualsDisplay

__all__ = [
    "AnytimeDisplay",
    "CalibrationDisplay",
    "CoverageDisplay",
    "EffectDisplay",
    "ImportanceDisplay",
    "LearningCurveDisplay",
    "MapDisplay",
    "PredictionDisplay",
    "RelevanceDisplay",
    "ResidualsDisplay",
]

# Imported when first asked for: most pictures are drawn without torch.
_HOMES = {
    "AnytimeDisplay": "curves",
    "LearningCurveDisplay": "curves",
    "MapDisplay": "forecast",
    "PredictionDisplay": "forecast",
    "EffectDisplay": "column_plots",
    "ImportanceDisplay": "column_plots",
    "RelevanceDisplay": "column_plots",
    "CalibrationDisplay": "residuals",
    "CoverageDisplay": "residuals",
    "ResidualsDisplay": "residuals",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsegp.display' has no attribute {name!r}")
    value = getattr(import_module(f"sparsegp.display.{_HOMES[name]}"), name)
    globals()[name] = value
    return value

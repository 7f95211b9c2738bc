"""Pictures of fitted models, as scikit-learn's Display classes: `from_estimator(model, X, y)` and `plot(ax)`."""

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

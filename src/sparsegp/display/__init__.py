"""Pictures of fitted models, as scikit-learn's Display classes: `from_estimator(model, X, y)` and `plot(ax)`."""

from sparsegp.display.anytime import AnytimeDisplay
from sparsegp.display.calibration import CalibrationDisplay
from sparsegp.display.learning_curve import LearningCurveDisplay
from sparsegp.display.map import MapDisplay
from sparsegp.display.prediction import PredictionDisplay
from sparsegp.display.relevance import RelevanceDisplay
from sparsegp.display.residuals import ResidualsDisplay

__all__ = [
    "AnytimeDisplay",
    "CalibrationDisplay",
    "LearningCurveDisplay",
    "MapDisplay",
    "PredictionDisplay",
    "RelevanceDisplay",
    "ResidualsDisplay",
]

"""How a fit stands after a step, and what `info_` says of how it came about."""

from dataclasses import dataclass, field
from typing import Any

from sparsegp.calibration.calibration import Calibration
from sparsegp.fit.budget import Budget
from sparsegp.fit.committee_model import CommitteeModel
from sparsegp.fit.learned_noise import LearnedNoiseModel
from sparsegp.fit.model import Model
from sparsegp.learn.trace import LearningResult

LEARNING = "learning"
INFERENCE = "inference"


@dataclass(frozen=True)
class Progress:
    """How a fit stands after a published step.

    `seconds` is the time worked since the call, without that of the reader and of scoring. `rows_seen` and `fraction`
    say how many rows, and which part of all, are behind the present posterior. `log_evidence` is the estimate for all
    rows. `error` is the sampling error that unseen rows leave in the predictive mean, relative to the predictive std,
    at the worst of some probes (None: not known yet). `scores` are rmse and nlpd on the validation set. `stage` is
    "learning" or "inference". The last Progress has a `reason`. `model` and `info` are what the fit has come to.
    """

    step: int
    seconds: float
    rows_seen: float
    fraction: float
    log_evidence: float
    error: float | None
    stage: str
    scores: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    is_exact: bool = field(default=False, repr=False)
    model: Any = field(default=None, repr=False, compare=False)
    info: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    calibration: Calibration | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        model: Model | LearnedNoiseModel | CommitteeModel,
        info: dict[str, Any],
        step: int,
        rows_seen: float,
        fraction: float,
        budget: Budget,
        **said: Any,
    ) -> "Progress":
        """A model of all rows by inference, unless something else is `said`."""
        said = {"error": None, "stage": INFERENCE, "is_exact": True, "model": model, "info": info, **said}
        return cls(step, budget.used, rows_seen, fraction, model.log_evidence, **said)


def budget_report(budget: Budget, rows_seen: float, fraction: float, reason: str | None) -> dict[str, Any]:
    """What `info_["budget"]` says."""
    seen = {"rows_seen": rows_seen, "fraction": fraction, "reason": reason}
    return {"asked": budget.asked, "used": budget.used, **seen}


def learning_report(learning: list[LearningResult], jitter: float, inference_seconds: float) -> dict[str, Any]:
    return {
        "jitter": jitter,
        "inference_seconds": inference_seconds,
        "learning_seconds": sum(stage.seconds for stage in learning),
        "evaluations": sum(stage.evaluations for stage in learning),
        "stages": learning,
    }

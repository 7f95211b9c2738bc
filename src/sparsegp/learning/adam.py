"""Adam on the exact gradient: for kernels with many weights, where L-BFGS's curvature pairs mislead."""

import numpy as np

from sparsegp.learning.adam_steps import AdamSteps
from sparsegp.learning.deadline import OUT_OF_TIME, Deadline
from sparsegp.learning.hyperparameters import Hyperparameters, Limits
from sparsegp.learning.objective import Objective
from sparsegp.learning.recorder import LearningResult, Recorder, StepCallback

RATE = 0.03
PATIENCE = 20


def maximize(
    objective: Objective,
    hyper: Hyperparameters,
    limits: Limits,
    *,
    max_iterations: int = 200,
    tolerance: float = 1e-6,
    on_step: StepCallback | None = None,
    deadline: Deadline | None = None,
) -> LearningResult:
    """Climb the objective by Adam steps, in place, inside the same box and with the same tolerance as L-BFGS.

    Single steps may go down, so convergence is judged over windows of PATIENCE steps.
    """
    recorder = Recorder(objective, hyper, on_step, deadline)
    lower, upper = hyper.box(limits)
    vector, adam = recorder.best_vector.copy(), AdamSteps()
    window_start, reason = -np.inf, "iteration limit"
    for step in range(1, max_iterations + 1):
        with recorder.keeping_best():
            loss, gradient = recorder(vector)
        if recorder.out_of_time:
            return recorder.finish(step - 1, OUT_OF_TIME)
        vector = np.clip(vector + adam.step(-gradient, RATE), lower, upper)
        if recorder.wants_stop():
            return recorder.finish(step, "stopped by the caller", stopped=True)
        if step % PATIENCE == 0:
            gain = (recorder.best_value - window_start) / objective.n_rows
            if gain < PATIENCE * tolerance * max(abs(loss), 1.0):
                reason = "converged"
                break
            window_start = recorder.best_value
    return recorder.finish(step, reason)

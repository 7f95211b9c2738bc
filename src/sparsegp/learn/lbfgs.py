"""L-BFGS-B on the hyper-parameters, with restarts when a factorisation or a line search fails."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import Objective
from sparsegp.learn.trace import OUT_OF_TIME, Deadline, LearningResult, Recorder, StepCallback
from sparsegp.parallel import one_scipy_thread

CORRECTIONS = 10
RESTARTS = 2


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
    """Climb the objective from the given hyper-parameters, in place; they end at the best point found.

    An iteration that gains less than `tolerance` times max(|objective per row|, 1) per row has converged.
    """
    recorder = Recorder(objective, hyper, on_step, deadline)
    iterations, reason, stopped = 0, "", False

    def after_iteration(_: NDArray[np.float64]) -> None:
        nonlocal iterations, stopped
        iterations += 1
        stopped = recorder.wants_stop()
        if stopped:
            raise StopIteration

    for _ in range(1 + RESTARTS):
        failures = recorder.failures
        with recorder.keeping_best(), one_scipy_thread():
            result = minimize(
                recorder,
                recorder.best_vector,
                jac=True,
                method="L-BFGS-B",
                bounds=hyper.bounds(limits),
                callback=after_iteration,
                options={
                    "maxiter": max_iterations - iterations,
                    "maxcor": CORRECTIONS,
                    "ftol": tolerance,
                    "gtol": 1e-9,
                },
            )
            reason = str(result.message)
        if recorder.out_of_time:
            return recorder.finish(iterations, OUT_OF_TIME)
        if iterations >= max_iterations or stopped or (result.success and recorder.failures == failures):
            break
    return recorder.finish(iterations, reason, stopped=stopped)

"""Adam on the exact gradient: for kernels with many weights, where L-BFGS's curvature pairs mislead."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sparsegp.core.reasons import OUT_OF_TIME
from sparsegp.learn.hyperparameters import Hyperparameters, Limits
from sparsegp.learn.objective import Objective
from sparsegp.learn.trace import Deadline, LearningResult, Recorder, StepCallback

EPSILON = 1e-8


@dataclass
class AdamSteps:
    """Running means of gradients and of their squares, with the decay rates `betas`."""

    betas: tuple[float, float] = (0.9, 0.999)
    count: int = 0
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    square: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def step(self, gradient: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
        """What to add to the parameters to go up along the gradient."""
        first, second = self.betas
        self.count += 1
        self.mean = first * self.mean + (1.0 - first) * gradient
        self.square = second * self.square + (1.0 - second) * np.square(gradient)
        root = np.sqrt(self.square / (1.0 - second**self.count))
        move: NDArray[np.float64] = rate / (1.0 - first**self.count) * self.mean / (root + EPSILON)
        return move


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

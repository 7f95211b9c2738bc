"""What a fit will cost before it starts: a cost model in one place, and the constants of the machine."""

from sparsegp.planning.calibration import measured
from sparsegp.planning.estimate import Estimate
from sparsegp.planning.machine import Machine
from sparsegp.planning.plan_result import Plan
from sparsegp.planning.planner import plan

__all__ = ["Estimate", "Machine", "Plan", "measured", "plan"]

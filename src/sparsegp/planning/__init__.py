"""What a fit will cost before it starts: a cost model in one place, and the constants of the machine."""

from sparsegp.planning.estimate import Estimate
from sparsegp.planning.machine import Machine, measured
from sparsegp.planning.planner import Plan, duration, plan, size

__all__ = ["Estimate", "Machine", "Plan", "duration", "measured", "plan", "size"]

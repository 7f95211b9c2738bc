"""What an engine is: a way of folding the statistics of blocks into a posterior, one block at a time.

    init(prior) -> State             the prior: nothing was seen
    step(state, block) -> (State, Info)   one block more; the state before it stays as it was

Statistics of blocks are a commutative group, so every engine ends where batch inference ends, whatever the order:

| engine | fold |
|---|---|
| `batch` | the sum over all blocks in one pass |
| `recursive` | add one block, in information or in Kalman form |
| `revise` | exchange, forget, decay and merge |
| `anytime` | a convex combination with sampled blocks: natural-gradient ascent |

`sparsegp.testing.check_engine(init, step)` checks an engine of your own.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from sparsegp.core.block import Block
from sparsegp.core.posterior import InducingPosterior
from sparsegp.core.prior import SparsePrior


class EngineState(Protocol):
    """What every state can say: the posterior q(v) of the whitened inducing values."""

    @property
    def q(self) -> InducingPosterior: ...


class EngineInfo(Protocol):
    """What every step reports: psi = log p(block | blocks before), the time it took, and the jitter it needed."""

    @property
    def psi(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def jitter(self) -> float: ...


State = TypeVar("State", bound=EngineState)
Init = Callable[[SparsePrior], State]
Step = Callable[[State, Block], tuple[State, EngineInfo]]

"""The iterate of natural-gradient ascent itself as what an unfinished run says (000 eq. 26), and its sampling error.

It is unbiased for the natural parameters of all rows. The library scales it to the number of all rows, which has less
variance where block sizes differ.
"""

import torch
from torch import Tensor

from sparsegp.core.posterior import InducingPosterior
from sparsegp.errors import InputError
from sparsegp.infer.anytime import AnytimeState
from sparsegp.infer.stopping import FEWEST_BLOCKS, influences, sampling_error


@torch.no_grad()
def standard_error(state: AnytimeState, slopes: Tensor, *, fraction: float = 1.0) -> Tensor:
    """se of slopes @ (mean of the iterate): (fraction * spread * Var_s(phi_s/p_s))^(1/2).

    `fraction` is 1 - t/K after t of K blocks without replacement, else 1.
    """
    if len(state.recent) < FEWEST_BLOCKS:
        raise InputError(
            f"A sampling error needs {FEWEST_BLOCKS} blocks to judge from; the state remembers {len(state.recent)}. "
            "Take more steps, with an engine whose n_recent is larger."
        )
    q = InducingPosterior.from_statistics(state.iterate)
    return sampling_error(state, influences(state.recent, state.iterate, q, slopes), fraction)

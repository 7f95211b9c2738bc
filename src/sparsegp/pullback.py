"""Adjoints pushed back through a graph of torch."""

from typing import Any

import torch
from torch import Tensor


class _Pairing(torch.autograd.Function):
    """A scalar whose gradient for `value` is `adjoint`; its own value, <value, adjoint>, is not computed."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, adjoint: Tensor) -> Tensor:
        ctx.adjoint = adjoint
        return value.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.adjoint, None


def push_back(value: Tensor, adjoint: Tensor) -> None:
    """Add the gradient of <value, adjoint> to the `.grad` of the parameters; nothing if `value` depends on none.

    As `value.backward(adjoint)`, which on its first call imports sympy: one to three seconds of a first fit.
    """
    if value.requires_grad:
        with torch.enable_grad():
            _Pairing.apply(value, adjoint).backward()  # type: ignore[no-untyped-call]

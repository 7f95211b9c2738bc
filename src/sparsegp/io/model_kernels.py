"""Kernels as data: the name of the class, its numbers, and the kernels it is made of."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparsegp import kernels
from sparsegp.errors import ModelFileError
from sparsegp.kernels import Kernel

BUILT_IN: Mapping[str, type[Kernel]] = {
    cls.__name__: cls
    for cls in (
        kernels.Constant,
        kernels.Linear,
        kernels.Matern12,
        kernels.Matern32,
        kernels.Matern52,
        kernels.Periodic,
        kernels.Power,
        kernels.Product,
        kernels.RationalQuadratic,
        kernels.Rescaled,
        kernels.SquaredExponential,
        kernels.Sum,
    )
}
_INTERNAL = frozenset(vars(torch.nn.Module()))


def kind(kernel: Kernel) -> str:
    return type(kernel).__name__


def is_built_in(kernel: Kernel) -> bool:
    return BUILT_IN.get(kind(kernel)) is type(kernel)


def find(name: str, given: Mapping[str, type[Kernel]], *, custom: bool) -> type[Kernel]:
    """The class of a name: of this package, or for a kernel of the user's own the class that the caller gives."""
    known = given if custom else BUILT_IN
    if name not in known:
        raise ModelFileError(
            f"the model has a kernel of class {name!r}, which is not part of sparsegp. Model files hold no code: give "
            f"the class to load, as in sparsegp.load(path, kernels={{{name!r}: {name}}})"
        )
    cls = known[name]
    if not (isinstance(cls, type) and issubclass(cls, Kernel)):
        raise ModelFileError(f"kernels[{name!r}] must be a class derived from sparsegp.kernels.Kernel; got {cls!r}")
    return cls


def take_apart(kernel: Kernel) -> dict[str, Any]:
    """Plain attributes, learned parameters, fixed tensors, and inner kernels."""
    inner = {name: _parts(kernel, name, module) for name, module in kernel.named_children()}
    return {
        "attributes": {name: value for name, value in vars(kernel).items() if name not in _INTERNAL},
        "parameters": dict(kernel.named_parameters(recurse=False)),
        "buffers": dict(kernel.named_buffers(recurse=False)),
        "kernels": inner,
    }


def _parts(kernel: Kernel, name: str, module: torch.nn.Module) -> Any:
    if isinstance(module, Kernel):
        return module
    parts = list(module) if isinstance(module, torch.nn.ModuleList) else [None]
    if not all(isinstance(part, Kernel) for part in parts):
        raise ModelFileError(
            f"{kind(kernel)}.{name} is a {type(module).__name__}, which a model file cannot hold. Keep its tensors as "
            "parameters or buffers of the kernel itself; inner kernels may be attributes or in a ModuleList."
        )
    return parts


def put_together(cls: type[Kernel], values: Mapping[str, Any]) -> Kernel:
    """A kernel with these values; its constructor is not called."""
    kernel = cls.__new__(cls)
    Kernel.__init__(kernel)
    for name, value in values["attributes"].items():
        setattr(kernel, _checked(cls, name), value)
    for name, value in values["parameters"].items():
        kernel.register_parameter(_checked(cls, name), torch.nn.Parameter(_tensor(value)))
    for name, value in values["buffers"].items():
        kernel.register_buffer(_checked(cls, name), _tensor(value))
    for name, value in values["kernels"].items():
        kernel.add_module(_checked(cls, name), torch.nn.ModuleList(value) if isinstance(value, list) else value)
    return kernel


def _checked(cls: type[Kernel], name: str) -> str:
    """The name of a value, never one of a method or of the internals of a module."""
    if not name.isidentifier() or name in _INTERNAL or name.startswith("__") or callable(getattr(cls, name, None)):
        raise ModelFileError(f"a kernel of class {cls.__name__!r} cannot have a value called {name!r}")
    return name


def _tensor(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise ModelFileError(f"a parameter of a kernel is a {type(value).__name__}, expected a tensor")
    return value.clone()

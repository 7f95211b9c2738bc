"""Kernels as records: those of this package by their formula and numbers, the user's own by the name of their class."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsegp import kernels
from sparsegp.errors import ModelFileError
from sparsegp.files.schema import CustomKernel, KernelNode
from sparsegp.files.schema import Kernel as KernelRecord
from sparsegp.files.typed_json import TensorValue
from sparsegp.kernels import Kernel, Stationary

Classes = Mapping[str, type[Kernel]]
Array = np.ndarray[Any, Any]


class _Form(NamedTuple):
    """Of a built-in kernel, the names in the file of its learned and fixed arrays, and of its plain attributes."""

    cls: type[Kernel]
    parameters: Mapping[str, str]
    buffers: Mapping[str, str] = {}
    attributes: Mapping[str, str] = {}
    part: str | None = None
    parts: str | None = None


_VARIANCE = {"log_variance": "log_variance"}
_STATIONARY = {**_VARIANCE, "log_lengthscales": "log_lengthscales"}
_UNITS = {"units": "units"}
_FORMS: Mapping[str, _Form] = {
    "squared_exponential": _Form(kernels.SquaredExponential, _STATIONARY, _UNITS),
    "matern12": _Form(kernels.Matern12, _STATIONARY, _UNITS),
    "matern32": _Form(kernels.Matern32, _STATIONARY, _UNITS),
    "matern52": _Form(kernels.Matern52, _STATIONARY, _UNITS),
    "rational_quadratic": _Form(kernels.RationalQuadratic, {**_STATIONARY, "log_shape": "log_shape"}, _UNITS),
    "periodic": _Form(kernels.Periodic, {**_STATIONARY, "log_period": "log_period"}, _UNITS),
    "linear": _Form(kernels.Linear, _VARIANCE, {**_UNITS, "center": "center"}),
    "constant": _Form(kernels.Constant, _VARIANCE),
    "great_circle": _Form(
        kernels.GreatCircle, {**_VARIANCE, "log_lengthscales": "log_lengthscales"}, attributes={"profile": "profile"}
    ),
    "sum": _Form(kernels.Sum, {}, parts="parts"),
    "product": _Form(kernels.Product, {}, parts="parts"),
    "power": _Form(kernels.Power, {}, attributes={"exponent": "exponent"}, part="base"),
    "rescaled": _Form(
        kernels.Rescaled,
        {},
        {"input_shift": "x_shift", "input_scale": "x_scale"},
        {"output_scale": "y_scale"},
        part="kernel",
    ),
}
_KINDS = {form.cls: kind for kind, form in _FORMS.items()}
_INTERNAL = frozenset(vars(torch.nn.Module()))


def describe(kernel: Kernel) -> KernelRecord:
    writer = _Writer()
    writer.number(kernel)
    return KernelRecord(nodes=writer.nodes)


def restore(record: KernelRecord, classes: Classes) -> Kernel:
    """The kernel of a record; `classes` are those of the user's own kernels, by name."""
    made: list[Kernel] = []
    for node in record.nodes:
        made.append(_custom(node.custom, made, classes) if node.kind == "custom" else _built_in(node, made))
    if not made:
        raise ModelFileError("a kernel has no nodes")
    return made[-1]


class _Writer:
    """Nodes of a tree of kernels, parts first. A kernel that is met twice is one node."""

    def __init__(self) -> None:
        self.nodes: list[KernelNode] = []
        self._numbers: dict[int, int] = {}

    def number(self, kernel: Kernel) -> int:
        if id(kernel) not in self._numbers:
            kind = _KINDS.get(type(kernel))
            node = self._custom(kernel) if kind is None else self._built_in(kind, kernel)
            self.nodes.append(node)
            self._numbers[id(kernel)] = len(self.nodes) - 1
        return self._numbers[id(kernel)]

    def _built_in(self, kind: str, kernel: Kernel) -> KernelNode:
        form = _FORMS[kind]
        inner = [getattr(kernel, form.part)] if form.part else list(getattr(kernel, form.parts)) if form.parts else []
        tensors = {**form.parameters, **form.buffers}
        values: dict[str, Any] = {field: _array(getattr(kernel, own)) for field, own in tensors.items()}
        values |= {field: getattr(kernel, own) for field, own in form.attributes.items()}
        return KernelNode(
            kind=kind,
            active_columns=None if kernel.active_dims is None else list(kernel.active_dims),
            parts=[self.number(part) for part in inner] or None,
            groups=list(kernel.groups) if isinstance(kernel, Stationary) and kernel.groups is not None else None,
            **values,
        )

    def _custom(self, kernel: Kernel) -> KernelNode:
        parts = {name: self._parts(kernel, name, module) for name, module in kernel.named_children()}
        plain = {name: value for name, value in vars(kernel).items() if name not in _INTERNAL}
        custom = CustomKernel(
            class_name=type(kernel).__name__,
            attributes={name: _without_tensors(value) for name, value in plain.items()},
            parameters={name: _array(value) for name, value in kernel.named_parameters(recurse=False)},
            buffers={name: _array(value) for name, value in kernel.named_buffers(recurse=False)},
            parts=parts,
        )
        return KernelNode(kind="custom", custom=custom)

    def _parts(self, kernel: Kernel, name: str, module: torch.nn.Module) -> int | list[int]:
        if isinstance(module, Kernel):
            return self.number(module)
        parts = list(module) if isinstance(module, torch.nn.ModuleList) else [None]
        if not all(isinstance(part, Kernel) for part in parts):
            raise ModelFileError(
                f"{type(kernel).__name__}.{name} is a {type(module).__name__}, which a model file cannot hold. Keep "
                "its tensors as parameters or buffers of the kernel itself; inner kernels may be attributes or in a "
                "ModuleList."
            )
        return [self.number(part) for part in parts if isinstance(part, Kernel)]


def _array(value: Tensor) -> Array:
    array: Array = value.detach().cpu().numpy().copy()
    return array


def _without_tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorValue(_array(value))
    if isinstance(value, list | tuple):
        return type(value)(map(_without_tensors, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {key: _without_tensors(item) for key, item in value.items()}
    return value


def _with_tensors(value: Any) -> Any:
    if isinstance(value, TensorValue):
        return torch.from_numpy(value.array.copy())
    if isinstance(value, list | tuple):
        return type(value)(map(_with_tensors, value))
    if isinstance(value, dict):
        return {key: _with_tensors(item) for key, item in value.items()}
    return value


def _empty(cls: type[Kernel]) -> Kernel:
    """A kernel without values; its constructor is not called."""
    kernel = cls.__new__(cls)
    Kernel.__init__(kernel)
    return kernel


def _built_in(node: KernelNode, made: Sequence[Kernel]) -> Kernel:
    form = _FORMS[node.kind]
    kernel = _empty(form.cls)
    columns = node.active_columns
    kernel.active_dims = None if columns is None else tuple(columns)
    for field, own in form.attributes.items():
        setattr(kernel, own, _present(node, field))
    for field, own in form.parameters.items():
        kernel.register_parameter(own, torch.nn.Parameter(_tensor(_present(node, field))))
    for field, own in form.buffers.items():
        kernel.register_buffer(own, _tensor(_present(node, field)))
    if node.groups is not None:
        _tie(kernel, node.groups)
    inner = [_made(made, number) for number in node.parts or ()]
    if form.parts is not None:
        kernel.add_module(form.parts, torch.nn.ModuleList(inner))
    elif form.part is not None:
        (only,) = inner
        kernel.add_module(form.part, only)
    return kernel


def _tie(kernel: Kernel, groups: list[int]) -> None:
    """Columns of a group share a lengthscale."""
    if not isinstance(kernel, Stationary) or set(groups) != set(range(kernel.log_lengthscales.numel())):
        raise ModelFileError(
            f"a kernel of class {type(kernel).__name__} has the groups {groups}, which are not its own"
        )
    kernel.groups = tuple(groups)


def _present(node: KernelNode, field: str) -> Any:
    value = getattr(node, field)
    if value is None:
        raise ModelFileError(f"a kernel of kind {node.kind!r} lacks {field}")
    return value


def _custom(record: CustomKernel | None, made: Sequence[Kernel], classes: Classes) -> Kernel:
    if record is None:
        raise ModelFileError("a custom kernel lacks its values")
    cls = _class_of(record.class_name, classes)
    kernel = _empty(cls)
    for name, value in record.attributes.items():
        setattr(kernel, _checked(cls, name), _with_tensors(value))
    for name, array in record.parameters.items():
        kernel.register_parameter(_checked(cls, name), torch.nn.Parameter(_tensor(array)))
    for name, array in record.buffers.items():
        kernel.register_buffer(_checked(cls, name), _tensor(array))
    for name, numbers in record.parts.items():
        several = isinstance(numbers, list)
        inner = [_made(made, number) for number in (numbers if several else [numbers])]
        kernel.add_module(_checked(cls, name), torch.nn.ModuleList(inner) if several else inner[0])
    return kernel


def _class_of(name: str, classes: Classes) -> type[Kernel]:
    """The class that the caller gives for a kernel of the user's own."""
    if name not in classes:
        raise ModelFileError(
            f"the model has a kernel of class {name!r}, which is not part of sparsegp. Model files hold no code: give "
            f"the class to load, as in sparsegp.load(path, kernels={{{name!r}: {name}}})"
        )
    cls = classes[name]
    if not (isinstance(cls, type) and issubclass(cls, Kernel)):
        raise ModelFileError(f"kernels[{name!r}] must be a class derived from sparsegp.kernels.Kernel; got {cls!r}")
    return cls


def _checked(cls: type[Kernel], name: str) -> str:
    """The name of a value, never one of a method or of the internals of a module."""
    if not name.isidentifier() or name in _INTERNAL or name.startswith("__") or callable(getattr(cls, name, None)):
        raise ModelFileError(f"a kernel of class {cls.__name__!r} cannot have a value called {name!r}")
    return name


def _made(made: Sequence[Kernel], number: Any) -> Kernel:
    if not isinstance(number, int) or not 0 <= number < len(made):
        raise ModelFileError(f"a kernel is made of node {number!r}, which does not come before it")
    return made[number]


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.copy())

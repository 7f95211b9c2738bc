"""Objects as data: JSON for the structure, named tensors for the numbers, and back by a list of known types.

Reading builds only types of that list, from values that fit the annotations of their fields. An object that is met
twice is written once, so what was shared stays shared.
"""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from sparsegp.errors import ModelFileError
from sparsegp.io import model_kernels
from sparsegp.kernels import Kernel

Fields = dict[str, Any]


@dataclass(frozen=True)
class RecordType:
    """How objects of a class become named values, and how they are made from them again."""

    cls: type[Any]
    take_apart: Callable[[Any], Fields]
    put_together: Callable[[Fields], Any]

    @property
    def name(self) -> str:
        return self.cls.__name__


def plain(cls: type[Any], leave_out: Sequence[str] = ()) -> RecordType:
    """A dataclass by its fields. A field that a file does not have yet takes its default."""
    kept = [field for field in fields(cls) if field.name not in leave_out]
    names = {field.name for field in kept}
    needed = {f.name for f in kept if f.default is MISSING and f.default_factory is MISSING}
    hints = get_type_hints(cls)

    def put_together(values: Fields) -> Any:
        if not needed <= values.keys() <= names:
            raise ModelFileError(f"a {cls.__name__} has the fields {sorted(values)} instead of {sorted(names)}")
        for name, value in values.items():
            require_fit(f"{cls.__name__}.{name}", value, hints[name])
        return cls(**values)

    return RecordType(cls, lambda value: {name: getattr(value, name) for name in names}, put_together)


def require_fit(name: str, value: Any, hint: Any) -> None:
    if not _fits(value, hint):
        raise ModelFileError(f"{name} is a {type(value).__name__}, expected {hint}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, as far as classes, unions and tuples or lists of them go."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is not None:
        return not isinstance(origin, type) or isinstance(value, origin)
    if not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint)


class Encoder:
    """Values to JSON; tensors are collected on the way."""

    def __init__(self, types: Sequence[RecordType], enums: Sequence[type[Enum]]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._types = {record.cls: record for record in types}
        self._enums = set(enums)
        self._numbers: dict[int, int] = {}
        self._tensor_names: dict[int, str] = {}
        self._alive: list[Any] = []  # keeps ids from being used again

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | str | int):
            return value
        if isinstance(value, np.generic):
            return self.encode(value.item())
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, Tensor):
            return {"$tensor": self._keep(value, value)}
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, tuple | list):
            return {f"${'tuple' if isinstance(value, tuple) else 'list'}": [self.encode(item) for item in value]}
        if isinstance(value, Mapping):
            return {"$dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if type(value) in self._enums:
            return {"$enum": type(value).__name__, "value": value.value}
        return self._shared(value)

    def _shared(self, value: Any) -> Any:
        if id(value) in self._numbers:
            return {"$ref": self._numbers[id(value)]}
        if isinstance(value, Kernel):
            form = {"$kernel": model_kernels.kind(value), "custom": not model_kernels.is_built_in(value)}
            values = model_kernels.take_apart(value)
        elif type(value) in self._types:
            record = self._types[type(value)]
            form, values = {"$record": record.name}, record.take_apart(value)
        else:
            raise ModelFileError(
                f"A model file cannot hold a {type(value).__name__} ({value!r:.80}). It holds numbers, text, tensors, "
                "kernels and the parts of fitted models. In a kernel of your own, keep only those in its attributes."
            )
        form["values"] = {name: self.encode(item) for name, item in values.items()}
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return {**form, "id": number}

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.kind in "OUT":
            return {"$names": [str(item) for item in value.tolist()]}
        return {"$array": self._keep(value, torch.from_numpy(np.ascontiguousarray(value)))}

    def _keep(self, owner: Any, tensor: Tensor) -> str:
        if id(owner) not in self._tensor_names:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = tensor.detach().cpu().contiguous().clone()
            self._tensor_names[id(owner)] = name
            self._alive.append(owner)
        return self._tensor_names[id(owner)]


class Decoder:
    """JSON and tensors to values."""

    def __init__(
        self,
        types: Sequence[RecordType],
        enums: Sequence[type[Enum]],
        tensors: Mapping[str, Tensor],
        kernels: Mapping[str, type[Kernel]],
    ) -> None:
        self._types = {record.name: record for record in types}
        self._enums = {enum.__name__: enum for enum in enums}
        self._tensors, self._kernels = tensors, kernels
        self._made: dict[int, Any] = {}

    def decode(self, form: Any) -> Any:
        if not isinstance(form, dict | list):
            return form
        (tag, *_) = (key for key in form if key.startswith("$"))
        return self._READERS[tag](self, form[tag], form)

    def _sequence(self, items: Any, form: Any) -> Any:
        values = [self.decode(item) for item in items]
        return tuple(values) if "$tuple" in form else values

    def _enum(self, name: str, form: Any) -> Any:
        return self._enums[name](form["value"])

    def _record(self, name: str, form: Any) -> Any:
        return self._remember(form, self._types[name].put_together(self._values(form)))

    def _kernel(self, name: str, form: Any) -> Any:
        cls = model_kernels.find(name, self._kernels, custom=bool(form["custom"]))
        return self._remember(form, model_kernels.put_together(cls, self._values(form)))

    def _values(self, form: Any) -> Fields:
        return {name: self.decode(item) for name, item in form["values"].items()}

    def _remember(self, form: Any, value: Any) -> Any:
        self._made[form["id"]] = value
        return value

    _READERS: Mapping[str, Callable[["Decoder", Any, Any], Any]] = {
        "$float": lambda self, text, form: float(text),
        "$tensor": lambda self, name, form: self._tensors[name],
        "$array": lambda self, name, form: self._tensors[name].numpy(),
        "$names": lambda self, names, form: np.array(names, dtype=object),
        "$tuple": _sequence,
        "$list": _sequence,
        "$dict": lambda self, items, form: {self.decode(key): self.decode(item) for key, item in items},
        "$enum": _enum,
        "$ref": lambda self, number, form: self._made[number],
        "$record": _record,
        "$kernel": _kernel,
    }

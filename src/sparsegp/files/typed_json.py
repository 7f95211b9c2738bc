"""Records to JSON and named arrays, and back with every type checked. An array is named by its path in the record."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from sparsegp.errors import ModelFileError
from sparsegp.files import schema

ARRAY, TENSOR, NUMBER, TUPLE, PAIRS, TEXTS = "$array", "$tensor", "$number", "$tuple", "$pairs", "$texts"

Array = NDArray[Any]
LARGEST_LOGARITHM = 700.0  # exp of it is a number yet
LIMITS: Mapping[str, Callable[[Any], Any]] = {
    schema.FINITE: np.isfinite,
    schema.POSITIVE: lambda values: np.isfinite(values) & (values > 0),
    schema.NOT_NEGATIVE: lambda values: np.isfinite(values) & (values >= 0),
    schema.NOT_ZERO: lambda values: np.isfinite(values) & (values != 0),
    schema.SHARE: lambda values: (values >= 0) & (values <= 1),
    schema.LOGARITHM: lambda values: np.abs(values) <= LARGEST_LOGARITHM,
    schema.ANY_VALUE: lambda values: True,
}
Record = TypeVar("Record")


@dataclass(frozen=True)
class TensorValue:
    """An array within free values that was a tensor of torch."""

    array: Array


def to_json(record: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """(description, arrays) of a record. Fields that are None are left out."""
    writer = _Writer()
    return writer.record(record, ""), writer.arrays


def from_json(cls: type[Record], description: Any, arrays: Mapping[str, Array]) -> Record:
    return build(cls, with_arrays(description, arrays))


def with_arrays(description: Any, arrays: Mapping[str, Array]) -> Any:
    """The description as a tree: its arrays in the places that name them."""
    if isinstance(description, list):
        return [with_arrays(item, arrays) for item in description]
    if not isinstance(description, dict):
        return description
    if ARRAY in description:
        return arrays[description[ARRAY]]
    if TENSOR in description:
        return {TENSOR: arrays[description[TENSOR]]}
    return {name: with_arrays(item, arrays) for name, item in description.items()}


def build(cls: type[Record], tree: Any, place: str = "") -> Record:
    """A record of a tree whose fields are all known, all there and all of their types."""
    if not isinstance(tree, dict):
        raise ModelFileError(f"{place or 'the description'} is {_kind(tree)}, expected the fields of {cls.__name__}")
    kind: Any = cls
    known, required = _fields(kind), _required(kind)
    if not required <= tree.keys() <= known.keys():
        extra, lacking = sorted(tree.keys() - known.keys()), sorted(required - tree.keys())
        raise ModelFileError(
            f"{place or 'the description'} lacks {lacking}"
            if lacking
            else f"{place or 'the description'} has the "
            f"fields {extra}, which this version does not know; upgrade sparsegp"
        )
    return cls(**{name: _value(known[name], tree[name], f"{place}.{name}".lstrip(".")) for name in tree})


@cache
def _fields(cls: Any) -> dict[str, tuple[Any, Field[Any]]]:
    """The type and the field of each name."""
    hints = get_type_hints(cls)
    return {field.name: (hints[field.name], field) for field in fields(cls)}


@cache
def _required(cls: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(cls) if field.default is MISSING)


def _value(known: tuple[Any, Field[Any]], value: Any, place: str) -> Any:
    hint, field = known
    found = _typed(hint, field, value, place)
    words = field.metadata["words"]
    if words and found is not None and found not in words:
        raise ModelFileError(f"{place} is {found!r}, expected one of {', '.join(words)}")
    return found


def _typed(hint: Any, field: Field[Any], value: Any, place: str) -> Any:
    """A value of the type of an annotation."""
    if hint is Any:
        return free_value(value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (part for part in arguments if part is not types.NoneType)
        return None if value is None else _typed(inner, field, value, place)
    if origin is np.ndarray:
        return _checked_array(field, value, place)
    if origin is list and isinstance(value, list):
        return [_typed(arguments[0], field, item, f"{place}.{i}") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {name: _typed(arguments[1], field, item, f"{place}.{name}") for name, item in value.items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return build(hint, value, place)
    if hint is float:
        value = free_value(value)
        value = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if origin is not None or not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ModelFileError(f"{place} is {_kind(value)}, expected {getattr(hint, '__name__', hint)}")
    if hint in (int, float):
        _require_limit(field, value, place)
    return value


def _require_limit(field: Field[Any], value: Any, place: str) -> None:
    limit = field.metadata["limit"]
    if not np.all(LIMITS[limit](value)):
        raise ModelFileError(f"{place} has a value that no fitted model has: expected {limit}")


def _checked_array(field: Field[Any], value: Any, place: str) -> Array:
    shape, kinds = field.metadata["shape"], field.metadata["kinds"]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
        raise ModelFileError(f"{place} is {_kind(value)}, expected an array of numbers")
    axes = len([axis for axis in shape.split(",") if axis])
    if shape != "any" and value.ndim != axes:
        raise ModelFileError(f"{place} has the shape {value.shape}, expected [{shape}]")
    _require_limit(field, value, place)
    return value


def _kind(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def free_value(form: Any) -> Any:
    """A value of any arrangement from its JSON."""
    if isinstance(form, list):
        return [free_value(item) for item in form]
    if not isinstance(form, dict):
        return form
    if NUMBER in form:
        return float(form[NUMBER])
    if TENSOR in form:
        return TensorValue(form[TENSOR])
    if TUPLE in form:
        return tuple(free_value(item) for item in form[TUPLE])
    if PAIRS in form:
        return {free_value(key): free_value(item) for key, item in form[PAIRS]}
    if TEXTS in form:
        return np.array(form[TEXTS], dtype=object)
    if any(name.startswith("$") for name in form):
        raise ModelFileError(f"it has values of the unknown kind {sorted(form)}; upgrade sparsegp")
    return {name: free_value(item) for name, item in form.items()}


class _Writer:
    """Values to JSON; arrays are collected on the way, under their paths."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def record(self, record: Any, place: str) -> dict[str, Any]:
        start = f"{place}." if place else ""
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return {name: self.value(value, start + name) for name, value in values.items() if value is not None}

    def value(self, value: Any, place: str) -> Any:
        if is_dataclass(value) and not isinstance(value, TensorValue | type):
            return self.record(value, place)
        if value is None or isinstance(value, bool | str | int):
            return value
        if isinstance(value, np.generic):
            return self.value(value.item(), place)
        if isinstance(value, float):
            return value if math.isfinite(value) else {NUMBER: str(value)}
        if isinstance(value, TensorValue):
            return {TENSOR: self._keep(value.array, place)}
        if isinstance(value, np.ndarray):
            return {TEXTS: list(map(str, value.tolist()))} if value.dtype.kind in "OUT" else self._array(value, place)
        if isinstance(value, list | tuple):
            items = [self.value(item, f"{place}.{i}") for i, item in enumerate(value)]
            return {TUPLE: items} if isinstance(value, tuple) else items
        if isinstance(value, Mapping):
            return self._mapping(value, place)
        raise ModelFileError(
            f"A model file cannot hold a {type(value).__name__} ({value!r:.80}), the value of {place}. It holds "
            "numbers, text, arrays, lists and dictionaries. In a kernel of your own, keep only those in its attributes."
        )

    def _mapping(self, value: Mapping[Any, Any], place: str) -> dict[str, Any]:
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: self.value(item, f"{place}.{key}") for key, item in value.items()}
        items = enumerate(value.items())
        return {PAIRS: [self.value([key, item], f"{place}.{i}") for i, (key, item) in items]}

    def _array(self, value: Array, place: str) -> dict[str, Any]:
        return {ARRAY: self._keep(value, place)}

    def _keep(self, value: Array, place: str) -> str:
        while place in self.arrays:  # names of the user's own may look like a path
            place += "'"
        self.arrays[place] = np.ascontiguousarray(value).reshape(value.shape)
        return place

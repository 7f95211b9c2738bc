"""The values of a model file as plain data: a record or a kernel is a dictionary of its fields, its kind and
whether its class is the user's own."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

KIND = "$kind"


class PlainDecoder:
    """JSON and arrays to dictionaries, lists and numbers. What was shared stays shared."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._made: dict[int, Any] = {}

    def decode(self, form: Any) -> Any:
        if not isinstance(form, dict):
            return form
        (tag, *_) = (key for key in form if key.startswith("$"))
        return self._READERS[tag](self, form[tag], form)

    def _sequence(self, items: Any, form: Any) -> list[Any]:
        return [self.decode(item) for item in items]

    def _fields(self, name: str, form: Any) -> dict[str, Any]:
        value = {KIND: name, "custom": form.get("custom", False)}
        value |= {field: self.decode(item) for field, item in form["values"].items()}
        self._made[form["id"]] = value
        return value

    _READERS: Mapping[str, Callable[["PlainDecoder", Any, Any], Any]] = {
        "$float": lambda self, text, form: float(text),
        "$tensor": lambda self, name, form: self._arrays[name],
        "$array": lambda self, name, form: self._arrays[name],
        "$names": lambda self, names, form: names,
        "$tuple": _sequence,
        "$list": _sequence,
        "$dict": lambda self, items, form: {self.decode(key): self.decode(item) for key, item in items},
        "$enum": lambda self, name, form: form["value"],
        "$ref": lambda self, number, form: self._made[number],
        "$record": _fields,
        "$kernel": _fields,
    }

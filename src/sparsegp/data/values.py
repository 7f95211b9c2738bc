"""Values of arrow columns of any type as numbers, texts and times."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparsegp.errors import InputError

Array = NDArray[np.float64]

DAY_US = 86_400_000_000
NUMBER_TYPE, BOOLEAN_TYPE, TEXT_TYPE, DATE_TYPE, TIME_TYPE, EMPTY_TYPE = (
    "numbers",
    "booleans",
    "text",
    "dates",
    "times of day",
    "nothing",
)
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$"
_DATE = r"^\d{1,6}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?$"
_CODE = r"^[+-]?0\d+$"
_MOST_LOOKED_AT = 10_000
_MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")


def family(kind: Any) -> str | None:
    """What the values of an arrow type are, in a word; None for types that are no column of a table."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    known = (
        (BOOLEAN_TYPE, (pa.types.is_boolean,)),
        (NUMBER_TYPE, (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_duration)),
        (TEXT_TYPE, is_text),
        (DATE_TYPE, (pa.types.is_date, pa.types.is_timestamp)),
        (TIME_TYPE, (pa.types.is_time,)),
        (EMPTY_TYPE, (pa.types.is_null,)),
    )
    return next((word for word, tests in known if any(test(kind) for test in tests)), None)


def one_array(column: Any) -> Any:
    """A chunked column as one array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
        column = column.combine_chunks()
    # arrow has fewer functions for views of text than for text
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def dense(column: Any) -> Any:
    """The values themselves where a column has a dictionary of them."""
    column = one_array(column)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def texts(values: Any) -> Any:
    """Each value as text: whole numbers alike whatever their type, missing values and empty texts as null."""
    values = dense(values)
    if family(values.type) == EMPTY_TYPE:
        return pa.nulls(len(values), pa.string())
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    found = values if pa.types.is_string(values.type) else values.cast(pa.string())
    if family(values.type) != TEXT_TYPE:
        return found
    found = pc.utf8_trim_whitespace(found)
    return pc.if_else(pc.equal(found, ""), pa.scalar(None, pa.string()), found)


def numbers(column: Any, name: str) -> Array:
    """Any column of numbers as float64, missing values as NaN; text that is a number is one."""
    column = dense(column)
    found = family(column.type)
    if found == TEXT_TYPE:
        column = _parsed(column, name)
    elif found in (DATE_TYPE, TIME_TYPE) or found is None:
        raise InputError(f"Column {name!r} has values of type {column.type}, expected numbers.")
    if pa.types.is_duration(column.type):
        unit = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[column.type.unit]
        return _as_float(column.cast(pa.int64())) * unit
    return _as_float(column)


def _as_float(column: Any) -> Array:
    if column.type != pa.float64():
        column = column.cast(pa.float64(), safe=False)
    found: Array = column.to_numpy(zero_copy_only=False)
    return found


def _parsed(column: Any, name: str) -> Any:
    """Numbers of texts, with or without commas between thousands; an error for the first that is none."""
    found = _without_missing_words(texts(column))
    is_number = is_number_text(found)
    if not pc.all(is_number, min_count=0).as_py():
        word = found.filter(pc.invert(is_number))[0].as_py()
        raise InputError(
            f"Column {name!r} is taken for numbers, but has the value {word!r}. Correct it, or say what the column is: "
            f"columns={{{name!r}: 'category'}} or 'ignore'."
        )
    return pc.replace_substring(found, ",", "").cast(pa.float64())


def _without_missing_words(found: Any) -> Any:
    is_missing = pc.is_in(pc.utf8_lower(found), value_set=pa.array(_MISSING_WORDS))
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), found)


def is_number_text(values: Any) -> Any:
    """Of texts: which are numbers, with or without commas between thousands; null where they are missing."""
    return pc.or_(pc.match_substring_regex(values, _NUMBER), pc.match_substring_regex(values, _THOUSANDS))


def are_numbers(values: Any) -> bool:
    """Whether all of these texts are numbers, and none a code with zeros in front."""
    found = _without_missing_words(texts(values)).drop_null()
    if not len(found) or not pc.all(is_number_text(found)).as_py():
        return False
    return not pc.any(pc.match_substring_regex(found, _CODE)).as_py()


def is_date_text(values: Any) -> Any:
    """Of texts: which look like dates, in whatever order of day, month and year; null where they are missing."""
    return pc.match_substring_regex(values, _DATE)


def no_date_among(values: Any) -> str | None:
    """The first of these texts that is no date as ISO 8601 writes it; None where all, or all looked at, are dates."""
    known = _without_missing_words(values).drop_null().unique()[:_MOST_LOOKED_AT]
    return next((value.as_py() for value in known if _timestamps_of_text(pa.array([value.as_py()])) is None), None)


def are_dates(values: Any) -> bool:
    """Whether all of these texts are dates as ISO 8601 writes them, all with or all without a zone."""
    found = _without_missing_words(texts(values)).drop_null()
    return len(found) > 0 and _timestamps_of_text(found) is not None


def _timestamps_of_text(found: Any) -> Any:
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return found.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None


def timestamps(column: Any, name: str) -> Any:
    """A column of dates as timestamps in microseconds, with a zone where it has one."""
    column = dense(column)
    kind = family(column.type)
    try:
        if kind == TEXT_TYPE:
            words = _without_missing_words(texts(column))
            found = _timestamps_of_text(words)
            if found is None:
                odd = no_date_among(words)
                raise pa.ArrowInvalid("its values differ in form" if odd is None else f"it has the value {odd!r}")
            return found
        if kind == EMPTY_TYPE:
            return pa.nulls(len(column), pa.timestamp("us"))
        if kind != DATE_TYPE:
            raise pa.ArrowInvalid(f"its type is {column.type}")
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            return column.cast(pa.timestamp("us", zone), safe=False)
        return column.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid as error:
        raise InputError(
            f"Column {name!r} cannot be read as dates: {str(error).splitlines()[0]}. Expected dates such as 2024-03-31 "
            f"or 2024-03-31T18:30:00Z, all with a zone or none, between the years -290000 and 290000. Convert them, or "
            f"leave the column out (columns={{{name!r}: 'ignore'}})."
        ) from error


def zone_of(found: Any) -> str | None:
    zone: str | None = found.type.tz
    return zone


def days_since_epoch(column: Any, zone: str | None, name: str) -> tuple[Array, Array]:
    """Days since 1970 of each instant, and the same by the clocks of the zone; NaN where it is missing.

    A date without a zone is one of this zone.
    """
    found = timestamps(column, name)
    own = zone_of(found)
    if zone is not None and own is None:
        found = pc.assume_timezone(found, zone, ambiguous="earliest", nonexistent="earliest")
    elif zone is not None and own != zone:
        found = found.cast(pa.timestamp("us", zone))
    wall = found if zone_of(found) is None else pc.local_timestamp(found)
    if zone is None:
        found = wall
    instant, local = (_as_float(values.cast(pa.int64())) / DAY_US for values in (found, wall))
    return instant, local


def clock_days(column: Any, name: str) -> Array:
    """A time of day in days."""
    column = dense(column)
    if family(column.type) != TIME_TYPE:
        raise InputError(f"Column {name!r} has values of type {column.type}, expected times of day as in the fit.")
    unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[column.type.unit]
    whole = pa.int32() if column.type.bit_width == 32 else pa.int64()
    return _as_float(column.cast(whole)) / (86400.0 * unit)

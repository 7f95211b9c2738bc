"""Errors that say what was expected, what came and what to do."""

from collections.abc import Callable, Iterable
from difflib import SequenceMatcher


class SparseGPError(Exception):
    """Base of every error raised on purpose by this package."""


class InputError(SparseGPError, ValueError):
    """The caller gave something that cannot be used; the message says what to give instead."""


class InputTypeError(InputError, TypeError):
    """The same for what is no number at all, which scikit-learn wants to be a TypeError."""


class FactorizationError(SparseGPError, ArithmeticError):
    """A matrix that must be positive definite is not, even with the largest jitter allowed."""


class FingerprintError(SparseGPError, ValueError):
    """Two statistics or models that do not share inducing inputs, hyper-parameters and approximation were combined."""


class NegativeVarianceError(SparseGPError, ArithmeticError):
    """A standard deviation was asked for where a model that is no probability model has a negative variance."""


class ModelFileError(SparseGPError, ValueError):
    """A model file that cannot be written or read: not one, damaged, altered, or made by a newer version."""


class MissingPackageError(SparseGPError, ImportError):
    """A package that is not installed is needed; the message says how to get it."""


class OutputError(SparseGPError, OSError):
    """A file that cannot be written; what was there before is unchanged."""


class MemoryLimitError(SparseGPError, MemoryError):
    """There is not enough memory; the message says how much was needed and what to do."""


ALIKE = 0.6
"""Twice the letters in common over the letters of both names, from which on one may be a slip for the other."""


def _alikeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name.casefold(), other.casefold()).ratio()


def did_you_mean(name: str, names: Iterable[str], part: Callable[[str], str] = str) -> str:
    """The end of a message about a name that is not there: up to three that are much like it, or nothing.

    `part` is the part of a name that must be alike; the name that is most alike as a whole comes first.
    """
    near = [other for other in names if _alikeness(part(name), part(other)) >= ALIKE]
    near.sort(key=lambda other: (-_alikeness(name, other), other))
    return f" Did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""


NEEDS_TORCH = (
    "This needs torch, which is not installed: pip install 'sparsegp[fit]'. Without it, `sparsegp predict` and "
    "`evaluate` work with many saved models (docs/production.md says which); everything else needs torch."
)

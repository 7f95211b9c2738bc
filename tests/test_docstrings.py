"""Docstrings of what is public: examples that run, and every parameter described with its type."""

import doctest
import inspect
import re
from importlib import import_module

import pytest

import sparsegp
from sparsegp import cluster, display, files, testing

CLASSES = [
    sparsegp.SparseGPRegressor,
    sparsegp.HeteroscedasticGPRegressor,
    sparsegp.CommitteeGPRegressor,
    sparsegp.serving.Predictor,
    *(getattr(display, name) for name in display.__all__),
]
FUNCTIONS = [sparsegp.load, sparsegp.plan, sparsegp.serving.load, cluster.predict]
FUNCTIONS += [files.batch_ids, files.content_id, files.record_batches, files.require_disjoint]
FUNCTIONS += [testing.check_kernel, testing.check_approximation, testing.check_engine]
FUNCTIONS += [
    function
    for name, function in inspect.getmembers(sparsegp.metrics, inspect.isfunction)
    if function.__module__.startswith("sparsegp.metrics.") and not name.startswith("_")
]
KERNELS = [getattr(sparsegp.kernels, name) for name in sparsegp.kernels.__all__ if name[0].isupper()]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def public_methods(cls):
    """Methods of a class and its bases in this package that users call."""
    for name, member in inspect.getmembers(cls, inspect.isroutine):
        member = getattr(member, "__func__", member)
        ours = str(inspect.getmodule(inspect.unwrap(member))).startswith("<module 'sparsegp.")
        if ours and not name.startswith("_") and name not in INNER:
            yield inspect.unwrap(member)


# Of models to the rest of the package, not to users.
INNER = {"assign", "check_parameters", "can_stream", "name_columns", "note_batches", "tried_out"}

DOCUMENTED = [*FUNCTIONS, *(method for cls in CLASSES for method in public_methods(cls))]


def documented_parameters(doc):
    """Names in the section Parameters, which say their type, by numpydoc."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", doc, re.DOTALL | re.MULTILINE)
    if section is None:
        return []
    return re.findall(r"^\*{0,2}(\w+)(?: : \S|$)", section[1], re.MULTILINE)


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


@pytest.mark.parametrize("cls", [*CLASSES[:3], *KERNELS], ids=lambda cls: cls.__name__)
def test_every_parameter_of_a_class_is_described(cls):
    assert documented_parameters(inspect.getdoc(cls)) == parameters(cls.__init__)


@pytest.mark.parametrize("function", DOCUMENTED, ids=lambda function: function.__qualname__)
def test_every_parameter_is_described(function):
    assert documented_parameters(inspect.getdoc(function)) == parameters(function)


@pytest.mark.parametrize("function", DOCUMENTED, ids=lambda function: function.__qualname__)
def test_what_comes_back_is_described(function):
    returns = inspect.signature(function).return_annotation
    if returns not in (None, "None"):
        assert re.search(r"^(Returns|Yields)\n-+\n", inspect.getdoc(function), re.MULTILINE)


def examples():
    found = {}
    finder = doctest.DocTestFinder(exclude_empty=True)
    for thing in (*CLASSES, *KERNELS, *FUNCTIONS):
        home = import_module(thing.__module__)
        for test in finder.find(thing, thing.__name__, module=home):
            if test.examples:
                found[test.name] = test
    for base in sparsegp.SparseGPRegressor.__mro__:
        if base.__module__.startswith("sparsegp."):
            found |= {test.name: test for test in finder.find(base, base.__name__) if test.examples}
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_examples_run(example):
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    told = []
    runner.run(example, out=told.append, clear_globs=False)
    assert runner.failures == 0, "".join(told)


def test_there_are_examples():
    names = {example.name for example in examples()}
    assert {"SparseGPRegressor", "HeteroscedasticGPRegressor", "CommitteeGPRegressor", "Estimator.predict"} <= names

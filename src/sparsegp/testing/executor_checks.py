"""Do workers give the answers that a loop gives? A conformance suite for executors of your own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from sparsegp.errors import InputError, SparseGPError
from sparsegp.parallel import Executor, Placed, Threads, itself

# Their sum depends on the order: 1e16 + 1 is 1e16.
TERMS = (1e16, 1.0, -1e16, 3.0, 0.1, 1.0 / 3.0, -7e8, 2.0**-40)


class CheckedError(SparseGPError):
    """What a function of these checks raises."""


def check_executor(executor: Executor, *, seconds: float = 120.0) -> None:
    """Raise AssertionError, naming the property, unless the executor does what `sparsegp.parallel.Executor` says.

    Parameters
    ----------
    executor : the executor; it must be running, and still is afterwards.
    seconds : how long each check may take before it counts as a deadlock.

    Notes
    -----
    Checked are:

    - answers come in the order of the items, for no items, fewer than workers and more, whatever they cost;
    - sums over them equal those of a plain loop to the last digit;
    - every item is given the `broadcast` arguments and its own of `each`;
    - errors come back with type and message, and the executor works on after them;
    - `step` keeps state and leaves the items it began from as they were, also when it fails;
    - items placed beside others, and subsets, are the same items;
    - a function that cannot leave this process works, or is refused with an InputError that says so;
    - several calls at a time, and threads inside calls, end.
    """
    checks = (
        _check_order,
        _check_sums,
        _check_arguments,
        _check_errors,
        _check_state,
        _check_failed_step,
        _check_subsets,
        _check_closures,
        _check_nested,
        _check_at_the_same_time,
    )
    for check in checks:
        _within(seconds, check, executor)


def _within(seconds: float, check: Callable[[Executor], None], executor: Executor) -> None:
    done: Future[None] = Future()

    def run() -> None:
        try:
            check(executor)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    # A daemon: a deadlock must not keep the interpreter from ending.
    threading.Thread(target=run, daemon=True).start()
    try:
        done.result(seconds)
    except TimeoutError:
        name = check.__name__.removeprefix("_check_").replace("_", " ")
        raise AssertionError(f"{name}: no answer within {seconds:g} seconds; is there a deadlock?") from None


# What workers do. Functions at the top level of a module can be named to another process.


def add(item: float, *others: float) -> float:
    return item + sum(others)


def both(item: Any, own: Any, shared: Any) -> tuple[Any, Any, Any]:
    return item, own, shared


def evidence(size: int, scale: float) -> float:
    """Something like the work of an expert."""
    X = torch.linspace(0.0, 3.0, size, dtype=torch.float64)[:, None]
    K = torch.exp(-scale * (X - X.mT).square()) + 0.1 * torch.eye(size, dtype=torch.float64)
    return float(torch.linalg.cholesky(K).diagonal().log().sum())


def fail_at(item: int, bad: int) -> int:
    if item == bad:
        raise CheckedError(f"item {item} is bad")
    return item


def count_up(state: tuple[int, ...], number: int, bad: int = -1) -> tuple[tuple[int, ...], int]:
    if state[0] == bad:
        raise CheckedError(f"item {state[0]} is bad")
    return (*state, number), len(state)


def nested(item: int) -> list[float]:
    inner = Threads(2)
    return inner.map(add, inner.place([float(item), 1.0, 2.0]), 0.5)


# Checks


def _check_order(executor: Executor) -> None:
    _require("n_workers", executor.n_workers >= 1, f"must be at least 1; got {executor.n_workers}")
    for n_items in (0, 1, executor.n_workers + 1, 4 * executor.n_workers + 3):
        for costs in (None, [float(k % 3) for k in range(n_items)], [0.0] * n_items):
            items = [float(k) for k in range(n_items)]
            placed = executor.place(items, costs)
            _require_equal("the number of placed items", len(placed), n_items)
            _require_equal(f"map over {n_items} items", executor.map(add, placed), items)
    new, answers = executor.step(count_up, executor.place([]), 1)
    _require_equal("step over no items", (len(new), answers), (0, []))


def _check_sums(executor: Executor) -> None:
    costs, expected = [abs(term) for term in TERMS], [add(term, 0.1) for term in TERMS]
    got = executor.map(add, executor.place(TERMS, costs), 0.1)
    _require_equal("the sum over answers", sum(got), sum(expected))
    sizes = [5, 40, 17, 3, 29]
    expected = [evidence(size, 0.7) for size in sizes]
    got = executor.map(evidence, executor.place(sizes, [size**3.0 for size in sizes]), 0.7)
    # Factorisations may round differently with the alignment of memory.
    _require("log determinants", np.allclose(got, expected, rtol=1e-12), f"must be {expected!r}; got {got!r}")


def _check_arguments(executor: Executor) -> None:
    items = [np.arange(k + 1.0) for k in range(executor.n_workers + 2)]
    each, shared = [f"own {k}" for k in range(len(items))], {"rows": np.ones((3, 2)), "kernel": torch.eye(2)}
    for item, answer, own in zip(
        items, executor.map(both, executor.place(items), shared, each=each), each, strict=True
    ):
        found, its_own, its_shared = answer
        _require_equal("an item", found.tolist(), item.tolist())
        _require_equal("the item's own argument", its_own, own)
        _require_equal("a broadcast array", its_shared["rows"].tolist(), [[1.0, 1.0]] * 3)
        _require_equal("a broadcast tensor", its_shared["kernel"].tolist(), [[1.0, 0.0], [0.0, 1.0]])
    _require_refused("too few arguments in each=", lambda: executor.map(both, executor.place(items), 0, each=each[:-1]))
    _require_refused("too few costs", lambda: executor.place(items, [1.0]))


def _check_errors(executor: Executor) -> None:
    placed = executor.place(list(range(6)))
    for bad in (0, 3, 5):
        _require_error("an error in map", partial(executor.map, fail_at, placed, bad), f"item {bad} is bad")
    _require_equal("map after errors", executor.map(fail_at, placed, -1), list(range(6)))


def _check_state(executor: Executor) -> None:
    n_items = 2 * executor.n_workers + 1
    first = executor.place([(k,) for k in range(n_items)], [float(k) for k in range(n_items)])
    placed = first
    for number in (10, 11, 12):
        placed, lengths = executor.step(count_up, placed, number)
        _require_equal("the answers of a step", lengths, [number - 9] * n_items)
    _require_equal("the state after steps", executor.map(itself, placed), [(k, 10, 11, 12) for k in range(n_items)])
    _require_equal("the items before them", executor.map(itself, first), [(k,) for k in range(n_items)])
    placed, _ = executor.step(count_up, placed, each=list(range(n_items)))
    _require_equal(
        "the state after a step with arguments of each item",
        executor.map(itself, placed),
        [(k, 10, 11, 12, k) for k in range(n_items)],
    )


def _check_failed_step(executor: Executor) -> None:
    placed, _ = executor.step(count_up, executor.place([(k,) for k in range(5)]), 1)
    for bad in (0, 4):
        _require_error("an error in step", partial(executor.step, count_up, placed, 2, bad), f"item {bad} is bad")
        _require_equal("the items after a failed step", executor.map(itself, placed), [(k, 1) for k in range(5)])
    again, _ = executor.step(count_up, placed, 3)
    _require_equal("a step after a failed one", executor.map(itself, again), [(k, 1, 3) for k in range(5)])


def _check_subsets(executor: Executor) -> None:
    few = executor.place([(0,), (1,)], [5.0, 1.0])
    more = executor.place([(2,), (3,), (4,)], [1.0, 2.0, 3.0], beside=few)
    _require_equal("items beside others", executor.map(itself, more), [(k,) for k in range(5)])
    _require_equal("the homes of those that had one", more.homes[:2], few.homes)
    stepped, _ = executor.step(count_up, more.subset([4, 0, 2]), 7)
    mixed: Placed = stepped + few
    _require_equal("a subset", executor.map(itself, mixed), [(4, 7), (0, 7), (2, 7), (0,), (1,)])
    mixed, lengths = executor.step(count_up, mixed, 8)
    _require_equal("a step of items from several calls", lengths, [2, 2, 2, 1, 1])


def _check_closures(executor: Executor) -> None:
    lock = threading.Lock()

    def locked(item: float) -> float:
        with lock:
            return item + 1.0

    placed = executor.place([1.0, 2.0])
    try:
        answers = executor.map(locked, placed)
    except InputError as error:
        _require("a function that cannot be sent", "top level of a module" in str(error), f"is refused with: {error}")
    else:
        _require_equal("a function of this process", answers, [2.0, 3.0])
    _require_equal("map afterwards", executor.map(add, placed), [1.0, 2.0])


def _check_nested(executor: Executor) -> None:
    n_items = 2 * executor.n_workers + 1
    expected = [[k + 0.5, 1.5, 2.5] for k in range(n_items)]
    _require_equal("threads inside a call", executor.map(nested, executor.place(list(range(n_items)))), expected)


def _check_at_the_same_time(executor: Executor) -> None:
    def ask(number: int) -> Sequence[float]:
        placed = executor.place([float(k) for k in range(7)])
        return executor.map(add, placed, float(number))

    with ThreadPoolExecutor(3) as pool:
        for number, answers in enumerate(pool.map(ask, range(6))):
            _require_equal("calls at the same time", answers, [float(k + number) for k in range(7)])


def _require_refused(what: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except InputError:
        return
    raise AssertionError(f"{what}: must be an InputError.")


def _require_error(what: str, call: Callable[[], Any], message: str) -> None:
    try:
        call()
    except CheckedError as error:
        _require(what, message in str(error), f"must say {message!r}; says {str(error)!r}")
        return
    except Exception as error:
        raise AssertionError(f"{what}: must be the CheckedError that the function raised; got {error!r}.") from error
    raise AssertionError(f"{what}: must be raised, but there was an answer.")


def _require_equal(what: str, got: Any, expected: Any) -> None:
    _require(what, got == expected, f"must be {expected!r}; got {got!r}")


def _require(what: str, holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(f"{what}: {message}.")

"""Refused memory: with little of the address space left, an operator returns a right result or raises MemoryError.

Child processes (this file, run as a script) limit their address space to what they have and a budget, between nothing
and all that the call needs. Either MemoryError is raised, and arrays given as `out=` hold what they held before; or the
result has the bits it has without a limit. The next call, without the limit, has them as well. A child that ends or
hangs fails the operator it was at, and another child goes on with the next one.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from table_calls import OPS, call, draw

from trigraph import set_num_threads
from trigraph.fortran import memory
from trigraph.table import OPERATORS, SYMBOLS
from trigraph.verification.judged import ask

PAGE = resource.getpagesize()
HANG = 60  # seconds for an operator, in the dense sweep 20 times as many
SENTINEL = 0xA5  # every byte of `out=` before a call
MOST = 2**34  # bytes that are enough for every call
# pyref has no compiled code but NumPy's, which was seen three times, in runs of all tests, to read address 0 where a
# buffer of less than 32 pages was refused after all. An operator that crashes more often than this is wrong.
CRASHES = 2


class Sweep(NamedTuple):
    """How a panel is tried.

    `many` edges or triplets and `few` nodes are such that work space is much more than a page: the direct panels pay
    for every triplet, gpu-host for every thread of a block, the judge for real128. In a `fine` sweep every request of a
    page or more can be refused; in the others only those of 32 pages or more, since NumPy 2.4 does not notice when the
    buffers (64 KiB) are refused in which it converts operands and indices, and goes on with what lies at address 0.
    What gpu-host has written when memory is refused between two kernels is not promised to be `untouched`.
    """

    panel: str
    many: int
    few: int
    fine: bool = True
    teams: bool = False  # only OpenMP's threads are to be made under the limit
    untouched: bool = True


SWEEPS = {
    "fortran": Sweep("fortran", 6000, 300),
    "fortran, coarse": Sweep("fortran", 60_000, 3000, fine=False),
    "fortran, teams": Sweep("fortran", 6000, 300, teams=True),
    "fortran-reference": Sweep("fortran-reference", 2000, 300),
    "pyref": Sweep("pyref", 8000, 4000, fine=False),
    "gpu-host": Sweep("gpu-host", 400, 40, untouched=False),
    "judge": Sweep("judge", 60, 9),
}
# Sizes from which the C library asks the system for memory of its own, and gives it back when it is freed.
BLOCK = {True: PAGE, False: 32 * PAGE}
TEAM_STACK = "glibc.pthread.stack_cache_size=0"  # stacks of threads that have ended are given back, too


class Wrong(Exception):
    """An operator did not do what it must when memory is refused."""


# ---- the child -------------------------------------------------------------------------------------------------------


@contextmanager
def limit(budget: int) -> Iterator[None]:
    """Leave `budget` bytes of address space to take from the system."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size + budget, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def limited(budget: int, function: Callable[[], Any], fine: bool) -> Any:
    """Return what the function returns with `budget` bytes of address space left; MemoryError if it raises that."""
    taken: tuple[Any, ...] = ()
    if fine:
        with limit(0):  # what the C library has free, from half a page on: else it would serve the call
            for size in (PAGE // 2 << k for k in range(8, -1, -1)):
                with suppress(MemoryError):
                    while True:
                        taken = (taken, bytearray(size))
    else:  # some pages that the C library has free
        taken = tuple(bytearray(4 * PAGE) for _ in range(100))
        taken = ()
    with limit(budget):
        try:
            return function()
        except MemoryError as error:
            return error.with_traceback(None)


def in_new_thread(budget: int, function: Callable[[], Any], fine: bool) -> Any:
    """As `limited`, called by a Python thread without OpenMP threads: those have to be made under the limit."""
    go, results = threading.Event(), []

    def work() -> None:
        go.wait()
        results.append(limited(budget, function, fine))

    thread = threading.Thread(target=work)
    thread.start()
    go.set()
    thread.join()
    return results[0]


def settings(op: Any) -> list[dict[str, Any]]:
    """Choices, and inputs that are absent."""
    if op.definition.settings:
        return list(op.definition.settings)
    return [{}] + [{a.name: choice} for a in op.attributes if a.choices for choice in a.choices]


class Job(NamedTuple):
    """Arguments of a call, the number of threads, and whether `out=` is given; in a dense sweep it is and is not."""

    name: str
    values: dict[str, Any]
    threads: int
    given: tuple[bool, ...]


def jobs(op: Any, sweep: Sweep, dense: bool) -> Iterator[Job]:
    """Calls of one operator; few of them for the ordinary test, where one has `out=` and the next one has not."""
    entities = {"num_positions": sweep.many, "num_edges": sweep.many, "num_triplets": sweep.many}
    sizes = {s: entities.get(s, sweep.few) for s in op.definition.symbols if not SYMBOLS[s].minimum}
    kinds = [(np.float32, np.int32, 2), (np.float64, np.int64, 1), (np.float32, np.int64, 1), (np.float64, np.int32, 2)]
    if sweep.teams:
        kinds = [(np.float64, np.int64, 3)]
    elif sweep.panel == "judge":  # in real128, on one thread
        kinds = kinds[1:2]
    chosen = settings(op)
    pairs = [(s, k) for s in chosen for k in kinds]
    if not dense:
        pairs = list(zip((chosen * 2)[:2], kinds[:2], strict=False))
    for number, (setting, (dtype, index, threads)) in enumerate(pairs):
        name = f"{op.name} {setting} {dtype.__name__} {index.__name__} {threads} threads"
        given = (True, False) if dense else (number % 2 == 0,)
        if sweep.panel == "judge":
            given = (False,)
        yield Job(name, draw(op, dtype, index, setting=setting, **sizes), threads, given)


def same(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two results have the same bits."""
    return got.keys() == expected.keys() and all(
        (got[n] is None) == (v is None) and (v is None or got[n].tobytes() == v.tobytes()) for n, v in expected.items()
    )


class Call:
    """One call under a falling limit; counts what was refused and what was not."""

    def __init__(self, op: Any, sweep: Sweep, job: Job) -> None:
        self.op, self.sweep = op, sweep
        self.name, self.values, _, self.given = job
        self.refused = self.complete = 0
        self.expected = {n: None if v is None else v.copy() for n, v in self.result(self.values).items()}
        self.out = {n: np.empty_like(v) for n, v in self.expected.items() if v is not None}
        self.graphs = {a.name for a in op.graph.arguments} if op.graph else set()

    def result(self, values: dict[str, Any], **keywords: Any) -> dict[str, Any]:
        """Call the operator; a mapping from field to array."""
        if self.sweep.panel == "judge":
            return ask(self.op, values)
        return call(self.op, values, panel=self.sweep.panel, **keywords)

    def step(self, budget: int, given: bool) -> bool:
        """Call with so much left, `out=` given or not; return whether there was a result."""
        where = f"{self.name}: {budget} bytes left, out {'' if given else 'not '}given"
        os.write(2, f"{where}\n".encode())
        memory._blocks.blocks.clear()
        values, keywords = self.values, {}
        if given:
            keywords = {"out": self.out}
            for array in self.out.values():
                array.reshape(-1).view(np.uint8)[...] = SENTINEL
        elif not self.sweep.fine:  # graphs that nobody has prepared for the backward: that may be refused, too
            values = {n: pickle.loads(pickle.dumps(v)) if n in self.graphs else v for n, v in values.items()}
        function = functools.partial(self.result, values, **keywords)
        got = (in_new_thread if self.sweep.teams else limited)(budget, function, self.sweep.fine)
        if not isinstance(got, MemoryError):
            self.complete += 1
            if not same(got, self.expected):
                raise Wrong(f"{where}: a result with other bits")
            return True
        self.refused += 1
        if self.op.name not in str(got) and self.sweep.panel != "judge":
            raise Wrong(f"{where}: {got!r} does not name the operator")
        if (
            given
            and self.sweep.untouched
            and any((a.reshape(-1).view(np.uint8) != SENTINEL).any() for a in self.out.values())
        ):
            raise Wrong(f"{where}: {got!r}, and out is half written")
        if not same(function(), self.expected):
            raise Wrong(f"{where}: {got!r}, and the next call has other bits")
        return False

    def run(self, dense: bool) -> None:
        """Find out what the call needs, and try less."""
        for given in self.given:
            need = BLOCK[self.sweep.fine]  # no smaller request is refused
            while not self.step(need, given):
                need *= 4
                if need > MOST:
                    raise Wrong(f"{self.name}: MemoryError with {MOST} bytes left")
            pages, count = need // PAGE, 400 if dense else 6
            for budget in sorted({PAGE * (pages * k // count) for k in range(count)}):
                self.step(budget, given)

    def run_teams(self) -> None:
        """Lower the limit from more than the stacks of the threads and their heaps take."""
        for budget in range(0, 2**28, 2**28 // 16 + PAGE):
            self.step(budget, True)


def try_operator(op: Any, sweep: Sweep, dense: bool) -> tuple[int, int]:
    """Return how many calls of an operator were refused memory, and how many were not.

    Raises
    ------
    Wrong, and whatever a call raises
    """
    refused = complete = 0
    for job in jobs(op, sweep, dense):
        set_num_threads(job.threads)
        tried = Call(op, sweep, job)
        if sweep.teams:
            tried.run_teams()
        else:
            tried.run(dense)
        refused, complete = refused + tried.refused, complete + tried.complete
    return refused, complete


def main(name: str, dense: bool, operators: list[str]) -> None:
    """Try operators one after another; a line of JSON for each: what was wrong, or None, and the numbers of calls."""
    faulthandler.enable()
    for operator in operators:
        faulthandler.dump_traceback_later(HANG * (20 if dense else 1), exit=True)
        wrong, counts = None, (0, 0)
        try:
            counts = try_operator(OPERATORS[operator], SWEEPS[name], dense)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        print(json.dumps([wrong, counts]), flush=True)
    faulthandler.cancel_dump_traceback_later()


# ---- the tests -------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """Of one panel: what went wrong by operator, and how many calls were refused memory, and were not."""

    wrong: dict[str, str | None]
    refused: int
    complete: int


@functools.cache
def outcome(name: str, dense: bool) -> Outcome:
    """Try all operators of a panel."""
    block = str(BLOCK[SWEEPS[name].fine])
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": block,
        "MALLOC_TRIM_THRESHOLD_": "0" if SWEEPS[name].fine else str(2**30),
        "MALLOC_TOP_PAD_": "0" if SWEEPS[name].fine else str(2**21),
        "MALLOC_ARENA_MAX": "1",
        "GLIBC_TUNABLES": TEAM_STACK,
        "OPENBLAS_NUM_THREADS": "1",  # with more, OpenBLAS itself ends the process when memory is refused
        "PYTHONPATH": str(Path(__file__).parents[1] / "helpers"),
    }
    left, wrong, refused, complete = [op.name for op in OPS], {}, 0, 0
    crashes = Counter()
    while left:
        command = [sys.executable, __file__, name, str(int(dense)), *left]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            found, (r, c) = json.loads(line)
            wrong[left.pop(0)], refused, complete = found, refused + r, complete + c
        if left and name == "pyref" and done.returncode == -signal.SIGSEGV and crashes[left[0]] < CRASHES:
            crashes[left[0]] += 1
            continue
        if left:
            last = "\n".join(done.stderr.splitlines()[-40:])
            wrong[left.pop(0)] = f"the process ended with {done.returncode}:\n{last}"
    return Outcome(wrong, refused, complete)


ALL = [pytest.param(op, id=op.name) for op in OPS]


# Large requests are refused in the fine sweep, too; what the coarse one adds is the system's own large blocks.
ORDINARY = [pytest.param(n, marks=pytest.mark.slow) if n == "fortran, coarse" else n for n in SWEEPS]


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("op", ALL)
def test_a_result_or_memory_error(op, name):
    wrong = outcome(name, False).wrong[op.name]
    assert wrong is None, wrong


@pytest.mark.parametrize("name", ORDINARY)
def test_memory_was_refused_and_was_not(name):
    found = outcome(name, False)
    assert found.refused > len(OPS)
    assert found.complete > len(OPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, sweep in SWEEPS.items() if not sweep.teams])
@pytest.mark.parametrize("op", ALL)
def test_a_result_or_memory_error_densely(op, name):
    wrong = outcome(name, True).wrong[op.name]
    assert wrong is None, wrong


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1", sys.argv[3:])

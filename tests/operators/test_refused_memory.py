"""Tests that an operator returns the correct result or raises MemoryError if little address space is left.

Child processes (this file, run as a script) limit their address space to the current size plus a budget between zero
and the memory that a call needs. The call must either raise MemoryError and leave arrays passed as `out=` unchanged, or
return a result bitwise identical to that of an unlimited call. The next call, without the limit, must succeed. If a
child exits or hangs, its operator has failed, and another child continues. pyref is not tested: it is only NumPy.
"""

import faulthandler
import functools
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from programs import run_command
from table_calls import OPS_WITH_BWD3, compute_fields, draw_operator_arguments

from trigraph import set_num_threads
from trigraph.backends.choice import is_bwd3_native
from trigraph.fortran import memory
from trigraph.table import NAMED, SYMBOLS

PAGE = resource.getpagesize()
TIMEOUT = 60  # time limit per operator in seconds; the dense sweep takes 20 times as long
SENTINEL = 0xA5  # byte that fills `out` before a call
ENOUGH_MEMORY = 2**34  # bytes that suffice for every call


class SweepSettings(NamedTuple):
    """Settings for the tests of a backend.

    The numbers of edges or triplets (`many`) and of nodes (`few`) make the workspace much larger than a page, but keep
    calls fast. `keeps_out` says whether a refused call leaves `out` unchanged; gpu-host cannot guarantee this, since it
    may be refused memory between kernels.
    """

    backend: str
    many: int
    few: int
    limits_teams: bool = False  # whether only the start of OpenMP threads is limited
    keeps_out: bool = True


SWEEPS = {
    "fortran": SweepSettings("fortran", 2000, 200),
    "fortran, teams": SweepSettings("fortran", 2000, 200, limits_teams=True),
    "fortran-reference": SweepSettings("fortran-reference", 1000, 200),
    "gpu-host": SweepSettings("gpu-host", 400, 60, keeps_out=False),
}


class RefusalHandlingError(Exception):
    """An operator misbehaved when memory was refused."""


# ---- the child -------------------------------------------------------------------------------------------------------


@contextmanager
def limit_address_space(budget: int) -> Iterator[None]:
    """Limit the address space so that the system grants only `budget` more bytes."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size + budget, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def call_with_limited_memory(budget: int, function: Callable[[], Any]) -> Any:
    """Call a function with `budget` bytes of address space left; return its result or its MemoryError."""
    taken: tuple[Any, ...] = ()
    # Use up free blocks of the C library (half a page or more), which could serve the call.
    with limit_address_space(0):
        for size in (PAGE // 2 << k for k in range(8, -1, -1)):
            with suppress(MemoryError):
                while True:
                    taken = (taken, bytearray(size))
    with limit_address_space(budget):
        try:
            return function()
        except MemoryError as error:
            return error.with_traceback(None)


def call_in_limited_thread(budget: int, function: Callable[[], Any]) -> Any:
    """Run `call_with_limited_memory` in a new thread, whose OpenMP threads must start under the limit."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call_with_limited_memory, budget, function).result()


def list_operator_settings(op: Any) -> list[dict[str, Any]]:
    """Return the settings to test: all choices, and absent optional inputs."""
    if op.definition.settings:
        return list(op.definition.settings)
    return [{}] + [{a.name: choice} for a in op.attributes if a.choices for choice in a.choices]


def have_same_bits(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Return whether two results are bitwise identical."""
    return got.keys() == expected.keys() and all(
        (got[n] is None) == (v is None) and (v is None or got[n].tobytes() == v.tobytes()) for n, v in expected.items()
    )


class LimitedCall:
    """A call that is repeated with different limits, and the numbers of refused and complete calls."""

    def __init__(
        self, op: Any, sweep: SweepSettings, name: str, values: dict[str, Any], with_out: bool, dense: bool
    ) -> None:
        self.op, self.sweep, self.dense = op, sweep, dense
        self.name, self.values, self.with_out = name, values, with_out
        self.refused = self.complete = 0
        results = compute_fields(op, self.values, backend=sweep.backend)
        self.expected = {n: None if v is None else v.copy() for n, v in results.items()}
        self.out = {n: np.empty_like(v) for n, v in self.expected.items() if v is not None}

    def call_with_budget(self, budget: int) -> bool:
        """Call with `budget` bytes of address space left; return whether the call succeeded."""
        description = f"{self.name}: {budget} bytes left, out {'' if self.with_out else 'not '}given"
        os.write(2, f"{description}\n".encode())
        memory._blocks.blocks.clear()
        keywords = {"out": self.out} if self.with_out else {}
        for array in keywords.get("out", {}).values():
            array.reshape(-1).view(np.uint8)[...] = SENTINEL
        function = functools.partial(compute_fields, self.op, self.values, backend=self.sweep.backend, **keywords)
        got = (call_in_limited_thread if self.sweep.limits_teams else call_with_limited_memory)(budget, function)
        if not isinstance(got, MemoryError):
            self.complete += 1
            if not have_same_bits(got, self.expected):
                raise RefusalHandlingError(f"{description}: the result has different bits")
            return True
        self.refused += 1
        if self.op.name not in str(got):
            raise RefusalHandlingError(f"{description}: {got!r} does not name the operator")
        if (
            self.with_out
            and self.sweep.keeps_out
            and any((a.reshape(-1).view(np.uint8) != SENTINEL).any() for a in self.out.values())
        ):
            raise RefusalHandlingError(f"{description}: {got!r}, and out is partly written")
        # This call also allocates libgomp's memory for its next team; libgomp exits if that memory is refused.
        if not have_same_bits(function(), self.expected):
            raise RefusalHandlingError(f"{description}: {got!r}, and the next result has different bits")
        return False

    def bisect_needed_memory(self) -> None:
        """Bisect the memory that the call needs to one page, so that even small allocations fail once."""
        if self.sweep.limits_teams:  # try budgets up to more than the sum of all stacks and heaps
            for budget in range(0, 2**28, 2**28 // 16 + PAGE):
                self.call_with_budget(budget)
            return
        refused, need = 0, PAGE  # the budget is always a multiple of PAGE
        while not self.call_with_budget(need):
            refused, need = need, 4 * need
            if need > ENOUGH_MEMORY:
                raise RefusalHandlingError(f"{self.name}: MemoryError with {ENOUGH_MEMORY} bytes left")
        if self.dense:
            for budget in sorted({need * k // 100 // PAGE * PAGE for k in range(100)}):
                self.call_with_budget(budget)
        while need - refused > PAGE:
            middle = (refused + need) // 2 // PAGE * PAGE
            refused, need = (refused, middle) if self.call_with_budget(middle) else (middle, need)
        if self.dense:  # the last allocations of the call may be small
            for budget in range(max(0, need - 64 * PAGE), need + 16 * PAGE, PAGE):
                self.call_with_budget(budget)


def count_refused_and_complete_calls(op: Any, sweep: SweepSettings, dense: bool) -> tuple[int, int]:
    """Return the numbers of calls of an operator, alternately with and without `out=`, that were refused and succeeded.

    Raises
    ------
    RefusalHandlingError, and any exception of a call
    """
    entities = {"num_positions": sweep.many, "num_edges": sweep.many, "num_triplets": sweep.many}
    sizes = {s: entities.get(s, sweep.few) for s in op.definition.symbols if not SYMBOLS[s].minimum}
    kinds = [(np.float32, np.int32, 2), (np.float64, np.int64, 1), (np.float32, np.int64, 1), (np.float64, np.int32, 2)]
    if sweep.limits_teams:
        kinds = [(np.float64, np.int64, 3)]
    chosen = list_operator_settings(op)
    pairs = [(s, k) for s in chosen for k in kinds]
    if not dense:
        pairs = list(zip((chosen * 2)[:2], kinds[:2], strict=False))
    refused = complete = 0
    for number, (setting, (dtype, index, threads)) in enumerate(pairs):
        name = f"{op.name} {setting} {dtype.__name__} {index.__name__} {threads} threads"
        values = draw_operator_arguments(op, dtype, index, setting=setting, **sizes)
        set_num_threads(threads)
        limited_call = LimitedCall(op, sweep, name, values, number % 2 == 0, dense)
        limited_call.bisect_needed_memory()
        refused, complete = refused + limited_call.refused, complete + limited_call.complete
    return refused, complete


def main(name: str, dense: bool, operators: list[str]) -> None:
    """Test operators one after another; print each one's error (or None) and numbers of calls as a line of JSON."""
    faulthandler.enable()
    for operator in operators:
        faulthandler.dump_traceback_later(TIMEOUT * (20 if dense else 1), exit=True)
        wrong, counts = None, (0, 0)
        try:
            counts = count_refused_and_complete_calls(NAMED[operator], SWEEPS[name], dense)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        print(json.dumps([wrong, counts]), flush=True)
    faulthandler.cancel_dump_traceback_later()


# ---- the tests -------------------------------------------------------------------------------------------------------


# Settings that make glibc map each block separately and unmap it when it is freed.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(PAGE),
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"), "0"),
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.pthread.stack_cache_size=0",  # frees the stacks of threads that have ended
    "OPENBLAS_NUM_THREADS": "1",  # with more threads, OpenBLAS exits if memory is refused
    "PYTHONPATH": str(Path(__file__).parents[1] / "helpers"),
}

SWEEP_PARAMS = [pytest.param(name, False, marks=[pytest.mark.slow] * (name == "gpu-host")) for name in SWEEPS]
SWEEP_PARAMS += [
    pytest.param(name, True, marks=pytest.mark.slow) for name, sweep in SWEEPS.items() if not sweep.limits_teams
]


@pytest.mark.parametrize(("name", "dense"), SWEEP_PARAMS)
def test_limited_memory_gives_result_or_memory_error(name: str, dense: bool) -> None:
    """Every operator of a backend passes in child processes, and calls were both refused and completed."""
    backend = SWEEPS[name].backend
    own = [op for op in OPS_WITH_BWD3 if op.order < 3 or (backend == "fortran" and is_bwd3_native(backend, op.name))]
    left, wrong, refused, complete = [op.name for op in own], {}, 0, 0
    while left:
        command = [sys.executable, __file__, name, int(dense), *left]
        done = run_command(*command, status=None, timeout=None, env=os.environ | ENVIRONMENT)
        for line in done.stdout.splitlines():
            operator = left.pop(0)
            failures, (r, c) = json.loads(line)
            refused, complete = refused + r, complete + c
            wrong |= {operator: failures} if failures else {}
        if left:
            last = "\n".join(done.stderr.splitlines()[-40:])
            wrong[left.pop(0)] = f"the process ended with {done.returncode}:\n{last}"
    assert wrong == {}
    assert refused > len(own)
    assert complete > len(own)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1", sys.argv[3:])

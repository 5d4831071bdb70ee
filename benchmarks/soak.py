"""Soak test: every operator in every backend on the CPU, under concurrent calls, forks and interrupts.

``python -m trigraph.benchmarks.soak --seconds 3600`` draws calls of random sizes and repeats each of them in several
Python threads at once, with any number of OpenMP threads, at every level of the instruction set, in forked processes,
interrupted by a signal, in signal handlers and finalisers, with graphs out of a pickle. It fails when

- the bits of a result are not those of the first result of the same call (v3 and v4 of the fast path count as one),
- an interrupted call of a Fortran backend leaves half a result in `out`, or any backend's spoils the next call,
- a process ends or hangs,
- resident memory grows, or the number of open files.

Whether results are right is for ``trigraph verify`` to say, and what becomes of refused memory for
tests/operators/test_refused_memory.py. It runs on Linux.
"""

import ctypes
import faulthandler
import gc
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from scipy.stats import theilslopes

from slopecheck import record
from trigraph.backends import FUNCTIONS
from trigraph.fortran import levels, memory
from trigraph.fortran.threads import set_num_threads
from trigraph.table import DEFINITIONS, OPERATORS, SYMBOLS, Definition, Operator, evaluate
from trigraph.verification.cases import Case, assemble, build, variants
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.judged import every_operator_of
from trigraph.verification.subjects import named_fields

# For each backend: the most operations of a call, so that it takes milliseconds, and how often it is chosen.
MOST = {"fortran": 3e7, "fortran-reference": 2e6, "pyref": 2e6, "gpu-host": 2e5}
SHARE = {"fortran": 0.6, "fortran-reference": 0.15, "pyref": 0.15, "gpu-host": 0.1}
LARGEST, WIDEST = 20_000, 20  # entities, widths
CASES = 12  # number of cases drawn at a time
HANG = 120  # seconds after which a phase or forked process counts as hanging
GROWTH = 32 * 2**20  # bytes that the trend of resident memory may rise after the warm-up
SENTINEL = 0xA5  # every byte of `out` before a call


class Failure(Exception):
    """A failure found by the soak test."""


# ---- calls -----------------------------------------------------------------------------------------------------------


def _size(definition: Definition, name: str, rng: np.random.Generator) -> int:
    symbol = definition.symbol(name)
    largest = LARGEST if symbol.minimum == 0 else symbol.maximum or WIDEST
    if symbol.minimum == 0 and rng.random() < 0.02:
        return 0
    return int(max(1, symbol.minimum) * (largest / max(1, symbol.minimum)) ** rng.random())


def draw_case(number: int) -> Case:
    """Draw a definition, its sizes, graph, choices and arrays: a function of `number` alone."""
    rng = np.random.default_rng(number)
    definition: Definition = DEFINITIONS[rng.integers(len(DEFINITIONS))]
    dtype, index = str(rng.choice(["float32", "float64"])), (np.int32, np.int64)[rng.integers(2)]
    sizes = {name: _size(definition, name, rng) for name in definition.symbols}
    most = MOST[str(rng.choice(list(MOST)))]
    while evaluate(definition.operations[2], sizes) > most:
        sizes = {n: max(SYMBOLS[n].minimum, s * 2 // 3) for n, s in sizes.items()}
    settings = definition.settings
    setting: dict[str, Any] = {
        a.name: a.choices[rng.integers(len(a.choices))] for a in definition.attributes if a.choices
    }
    setting |= settings[rng.integers(len(settings))] if settings else {}
    graphs = GRAPHS[definition.graph].at_random(sizes, index, rng)
    case = assemble(definition, graphs, sizes, setting, dtype, rng, str(number))
    op = OPERATORS[f"{definition.name}_fwd"]
    back = {a.name for o in every_operator_of(definition) for a in o.arguments if a.given_back}
    if back and rng.random() < 0.5:
        result = named_fields(op, FUNCTIONS[op.name](**case.arguments(op), backend="fortran-reference"))
        case = replace(case, values={**case.values, **{n: result[n] for n in back}})
    return case


def digest(result: Mapping[str, Any]) -> str:
    """Return a digest of the bits of each field."""
    return ", ".join(f"{name} {None if array is None else record.digest(array)}" for name, array in result.items())


@dataclass(frozen=True)
class Job:
    """A call that can be repeated."""

    case: Case
    op: Operator
    backend: str
    wrt: tuple[str, ...] | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that the bits may depend on."""
        level = levels.get_cpu_level() if self.backend == "fortran" else ""
        if level in levels.EQUAL_BITS:
            level = " and ".join(levels.EQUAL_BITS)
        return self.case.name, self.op.name, self.backend, self.wrt, level

    def call(self, fresh: bool = False, out: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
        """Call the operator; `fresh` graphs are copies without the order for the backward."""
        values = self.case.arguments(self.op)
        if fresh:
            graphs = {a.name for a in self.op.graph.arguments} if self.op.graph else set()
            values |= {n: pickle.loads(pickle.dumps(values[n])) for n in graphs}
        if self.op.selective:
            values["wrt"] = self.wrt
        return named_fields(self.op, FUNCTIONS[self.op.name](**values, out=out, backend=self.backend))

    def __str__(self) -> str:
        wrt = "" if self.wrt is None else f", wrt={self.wrt}"
        return f"{self.op.name}, {self.backend}{wrt}, case {self.case.name}"


# ---- the test --------------------------------------------------------------------------------------------------------


@dataclass
class Soak:
    """The state of a run."""

    seed: int
    digests: dict[tuple[Any, ...], str] = field(default_factory=dict)  # of first results of the current cases
    events: Counter[str] = field(default_factory=Counter)  # calls of each backend, forks, interruptions and so on
    failures: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    block: int = 0
    on_alarm: Callable[[], None] = lambda: None

    # -- single calls

    def choose(self, rng: np.random.Generator) -> Job:
        """Choose a call that is cheap enough for its backend."""
        while True:
            backend = str(rng.choice(list(SHARE), p=list(SHARE.values())))
            case = self.cases[rng.integers(len(self.cases))]
            ops = every_operator_of(case.definition)
            op = ops[rng.integers(len(ops))]
            if evaluate(op.operations, case.sizes) <= MOST[backend]:
                break
        wrt = None
        if op.selective and rng.random() < 0.3:
            names = [f.name for f in op.fields]
            wrt = tuple(n for n in names if rng.random() < 0.5) or (names[0],)
        return Job(case, op, backend, wrt)

    def check(self, job: Job, result: Mapping[str, Any], what: str) -> None:
        """Compare a result with the first one of the same call."""
        self.events[f"calls of {job.backend}"] += 1
        got = digest(result)
        first = self.digests.setdefault(job.key, got)
        if got != first:
            raise Failure(f"{job}: {what}: other bits than at first: {got}; at first: {first}")

    def ordinary(self, rng: np.random.Generator) -> None:
        """Make a call: with `out`, with an unpickled graph, or plain."""
        job = self.choose(rng)
        kind = rng.choice(["plain", "plain", "out", "fresh"])
        out = None
        if kind == "out":
            out = self.outputs(job)
        self.check(job, job.call(kind == "fresh", out), str(kind))
        self.events["calls into out"] += kind == "out"
        self.events["graphs through pickle"] += kind == "fresh"

    def outputs(self, job: Job) -> dict[str, np.ndarray]:
        """Return arrays for the result, every byte of them `SENTINEL`."""
        result = job.call()
        self.check(job, result, "plain")
        out = {n: np.empty_like(v) for n, v in result.items() if v is not None}
        for array in out.values():
            array.reshape(-1).view(np.uint8)[...] = SENTINEL
        return out

    def untouched(self, job: Job, out: Mapping[str, np.ndarray], what: str) -> None:
        """Check that `out` arrays are unchanged, or hold the whole result.

        A product by OpenBLAS hangs if another thread forks meanwhile, unless OpenBLAS has one thread. One heap for all
        threads avoids growth by the free space of many heaps.
        """
        empty = not all(job.case.sizes[s] for s in job.op.definition.symbols)
        if empty or job.backend not in ("fortran", "fortran-reference"):
            return
        if all((a.reshape(-1).view(np.uint8) == SENTINEL).all() for a in out.values()):
            return
        whole = {f.name: out.get(f.name) for f in job.op.fields}
        if digest(whole) != self.digests[job.key]:
            raise Failure(f"{job}: {what}: half a result")

    # -- what the main thread does besides

    def interrupted(self, rng: np.random.Generator) -> None:
        """Let a signal raise KeyboardInterrupt at any moment of a call; the next one finds all in order."""
        job = self.choose(rng)
        out = self.outputs(job) if rng.random() < 0.5 else None
        armed = True

        def interrupt() -> None:
            if armed:
                raise KeyboardInterrupt

        self.on_alarm = interrupt
        try:
            signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-5, -2))
            result = job.call(out is None, out)
            armed = False
            self.check(job, result, "with a timer running")
        except KeyboardInterrupt:
            armed = False
            self.events["interruptions"] += 1
            if out is not None:
                self.untouched(job, out, "interrupted")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.check(job, job.call(), "after an interruption")

    def in_handler(self, rng: np.random.Generator) -> None:
        """Make a call in a signal handler while another one is being made."""
        job, inner = self.choose(rng), self.choose(rng)
        ran = []

        def handle() -> None:
            self.check(inner, inner.call(), "in a signal handler")
            ran.append(1)

        self.on_alarm = handle
        signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-5, -2.5))
        self.check(job, job.call(True), "with a signal handler that calls operators")
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.events["calls in signal handlers"] += len(ran)

    def in_finaliser(self, rng: np.random.Generator) -> None:
        """Make a call when the garbage collector finds an object that is no longer reachable, wherever that is."""
        soak, job = self, self.choose(rng)

        class Final:
            def __init__(self) -> None:
                self.myself = self

            def __del__(self) -> None:
                try:
                    soak.check(job, job.call(), "in a finaliser")
                    soak.events["calls in finalisers"] += 1
                except KeyboardInterrupt:
                    soak.events["interruptions"] += 1
                except Exception as error:
                    soak.note(error)

        Final()
        if rng.random() < 0.5:
            gc.collect()

    def fork(self, rng: np.random.Generator) -> None:
        """Fork while other threads call operators; the child calls operators, and ends."""
        seed = int(rng.integers(2**63))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                faulthandler.register(signal.SIGALRM, chain=True)  # prints all stacks, then the signal ends the child
                signal.alarm(HANG)
                child = np.random.default_rng(seed)
                for _ in range(6):
                    self.ordinary(child)
                code = 0 if not self.failures else 1
            except BaseException:
                traceback.print_exc()
                print(f"soak: seed {self.seed}: in the forked process above", file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        self.events["forks"] += 1
        if status:
            raise Failure(f"a forked process ended with {os.waitstatus_to_exitcode(status)}")

    def threads(self, rng: np.random.Generator) -> None:
        """Change the number of OpenMP threads for everybody."""
        set_num_threads(int(rng.integers(1, 5)))

    # -- phases

    def note(self, error: BaseException) -> None:
        """Keep a failure, and print it."""
        text = str(error) if isinstance(error, Failure) else "".join(traceback.format_exception(error))
        self.failures.append(text)
        what = f"--seed {self.seed}, block {self.block}, level {levels.get_cpu_level()}"
        print(f"soak: FAILED ({what}): {text}", file=sys.stderr, flush=True)

    def repeat(self, actions: Sequence[Callable[[np.random.Generator], None]], seed: list[int], end: float) -> None:
        """Do any of the actions until the time has come, or something failed."""
        rng = np.random.default_rng(seed)
        while time.monotonic() < end and not self.failures:
            try:
                actions[int(rng.integers(len(actions)))](rng)
            except Exception as error:  # noqa: PERF203
                self.note(error)

    def busy(self, seconds: float, rng: np.random.Generator) -> None:
        """Several Python threads call operators; the main thread does that and everything else."""
        end, seed = time.monotonic() + seconds, int(rng.integers(2**32))
        workers = [
            threading.Thread(target=self.repeat, args=([self.ordinary], [seed, n], end))
            for n in range(1, int(rng.integers(2, 5)))
        ]
        for worker in workers:
            worker.start()
        main = [self.ordinary] * 4 + [self.interrupted] * 3 + [self.in_handler] * 2 + [self.in_finaliser] * 2
        self.repeat([*main, self.threads, self.fork], [seed, 0], end)
        for worker in workers:
            worker.join()

    def warm_up(self) -> None:
        """Call everything once: Python's imports do not survive KeyboardInterrupt, and what is loaded stays."""
        for definition in DEFINITIONS:
            case = build(definition, variants(definition)[0], "float64", 0)
            for op in every_operator_of(definition):
                for backend in SHARE:
                    Job(case, op, backend, None).call()

    def run_block(self, seconds: float) -> None:
        """Draw cases; call them at every level."""
        self.block += 1
        rng = np.random.default_rng([self.seed, self.block])
        self.cases, self.digests = [draw_case(int(n)) for n in rng.integers(2**62, size=CASES)], {}
        available = levels.available()
        for level in rng.permutation(available):
            levels.set_cpu_level(str(level))
            faulthandler.dump_traceback_later(HANG + seconds, exit=True, file=2)
            self.busy(seconds / len(available), rng)
        self.cases, self.digests = [], {}
        set_num_threads(1)


# ---- resources -------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of resident memory, without what is kept for reuse, by us or by the C library."""
    gc.collect()
    memory._blocks.blocks.clear()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---- the command -----------------------------------------------------------------------------------------------------


def run(seconds: float, seed: int, console: Console) -> bool:
    """Run for so many seconds; return whether nothing failed."""
    soak = Soak(seed)
    before = signal.signal(signal.SIGALRM, lambda *_: soak.on_alarm())
    console.print(f"soak: seed {seed}, {seconds:g} s, levels {', '.join(levels.available())}")
    soak.warm_up()
    start = time.monotonic()
    samples: list[tuple[float, int]] = []
    files: list[int] = []
    while time.monotonic() < start + seconds and not soak.failures:
        soak.run_block(min(max(seconds / 20, 0.5), 20))
        samples.append((time.monotonic() - start, resident()))
        files.append(len(os.listdir("/proc/self/fd")))
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, before)
    times, sizes = zip(*samples[len(samples) // 4 :], strict=True)
    growth = 0.0
    if len(times) > 1:  # by the median of the slopes between any two samples: a few outliers do not matter
        growth = float(theilslopes(sizes, times).slope) * (times[-1] - times[0])
    if not growth <= GROWTH:
        soak.failures.append(f"resident memory grew by {growth / 2**20:.1f} MiB, more than {GROWTH / 2**20:.0f}")
    opened = files[len(files) // 4]
    if not files[-1] <= opened:
        soak.failures.append(f"{opened} files were open after the warm-up, {files[-1]} at the end")
    console.print(f"soak: {', '.join(f'{number} {name}' for name, number in sorted(soak.events.items()))}")
    console.print(f"soak: the trend of resident memory rose by {growth / 2**20:.1f} MiB")
    console.print(f"soak: FAILED (--seed {seed}): {'; '.join(soak.failures)}" if soak.failures else "soak: passed")
    return not soak.failures


@click.command(help=(__doc__ or "").partition("\n\n")[0])
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Default: another one each time; it is printed.")
def main(seconds: float, seed: int | None) -> None:
    """Run the soak test from the command line: exit status 1 if anything failed."""
    if not Path("/proc/self/statm").exists():
        raise click.UsageError("soak reads resident memory from /proc, which this system does not have")
    # NumPy's OpenBLAS waits for ever in a product during which another thread forks, unless it has no threads. With one
    # heap for all threads, what grows is not the empty space of many.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    if environment != os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "trigraph.benchmarks.soak", *sys.argv[1:]], environment)
    faulthandler.enable()
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    sys.exit(0 if run(seconds, seed, Console(soft_wrap=True, highlight=False)) else 1)


if __name__ == "__main__":
    main()

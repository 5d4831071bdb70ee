"""One benchmark run: workloads and sweeps to results, ratios and verdicts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from trigraph.benchmarks import dimenet, distributed, gat, gather, gemnet, gno, models, weighted
from trigraph.benchmarks.measure import Measurement, alternate, copy_job
from trigraph.benchmarks.programs import Program
from trigraph.benchmarks.worker import Job
from trigraph.benchmarks.workloads import GATHER, Step, Workload, clock_of, make_call, scaled
from trigraph.panels import PANELS
from trigraph.table import OPERATORS, SYMBOLS

__all__ = [
    "DISTURBED",
    "FAMILIES",
    "NAMED",
    "PROGRAMS",
    "SIZES",
    "Options",
    "ProgramResult",
    "Result",
    "Scaling",
    "Verdict",
    "find_programs",
    "find_workloads",
    "flatness",
    "operator_workload",
    "panels_timed",
    "run_program",
    "run_workload",
    "scaling",
    "sweep",
    "sweep_in_turn",
    "untimed",
]

FAMILIES = {"gno": gno, "dimenet": dimenet, "gat": gat, "weighted": weighted, "gemnet": gemnet}
NAMED = {"gather": gather}  # many: run where they are asked for
PROGRAMS = (*models.PROGRAMS, *distributed.PROGRAMS)
SIZES = {"full": 1.0, "small": 1 / 20}
SWEEP_LIMIT = 2.0  # seconds of one call above which a contender is left out of larger sizes
WARM_SIZE = 16  # entities of the tiny run that loads what is loaded at the first call
DIRECT = ("fortran-reference", "pyref")
DISTURBED = 0.05  # share of the processors used by other processes above which a measurement is made again
ATTEMPTS = 3


@dataclass(frozen=True)
class Options:
    """How to measure: threads of every contender, rounds, dtype, size (a key of `SIZES`), whether with peers.

    Of the contenders only those of the names in `contenders` run (all, when it is empty).
    """

    threads: int
    repeat: int
    dtype: str
    size: str
    peers: bool
    contenders: tuple[str, ...] = ()

    def chosen(self, jobs: Mapping[str, Job]) -> dict[str, Job]:
        """Return the jobs of the contenders that were asked for."""
        return {name: job for name, job in jobs.items() if not self.contenders or name in self.contenders}


@dataclass(frozen=True)
class Verdict:
    """A target beside what was reached; `met` is None when it was not measured."""

    what: str
    least: float
    reached: float | None
    met: bool | None


@dataclass(frozen=True)
class Result:
    """Measurements of a workload at one set of sizes.

    `load` is the system's load average before and after, `others` the share of the processors that other processes used
    meanwhile (None where that is unknown).
    """

    workload: Workload
    sizes: Mapping[str, int]
    dtype: str
    measured: Mapping[str, Measurement]
    load: tuple[float, float]
    others: float | None

    def fast(self, contender: str) -> str:
        """Return the panel a contender is compared with: the fast one on the same kind of machine."""
        return "fortran" if clock_of(self.workload, contender) == "host" else "gpu"

    def ratios(self, contender: str) -> tuple[float | None, float | None]:
        """Time and peak memory of a contender over those of the fast panel; None where one was not measured."""
        own, fast = self.measured[contender], self.measured.get(self.fast(contender))
        if fast is None or not own.seconds or not fast.seconds:
            return None, None
        return own.median / fast.median, own.peak_bytes / fast.peak_bytes if fast.peak_bytes else None

    def rate(self, contender: str) -> float:
        """Operations of the table (not what the contender really spends) per second."""
        return self.workload.operations(self.sizes) / self.measured[contender].median

    def bound(self, tops: Mapping[str, float]) -> float | None:
        """Return the seconds of gathering rows and streaming all else; None where the gathers were not measured.

        `tops` are the host's ceilings, of which it takes the rate of a copy.
        """
        gathered = self.measured.get(GATHER)
        if gathered is None or not gathered.seconds or "copy" not in tops:
            return None
        return gathered.median + self.workload.streamed_bytes(self.sizes, np.dtype(self.dtype)) / tops["copy"]

    def gather_share(self, contender: str, tops: Mapping[str, float]) -> float | None:
        """Return the bound over the median of a panel on the host; None where one is not known."""
        bound = self.bound(tops) if contender in PANELS and self.fast(contender) == "fortran" else None
        return bound / self.measured[contender].median if bound and self.measured[contender].seconds else None

    def lean(self, contender: str) -> float | None:
        """Return outputs and the graph's order of the backward over the peak memory; None where it was not measured."""
        measured, workload = self.measured[contender], self.workload
        needed = workload.output_bytes(self.sizes, np.dtype(self.dtype)) + workload.order_bytes(self.sizes)
        return needed / measured.peak_bytes if measured.seconds and measured.peak_bytes else None

    def verdicts(self, contender: str, options: Options, tops: Mapping[str, float] | None = None) -> list[Verdict]:
        """Targets against this contender, or its own; they are stated for the full size in float32.

        `tops` are the host's ceilings (`measure.ceilings`). Targets of a whole sweep are left to `flatness`, those of
        several numbers of threads to `Scaling`.
        """
        applies = options.dtype == "float32" and dict(self.sizes) == dict(self.workload.sizes)
        found = []
        for target in self.workload.targets if applies else ():
            if target.peer != contender:
                continue
            time, memory = self.ratios(contender)
            gemm = (tops or {}).get(self.dtype)
            share = self.rate(contender) / gemm if gemm and self.measured[contender].seconds else None
            wanted = (
                ("time", target.time, time),
                ("memory", target.memory, memory),
                ("gemm", target.gemm, share),
                ("gather", target.gather, self.gather_share(contender, tops or {})),
                ("lean", target.lean, self.lean(contender)),
            )
            found += [_verdict(what, least, reached) for what, least, reached in wanted if least is not None]
        return found


@dataclass(frozen=True)
class ProgramResult:
    """Measurements of a program at one set of sizes; attributes as of `Result`."""

    workload: Program
    sizes: Mapping[str, int]
    dtype: str
    measured: Mapping[str, Measurement]
    load: tuple[float, float]
    others: float | None

    def costs(self, contender: str) -> tuple[float, float]:
        """Seconds and bytes of a contender for the work that the first does in a call; NaN where it was not timed."""
        work, measured = self.workload.contenders[contender].work, self.measured.get(contender, Measurement())
        return measured.median / work, measured.peak_bytes / work

    def ratios(self, contender: str) -> tuple[float | None, float | None]:
        """Time and peak memory of a contender over those of the first; None where one was not measured."""
        own, first = self.costs(contender), self.costs(next(iter(self.workload.contenders)))
        if math.isnan(own[0] + first[0]):
            return None, None
        return own[0] / first[0], own[1] / first[1] if first[1] else None

    def verdicts(self, contender: str, options: Options, tops: Mapping[str, float] | None = None) -> list[Verdict]:
        """Targets that concern this contender; they are stated for the full size in float32."""
        applies = options.dtype == "float32" and dict(self.sizes) == dict(self.workload.sizes)
        costs = [self.costs(name)[0] for name in self.workload.contenders]
        time, memory = self.ratios(contender)
        found = []
        for target in self.workload.targets if applies else ():
            if target.peer != contender:
                continue
            wanted = (
                ("time", target.time, time),
                ("memory", target.memory, memory),
                ("flat", target.flat, float(np.min(costs) / np.max(costs))),
                ("rate", target.rate, 1 / self.costs(contender)[0]),
            )
            found += [_verdict(what, least, reached) for what, least, reached in wanted if least is not None]
        return found


def _verdict(what: str, least: float, reached: float | None) -> Verdict:
    if reached is None or math.isnan(reached):
        return Verdict(what, least, None, None)
    return Verdict(what, least, reached, reached >= least)


@dataclass(frozen=True)
class Scaling:
    """Times of the fast panel and of a copy of memory with one thread and with all, measured in turn.

    `load` and `others` as in `Result`.
    """

    workload: Workload
    threads: int
    measured: Mapping[str, Measurement]
    load: tuple[float, float]
    others: float | None

    def gain(self, contender: str) -> float | None:
        """Time with one thread over the time with all; None where one was not measured."""
        one, all_ = (self.measured[_with_threads(contender, n)] for n in (1, self.threads))
        return one.median / all_.median if one.seconds and all_.seconds else None

    def verdicts(self, options: Options) -> list[Verdict]:
        """Targets: the gain of the fast panel over that of the copy."""
        own, copy = self.gain("fortran"), self.gain("copy")
        reached = None if own is None or copy is None else own / copy
        least = _scaling_targets(self.workload, options)
        return [_verdict("scaling", target, reached) for target in least]


def _with_threads(contender: str, threads: int) -> str:
    return f"{contender}, threads: {threads}"


def _scaling_targets(workload: Workload, options: Options) -> list[float]:
    stated = (options.dtype, options.size) == ("float32", "full")
    return [t.scaling for t in workload.targets if t.scaling is not None] if stated else []


def flatness(results: list[Result], options: Options) -> list[Verdict]:
    """Targets of a sweep, whose sizes were timed in turn: the smallest cost per edge over the largest."""
    workload = results[0].workload if results else None
    targets = workload.targets if workload and (options.dtype, options.size) == ("float32", "full") else ()
    found = []
    for target in targets:
        if target.flat is None:
            continue
        points = [(r.sizes["num_edges"], r.measured.get(target.peer)) for r in results]
        costs = [m.median / edges for edges, m in points if m is not None and m.seconds]
        reached = min(costs) / max(costs) if len(costs) == len(results) else None
        found.append(_verdict("flat", target.flat, reached))
    return found


def find_workloads(families: tuple[str, ...], names: tuple[str, ...]) -> list[Workload]:
    """Named workloads of the families (all but those of `NAMED`, when empty), or those with the given names."""
    every = FAMILIES | NAMED
    known = [w for f in families or (every if names else FAMILIES) if f in every for w in every[f].WORKLOADS]
    return [w for w in known if not names or w.name in names]


def find_programs(families: tuple[str, ...], names: tuple[str, ...]) -> list[Program]:
    """Programs of the families (all, when empty), or those with the given names."""
    return [p for p in PROGRAMS if (not families or p.family in families) and (not names or p.name in names)]


def operator_workload(name: str, sizes: Mapping[str, int]) -> Workload:
    """Return a workload of one operator of the table, in all panels but gpu-host, whose times tell nothing of a device.

    Parameters
    ----------
    name : str
    sizes : mapping
        Values of symbols; the others are the family's. Where only one of num_edges and num_positions is given, the
        other is the same.
    """
    op = OPERATORS[name]
    given = dict(sizes)
    for one, other in (("num_edges", "num_positions"), ("num_positions", "num_edges")):
        if one in given:
            given.setdefault(other, given[one])
    values = {s: {**FAMILIES[op.family].SIZES, **given}[s] for s in op.definition.symbols}
    panels = ("fortran", *DIRECT, "gpu")
    return Workload(name, op.family, op.definition.summary, (Step(name),), values, panels=panels)


def _jobs(workload: Workload, sizes: Mapping[str, int], options: Options, panels: tuple[str, ...]) -> dict[str, Job]:
    tiny = {n: min(v, WARM_SIZE) if SYMBOLS[n].minimum == 0 else v for n, v in sizes.items()}
    names = (*panels, *((GATHER,) if workload.gathers else ()), *(workload.peers if options.peers else ()))
    return options.chosen(
        {
            name: Job(
                partial(make_call, workload, name, sizes, options.dtype),
                partial(make_call, workload, name, tiny, options.dtype),
                clock_of(workload, name),
                compared=name != GATHER,
            )
            for name in names
        }
    )


def _tolerance(dtype: str, terms: int = 0) -> float:
    """Relative 2-norm error above which a peer computes something else.

    Rounding in sums stays below it; `terms` is the number of terms where a peer adds up more than 40,000 one by one.
    """
    return max(200.0, math.sqrt(terms)) * float(np.finfo(dtype).eps)


def _processor_seconds() -> tuple[float, float, float]:
    """Seconds all processors had and were busy since the start of the system, and those spent by this process tree."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    stat = Path("/proc/stat")
    if not stat.exists():
        return math.nan, math.nan, own
    ticks = [int(v) / os.sysconf("SC_CLK_TCK") for v in stat.read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4], own


def _undisturbed(
    measure: Callable[[], dict[str, Measurement]],
) -> tuple[dict[str, Measurement], tuple[float, float], float | None]:
    """Measure once; again where other processes got in the way; return the least disturbed attempt.

    Measurements, load average before and after, and the share of the processors that others used.
    """
    attempts: list[tuple[dict[str, Measurement], tuple[float, float], float | None]] = []
    while not attempts or (len(attempts) < ATTEMPTS and all((others or 0.0) > DISTURBED for _, _, others in attempts)):
        load, before = os.getloadavg()[0], _processor_seconds()
        measured = measure()
        total, busy, own = (b - a for a, b in zip(before, _processor_seconds(), strict=True))
        others = None if math.isnan(total) else max(0.0, (busy - own) / total)
        attempts.append((measured, (load, os.getloadavg()[0]), others))
    return min(attempts, key=lambda attempt: attempt[2] or 0.0)


def _measure(
    workload: Workload,
    sizes: Mapping[str, int],
    options: Options,
    panels: tuple[str, ...],
    repeat: int,
    progress: Callable[[str], None],
    without: frozenset[str] = frozenset(),
) -> Result:
    """Measure panels and peers at one set of sizes."""
    jobs = {n: j for n, j in _jobs(workload, sizes, options, panels).items() if n not in without}
    tolerance = _tolerance(options.dtype)
    found = _undisturbed(lambda: alternate(jobs, repeat, options.threads, tolerance, progress=progress))
    return Result(workload, sizes, options.dtype, *found)


def run_workload(workload: Workload, options: Options, progress: Callable[[str], None] = lambda _: None) -> Result:
    """Measure a workload at the size asked for."""

    def say(what: str) -> None:
        progress(f"{workload.name}: {what}")

    sizes = scaled(workload.sizes, SIZES[options.size])
    return _measure(workload, sizes, options, workload.panels, options.repeat, say)


def run_program(program: Program, options: Options, progress: Callable[[str], None] = lambda _: None) -> ProgramResult:
    """Measure a program at the size asked for."""

    def say(what: str) -> None:
        progress(f"{program.name}: {what}")

    sizes = dict(program.sizes) if options.size == "full" else {**program.sizes, **program.small}
    jobs = options.chosen(program.jobs(sizes, options.dtype, options.peers))
    tolerance = _tolerance(options.dtype, program.terms)
    found = _undisturbed(lambda: alternate(jobs, options.repeat, options.threads, tolerance, progress=say))
    return ProgramResult(program, sizes, options.dtype, *found)


def scaling(
    workload: Workload, options: Options, nbytes: int, progress: Callable[[str], None] = lambda _: None
) -> Scaling | None:
    """Measure the fast panel, and the copy of `nbytes`, with one thread and with all.

    None where the workload has no such target, the panel was not asked for, or there is just one thread.
    """
    if options.threads == 1 or not any(t.scaling for t in workload.targets):
        return None
    if options.contenders and "fortran" not in options.contenders:
        return None
    sizes = scaled(workload.sizes, SIZES[options.size])
    panel = _jobs(workload, sizes, replace(options, peers=False), ("fortran",))["fortran"]
    jobs = {_with_threads("fortran", n): replace(panel, threads=n) for n in (1, options.threads)}
    jobs |= {_with_threads("copy", n): copy_job("host", nbytes, n) for n in (1, options.threads)}

    def say(what: str) -> None:
        progress(f"{workload.name}, scaling: {what}")

    found = _undisturbed(lambda: alternate(jobs, options.repeat, options.threads, progress=say))
    return Scaling(workload, options.threads, *found)


def sweep(workload: Workload, options: Options, progress: Callable[[str], None] = lambda _: None) -> list[Result]:
    """Measure a workload over its sweep, the direct panels too, each contender as far as its calls stay short."""
    panels = tuple(dict.fromkeys((*workload.panels, *DIRECT)))
    results: list[Result] = []
    out: set[str] = set()
    points, whole = workload.sweep, workload.sizes
    if options.size != "full" and workload.sweep_symbol == "in_degree":
        whole = scaled(whole, SIZES[options.size])
    elif options.size != "full":
        points = tuple(p for p in points if p <= max(points) // 10)
    for place, point in enumerate(points):
        sizes = workload.at(point, whole)

        def say(what: str, point: int = point) -> None:
            progress(f"{workload.name}, {workload.sweep_symbol} = {point}: {what}")

        results.append(_measure(workload, sizes, options, panels, min(options.repeat, 5), say, frozenset(out)))
        growth = points[place + 1] / point if place + 1 < len(points) else 1.0
        for name, found in results[-1].measured.items():
            if found.status != "timed" or found.median * growth > SWEEP_LIMIT:
                out.add(name)
    return results


def sweep_in_turn(
    workload: Workload, options: Options, progress: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Measure the fast panel over a workload's sweep, all sizes in alternating rounds.

    `sweep` takes one size after the other, between which a machine's speed may change. Empty where costs per edge have
    no target, or the panel was not asked for.
    """
    chosen = not options.contenders or "fortran" in options.contenders
    stated = (options.dtype, options.size) == ("float32", "full")
    if not (chosen and stated and any(t.flat for t in workload.targets)):
        return []
    sizes = [workload.at(point, workload.sizes) for point in workload.sweep]
    alone = replace(options, peers=False)
    panels = [_jobs(workload, at, alone, ("fortran",))["fortran"] for at in sizes]
    jobs = {
        f"{workload.sweep_symbol} = {point}": replace(panel, compared=False)
        for point, panel in zip(workload.sweep, panels, strict=True)
    }

    def say(what: str) -> None:
        progress(f"{workload.name}, in turn: {what}")

    found, load, others = _undisturbed(lambda: alternate(jobs, options.repeat, options.threads, progress=say))
    each = zip(sizes, found.values(), strict=True)
    return [Result(workload, at, options.dtype, {"fortran": measured}, load, others) for at, measured in each]


def untimed(results: Sequence[Result | ProgramResult]) -> dict[str, str]:
    """Contenders that were not timed, each with the reason."""
    return {n: m.note for r in results for n, m in r.measured.items() if m.status != "timed"}


def panels_timed(result: Result) -> list[str]:
    """Panels of trigraph that were timed."""
    return [n for n, m in result.measured.items() if n in PANELS and m.seconds]

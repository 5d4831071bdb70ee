"""The verification run: everything `trigraph verify` does but showing it.

`plan` lays out the run as units with weights, `run` executes them. What a unit checks follows from the operator table;
only golden vectors, real inputs and physics are tied to families (golden.py, real.py, physics.py, bessel.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from trigraph.fortran.threads import get_num_threads, set_num_threads
from trigraph.operators import DEFINITIONS, OPERATORS, Definition, Operator
from trigraph.panels import PANELS
from trigraph.verification import golden, physics
from trigraph.verification.accuracy import check_accuracy, check_subsets
from trigraph.verification.bessel import CASE, check_bessel, decades
from trigraph.verification.cases import Variant, build, hubs, variants
from trigraph.verification.differences import JUDGE_STEPS, check_differences
from trigraph.verification.differences import STEPS as PANEL_STEPS
from trigraph.verification.implementation import adapt
from trigraph.verification.judged import Judged, every_operator_of, operators_of
from trigraph.verification.properties import (
    check_adjoint,
    check_nan,
    check_permutation,
    check_repeat,
    check_symmetry,
    check_threads,
)
from trigraph.verification.real import RealInput, build_real, real_inputs
from trigraph.verification.record import Check
from trigraph.verification.structures import Structure, shipped
from trigraph.verification.subjects import Subject, panel, unavailable

__all__ = ["DTYPES", "Unit", "available_panels", "plan", "run"]

DTYPES = ("float32", "float64")
# Differences go through the panels whose calls are cheap; the kernels are compared with the judge, value by value.
UNDIFFERENCED = ("gpu", "gpu-host")
EMULATED = ("gpu-host",)

# Milliseconds that units took on one core, roughly; the emulated device takes a multiple of a panel's share.
WEIGHTS = {
    "accuracy": 6,
    "threads": 15,
    "calls": 6,
    "algebra": 8,
    "differences": 60,
    "judge differences": 180,
    "patch": 10,
    "real adjoint": 25,
    "real judge": 1000,
    "real differences": 480,
    "bessel": 60,
    "hub": 0.03,
    "forces": 100,
    "force training": 500,
    "invariance": 80,
}
SHARE = {"gpu-host": 3.0}

# Hubs: every subject meets ten thousand terms at one place (the emulated device in float32 alone, equal ones). The
# judge can pay for the longest sums once, and there only sums in chunks are asked: it is they that promise the same
# accuracy whatever the number of terms.
HUB, LONGEST_HUB = 10_000, 100_000

Lazy = Callable[[], Judged]


@dataclass(frozen=True)
class Unit:
    """A part of the run: its label, its share of the time, and the function that does it."""

    label: str
    weight: float
    execute: Callable[[], list[Check]]


def available_panels() -> tuple[str, ...]:
    """Return the panels that can run here; the judge is always one."""
    return (*(name for name in PANELS if not unavailable(name)), "judge")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run on one thread: small calls would only wait for others, and all have the same bits (`check_threads`)."""
    before = get_num_threads()
    set_num_threads(1)
    try:
        yield
    finally:
        set_num_threads(before)


@dataclass(frozen=True)
class _Scope:
    """A subject and the operators that are asked for."""

    subject: Subject
    selected: frozenset[str]

    def has(self, op: Operator) -> bool:
        """Whether the subject's operator is to be checked."""
        return op.name in self.selected and self.subject.only in (None, op.name)

    def record_as(self, *ops: Operator) -> str | None:
        """Return the name a check that involves `ops`, the checked one first, is recorded under; None: not to be done.

        For a user's function that is the operator it implements, whichever of the two it is.
        """
        if self.subject.only is not None:
            return self.subject.only if self.subject.only in {op.name for op in ops} else None
        return ops[0].name if ops[0].name in self.selected else None


def _accuracy(scope: _Scope, lazy: Lazy) -> list[Check]:
    judged = lazy()
    ops = [op for op in every_operator_of(judged.case.definition) if scope.has(op)]
    return [check for op in ops for check in check_accuracy(scope.subject, judged, op)]


def _hub(scopes: Sequence[_Scope], definition: Definition, variant: Variant, dtype: str, seed: int) -> list[Check]:
    judged = Judged(build(definition, variant, dtype, seed))
    checks = []
    for scope in scopes:
        with _one_thread():
            checks += _accuracy(scope, lambda: judged)
        if scope.subject.name == "fortran":
            checks += _threads(scope, lambda: judged)
    return checks


def _calls(scope: _Scope, lazy: Lazy) -> list[Check]:
    """Check calls repeated, with some fields only, with some cotangents None, with a NaN in an argument."""
    judged = lazy()
    checks = []
    for op in every_operator_of(judged.case.definition):
        if scope.has(op):
            checks += check_repeat(scope.subject, judged, op)
            if judged.case.kind in ("shared rows", "periodic", "second sizes") or op.graph is None:
                checks += check_nan(scope.subject, judged, op)
            if scope.subject.only is None:  # a user's function has no wrt
                checks += check_subsets(scope.subject, judged, op)
    return checks


def _threads(scope: _Scope, lazy: Lazy) -> list[Check]:
    judged = lazy()
    ops = [op for op in every_operator_of(judged.case.definition) if scope.has(op)]
    return [check for op in ops for check in check_threads(scope.subject, judged, op)]


def _algebra(scope: _Scope, lazy: Lazy, seed: int) -> list[Check]:
    """Adjoint, symmetry, permutation."""
    judged = lazy()
    fwd, bwd, bwd2 = operators_of(judged.case.definition)
    checks = _adjoint(scope, lazy)
    name = scope.record_as(bwd2)
    if name:
        checks.append(check_symmetry(scope.subject, judged))
    for op in (fwd, bwd, bwd2):
        if scope.has(op):
            checks += check_permutation(scope.subject, judged, op, seed)
    return checks


def _adjoint(scope: _Scope, lazy: Lazy) -> list[Check]:
    judged = lazy()
    _, bwd, bwd2 = operators_of(judged.case.definition)
    name = scope.record_as(bwd2, bwd)
    return [check_adjoint(scope.subject, judged, name)] if name else []


def _differences(scope: _Scope, lazy: Lazy, steps: tuple[float, ...]) -> list[Check]:
    judged = lazy()
    fwd, bwd, _ = operators_of(judged.case.definition)
    checks = []
    for upper in every_operator_of(judged.case.definition)[1:]:
        name = scope.record_as(upper, fwd if upper is bwd else bwd)
        if name:
            checks += check_differences(scope.subject, judged, upper, steps, name)
    return checks


def _judge_differences(lazy: Lazy, selected: frozenset[str]) -> list[Check]:
    judged = lazy()
    uppers = [op for op in every_operator_of(judged.case.definition)[1:] if op.name in selected]
    return [check for op in uppers for check in check_differences(None, judged, op, JUDGE_STEPS)]


def _bessel(scope: _Scope, lazy: Lazy) -> list[Check]:
    """Compare radial functions over three decades of x with the judge, and with scipy."""
    checks = _accuracy(scope, lazy)
    if scope.has(OPERATORS["radial_basis_fwd"]):
        checks += check_bessel(scope.subject, lazy())
    return checks


def _physics(scope: _Scope, kind: str, system: Callable[[], physics.System]) -> list[Check]:
    name = scope.record_as(*(OPERATORS[n] for n in physics.INVOLVED[kind]))
    return physics.CHECKS[kind](scope.subject, system(), name) if name else []


def _selection(operators: Iterable[str] | None) -> frozenset[str]:
    """Names of operators, from names of operators, definitions and families.

    Raises
    ------
    ValueError
        If a name is none of these.
    """
    if operators is None:
        return frozenset(OPERATORS)
    selected: set[str] = set()
    for name in operators:
        found = {op.name for op in OPERATORS.values() if name in (op.name, op.definition.name, op.family)}
        if not found:
            raise ValueError(f"verify: operator is {name!r}; expected one of {', '.join(OPERATORS)}, or a family")
        selected |= found
    return frozenset(selected)


@dataclass(frozen=True)
class _Run:
    """What a run was asked for."""

    scopes: tuple[_Scope, ...]
    judge: bool
    selected: frozenset[str]
    dtypes: tuple[str, ...]
    seed: int
    structures: tuple[Structure, ...]

    def definitions(self) -> list[Definition]:
        """Definitions with a selected operator."""
        return [d for d in DEFINITIONS if any(op.name in self.selected for op in every_operator_of(d))]

    def units(self) -> Iterator[Unit]:
        """Units in order: generated cases, real inputs, golden vectors."""
        for definition in self.definitions():
            for dtype in self.dtypes:
                for variant in variants(definition):
                    yield from self._variant(definition, variant, dtype)
            for dtype in self.dtypes:
                yield from self._hubs(definition, dtype)
            for real in real_inputs(definition.family, self.structures):
                yield from self._real(definition, real)
        if any(d.family == "dimenet" for d in self.definitions()):
            yield from self._dimenet()
        yield from self._golden()

    def _variant(self, definition: Definition, variant: Variant, dtype: str) -> Iterator[Unit]:
        judged = cache(lambda: Judged(build(definition, variant, dtype, self.seed)))
        label = f"{definition.name}, {variant.label}, {dtype}"
        differenced = variant.differenced and dtype == "float64"
        for scope in self.scopes:
            panel_name = scope.subject.name
            name = f"{label}: {panel_name}"
            yield _unit(f"{name} accuracy", scope, WEIGHTS["accuracy"], partial(_accuracy, scope, judged))
            if panel_name == "fortran":
                yield _unit(f"{name} threads", scope, WEIGHTS["threads"], partial(_threads, scope, judged))
            if variant.differenced or variant.name == "skewed":
                yield _unit(f"{name} calls", scope, WEIGHTS["calls"], partial(_calls, scope, judged))
            if variant.differenced:
                yield _unit(f"{name} algebra", scope, WEIGHTS["algebra"], partial(_algebra, scope, judged, self.seed))
            if differenced and panel_name not in UNDIFFERENCED:
                yield _unit(
                    f"{name} differences",
                    scope,
                    WEIGHTS["differences"],
                    partial(_differences, scope, judged, PANEL_STEPS),
                )
        if self.judge and differenced:
            yield Unit(
                f"{label}: judge differences",
                WEIGHTS["judge differences"],
                partial(_judge_differences, judged, self.selected),
            )

    def _hubs(self, definition: Definition, dtype: str) -> Iterator[Unit]:
        real = tuple(s for s in self.scopes if s.subject.name not in EMULATED)
        single = dtype == "float32"
        some = [(real, v) for v in hubs(definition, HUB, "positive")]
        some += [(self.scopes if single else real, v) for v in hubs(definition, HUB, "constant")]
        if single:
            chunked = tuple(s for s in real if s.subject.chunked)
            some += [(chunked, v) for v in hubs(definition, LONGEST_HUB, "constant")]
        for scopes, variant in some:
            if scopes:
                # One unit for all subjects: what the judge said of so many edges is kept no longer than that.
                check = partial(_hub, scopes, definition, variant, dtype, self.seed)
                label = f"{definition.name}, {variant.label}, {dtype}"
                yield Unit(label, WEIGHTS["hub"] * variant.degree, check)

    def _real(self, definition: Definition, real: RealInput) -> Iterator[Unit]:
        def judged(dtype: str, patch: bool) -> Lazy:
            return cache(lambda: Judged(build_real(real, definition, dtype, self.seed, patch)))

        for dtype in self.dtypes:
            patch = judged(dtype, True)
            for scope in self.scopes:
                label = f"{definition.name}, {real.name} patch, {dtype}: {scope.subject.name} accuracy"
                yield _unit(label, scope, WEIGHTS["patch"], partial(_accuracy, scope, patch))
        if "float64" not in self.dtypes:
            return
        whole = judged("float64", False)
        for scope in self.scopes:
            if real.panels and scope.subject.name not in real.panels:
                continue
            label = f"{definition.name}, {real.name}, float64: {scope.subject.name}"
            # Whoever comes first pays for the judge.
            weight = WEIGHTS["real adjoint"] + (WEIGHTS["real judge"] if scope is self.scopes[0] else 0)
            yield _unit(f"{label} adjoint", scope, weight, partial(_adjoint, scope, whole))
            if scope.subject.name not in UNDIFFERENCED and real.steps:
                weight = WEIGHTS["real differences"]
                yield _unit(f"{label} differences", scope, weight, partial(_differences, scope, whole, real.steps))

    def _dimenet(self) -> Iterator[Unit]:
        """Radial functions over three decades; forces on every structure."""
        for dtype in self.dtypes:
            judged = cache(partial(decades, dtype, self.seed))
            for scope in self.scopes:
                label = f"radial_basis, {CASE}, {dtype}: {scope.subject.name} accuracy"
                yield _unit(label, scope, WEIGHTS["bessel"], partial(_bessel, scope, judged))
        if "float64" not in self.dtypes:
            return
        for structure in (*shipped(), *self.structures):
            system = cache(partial(physics.prepare, structure))
            for scope in self.scopes:
                for kind in physics.CHECKS:
                    label = f"{structure.name}, float64: {scope.subject.name} {kind}"
                    yield _unit(label, scope, WEIGHTS[kind], partial(_physics, scope, kind, system))

    def _read(self, name: str, path: Path) -> list[golden.Vector]:
        return [v for v in golden.vectors(name, path) if v.operator in self.selected]

    def _golden(self) -> Iterator[Unit]:
        for name, path in golden.files().items():
            vectors = cache(partial(self._read, name, path))
            size = path.stat().st_size / 1000
            for scope in self.scopes:
                for dtype in self.dtypes:
                    label = f"golden {name}, {dtype}: {scope.subject.name}"
                    yield _unit(label, scope, 1 + size / 50, partial(_golden, scope, vectors, dtype))
            if self.judge:
                yield Unit(f"golden {name}: judge", size, partial(_golden, None, vectors, "float64"))
        if golden.check_missing():
            yield Unit("golden vectors that are missing", 1, golden.check_missing)


def _golden(scope: _Scope | None, vectors: Callable[[], list[golden.Vector]], dtype: str) -> list[Check]:
    checks = []
    for vector in vectors():
        if dtype in vector.dtypes and (scope is None or scope.has(OPERATORS[vector.operator])):
            checks += golden.check_golden(scope.subject if scope else None, vector, dtype)
    return checks


def _unit(label: str, scope: _Scope, weight: float, check: Callable[[], list[Check]]) -> Unit:
    def execute() -> list[Check]:
        with _one_thread():
            return check()

    return Unit(label, weight * SHARE.get(scope.subject.name, 1.0), execute)


def plan(
    operators: Iterable[str] | None = None,
    panels: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    seed: int = 0,
    implementation: str | Subject | None = None,
    structures: Iterable[Structure] = (),
) -> list[Unit]:
    """Lay out a run.

    Parameters
    ----------
    operators : iterable of str, optional
        Names of operators, definitions or families (default: all). With an implementation: the operator it implements
        (default: the function's own name).
    panels : iterable of str, optional
        Default: those of `available_panels`; with an implementation, none.
    dtypes : iterable of {"float32", "float64"}, optional
        Default: both.
    seed : int
        Every number drawn follows from it.
    implementation : str or Subject, optional
        ``"mymodule:function"``: a user's function to check.
    structures : iterable of Structure, optional
        Inputs of the DimeNet++ family beside those shipped (`structures.read`).

    Returns
    -------
    list of Unit

    Raises
    ------
    ValueError
        If a name is unknown, a panel cannot run here, or structures are given for no operator.
    """
    operators = None if operators is None else list(operators)
    scopes = []
    if implementation is not None:
        if isinstance(implementation, str):
            if operators is not None and len(operators) != 1:
                raise ValueError(
                    f"verify: {implementation!r} implements one operator; got {', '.join(operators) or 'none'}"
                )
            implementation = adapt(implementation, operators[0] if operators else None)
        operators = [implementation.only] if operators is None and implementation.only else operators
        scopes.append(_Scope(implementation, _selection(operators)))
    selected = _selection(operators)
    if panels is None:
        panels = available_panels() if implementation is None else ()
    chosen = list(dict.fromkeys(panels))
    scopes += [_Scope(panel(name), selected) for name in chosen if name != "judge"]
    types = DTYPES if dtypes is None else tuple(dtypes)
    for dtype in types:
        if dtype not in DTYPES:
            raise ValueError(f"verify: dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    given = _distinct(structures)
    if given and not any(OPERATORS[name].family == "dimenet" for name in selected):
        raise ValueError("verify: structures are inputs of the dimenet family; none of its operators is asked for")
    return list(_Run(tuple(scopes), "judge" in chosen, selected, types, seed, given).units())


def _distinct(structures: Iterable[Structure]) -> tuple[Structure, ...]:
    """Return structures with names of their own: two files may have one name."""
    taken = {s.name for s in shipped()}
    found = []
    for structure in structures:
        name, number = structure.name, 2
        while name in taken:
            name, number = f"{structure.name} ({number})", number + 1
        taken.add(name)
        found.append(replace(structure, name=name))
    return tuple(found)


def run(
    operators: Iterable[str] | None = None,
    panels: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    seed: int = 0,
    implementation: str | Subject | None = None,
    progress: Callable[[Unit, list[Check]], object] | None = None,
    structures: Iterable[Structure] = (),
) -> list[Check]:
    """Verify.

    Parameters
    ----------
    operators, panels, dtypes, seed, implementation, structures
        As for `plan`.
    progress : callable, optional
        Called with each unit and its checks when it is done. The units to come are those of `plan` with the same
        arguments.

    Returns
    -------
    list of Check
    """
    checks = []
    for unit in plan(operators, panels, dtypes, seed, implementation, structures):
        found = unit.execute()
        checks += found
        if progress is not None:
            progress(unit, found)
    return checks

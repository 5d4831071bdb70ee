"""Verification run: everything in `trigraph verify` except its output.

`plan_run` divides the run into weighted units, which `units.execute` executes. Checks are derived from the operator
table; only golden vectors, real inputs, physics and radial functions are specific to families (golden.py, real.py,
physics.py, bessel.py).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from slopecheck.units import CheckTask, WorkUnit, make_work_unit
from trigraph.backends import BACKENDS, explain_unavailable
from trigraph.checks import HALF_BACKENDS
from trigraph.fortran.levels import get_cpu_level
from trigraph.table import DEFINITIONS, NAMED, THIRD, Definition
from trigraph.verification import golden, physics, tasks
from trigraph.verification.bessel import CASE, make_radial_basis_case
from trigraph.verification.cases import build_case, find_half_dtype, list_half_dtypes
from trigraph.verification.differences import JUDGE_STEPS
from trigraph.verification.differences import STEPS as BACKEND_STEPS
from trigraph.verification.differentiated import make_framework_subject, make_subject_from_forward
from trigraph.verification.implementation import make_user_subject
from trigraph.verification.judged import JudgedCase
from trigraph.verification.kinds import CaseVariant
from trigraph.verification.real import RealInput, build_real_case, list_real_inputs
from trigraph.verification.settings import Where, admits, parse_restriction
from trigraph.verification.structures import AtomicStructure, load_shipped_structures
from trigraph.verification.subjects import Subject, backend_takes_dtype, make_backend_subject
from trigraph.verification.tasks import CheckScope, Lazy
from trigraph.verification.terms import CHECK_KINDS
from trigraph.verification.variants import list_hub_variants, list_variants

DTYPES = ("float32", "float64")
DEFINED = frozenset(spec.name for spec in DEFINITIONS)
# Backends that are too slow for finite differences; their kernels are compared with the judge instead.
UNDIFFERENCED = ("gpu", "gpu-host")
EMULATED = ("gpu-host",)
# Approximate milliseconds per unit on one core; SHARE multiplies the time for the emulated device.
WEIGHTS = {
    "accuracy": 6,
    "threads": 15,
    "levels": 15,
    "blocks": 6,
    "calls": 6,
    "batch": 8,
    "nan": 15,
    "algebra": 8,
    "differences": 60,
    "third order": 150,
    "judge differences": 180,
    "patch": 10,
    "real adjoint": 25,
    "real judge": 1000,
    "real differences": 480,
    "bessel": 60,
    "every number": 20,
    "hub": 0.03,
    "forces": 100,
    "force training": 500,
    "invariance": 80,
}
SHARE = {"gpu-host": 3.0}

# Kinds of check that may be skipped for an implementation.
SKIPPED = tuple(kind for kind in CHECK_KINDS if kind not in ("empty", "complete", "not offered"))

# Numbers of terms in the sums of hubs. All subjects except the emulated device are checked with 1,950 terms. Subjects
# that sum in chunks, including the emulated device, are also checked with 8,100 terms, because their accuracy must not
# depend on the number of terms. Both numbers yield 2**k - 1 whole chunks, of 128 and of 256 terms, before the last one,
# so that every level of the tree of partial sums is used. Kernels add the partial sums of the longest sum 8 at a time.
HUB, LONGEST_HUB = 1_950, 8_100


def list_available_backends() -> tuple[str, ...]:
    """Return the backends that are available on this machine, which always include the judge."""
    return (*(name for name in BACKENDS if not explain_unavailable(name)), "judge")


def _select_operator_names(operators: Iterable[str] | None) -> frozenset[str]:
    """Return the operators selected by operator, definition or family name. Raises ValueError for an unknown name."""
    if operators is None:
        return frozenset(NAMED)
    selected: set[str] = set()
    for name in operators:
        named = {op.name for op in NAMED.values() if name in (op.name, op.definition.name, op.family)}
        if not named:
            raise ValueError(f"verify: operator is {name!r}; expected one of {', '.join(NAMED)}, or a family")
        selected |= named
    return frozenset(selected)


def find_section_name(unit: WorkUnit) -> str:
    """Return the section of the run to which a unit belongs: a definition, the forces, or the golden vectors."""
    name = unit.label.partition(",")[0]
    if name in DEFINED:
        return name
    return "golden vectors" if name.startswith("golden ") else "forces"


@dataclass(frozen=True)
class _VerificationRun:
    """Options of a run, which determine its units."""

    scopes: tuple[CheckScope, ...]
    judge: bool
    selected: frozenset[str]
    dtypes: tuple[str, ...]
    seed: int
    structures: tuple[AtomicStructure, ...]
    alone: bool
    where: Where

    def list_selected_definitions(self) -> list[Definition]:
        return [
            d for d in DEFINITIONS if any(op.definition is d and name in self.selected for name, op in NAMED.items())
        ]

    def yield_units(self) -> Iterator[WorkUnit]:
        """Yield the units: generated cases, real inputs and golden vectors or, if `alone`, only the structures."""
        if self.alone:
            for definition in (d for d in self.list_selected_definitions() if d.family == "dimenet"):
                for real in list_real_inputs("dimenet", self.structures)[len(load_shipped_structures()) :]:
                    yield from self._yield_real_input_units(definition, real)
            yield from self._yield_force_units(self.structures)
            return
        for definition in self.list_selected_definitions():
            for dtype in self.dtypes:
                for number, variant in enumerate(list_variants(definition, self.where)):
                    turn = self.dtypes[number % len(self.dtypes)] == dtype
                    yield from self._yield_variant_units(definition, variant, dtype, turn)
            for dtype in self.dtypes:
                yield from self._yield_hub_units(definition, dtype)
            for real in list_real_inputs(definition.family, self.structures):
                yield from self._yield_real_input_units(definition, real)
        if any(d.family == "dimenet" for d in self.list_selected_definitions()):
            yield from self._yield_dimenet_units()
        if "float32" in self.dtypes:
            yield from self._yield_half_units()
        yield from self._yield_golden_units()

    def _yield_variant_units(
        self, definition: Definition, variant: CaseVariant, dtype: str, turn: bool
    ) -> Iterator[WorkUnit]:
        """Yield the units of a case; include checks that use one dtype per setting if it is this dtype's `turn`."""
        # All arguments are bound, so this cache and the caches below have a single entry.
        judged = cache(partial(self._build_judged_case, definition, variant, dtype))
        label = f"{definition.name}, {variant.label}, {dtype}"
        kind = variant.kind
        differenced = kind.differenced and dtype == "float64"
        for scope in self.scopes:
            name = scope.subject.name
            unit = partial(_make_subject_unit, label, scope)
            if name in EMULATED and kind.large and not turn:
                continue
            checks = {
                "accuracy": True,
                "threads": name == "fortran" and not kind.one_thread,
                "levels": name == "fortran",
                "blocks": kind.many and scope.subject.small_blocks is not None,
            }
            for check in (check for check, wanted in checks.items() if wanted):
                yield unit(check, tasks.make_operator_tasks, judged, [check])
            if kind.batch and turn:
                yield unit("batch", tasks.make_operator_tasks, judged, ["batch"], self.seed)
            if kind.called and (turn or kind.differenced):
                yield unit("calls", tasks.make_calling_convention_tasks, judged)
            if turn and kind.differenced:
                yield unit("nan", tasks.make_nonfinite_tasks, judged)
            if kind.differenced:
                yield unit("algebra", tasks.make_algebraic_property_tasks, judged, self.seed)
            if kind.third and (turn or kind.scaled):
                kinds = ["accuracy", *["batch"] * kind.batch]
                steps = BACKEND_STEPS if kind.differenced and name not in EMULATED else None
                if kind.called and name not in EMULATED:
                    kinds += ["repeat", "layout", *["subsets"] * scope.subject.selective]
                    kinds += ["out"] * (scope.subject.into is not None)
                kinds += ["permutation"] * (steps is not None)
                kinds += ["threads"] * (name == "fortran" and not kind.one_thread) + ["levels"] * (name == "fortran")
                yield unit("third order", tasks.make_third_order_tasks, judged, kinds, steps, self.seed)
            if differenced and name not in UNDIFFERENCED:
                yield unit("differences", tasks.make_difference_tasks, judged, BACKEND_STEPS)
        if self.judge and differenced and (not self.where or admits(self.where, judged().case.values)):
            curves = partial(tasks.make_judge_difference_tasks, judged, self.selected, JUDGE_STEPS)
            yield make_work_unit(f"{label}: judge differences", WEIGHTS["judge differences"], curves)

    def _yield_hub_units(self, definition: Definition, dtype: str) -> Iterator[WorkUnit]:
        real = tuple(s for s in self.scopes if s.subject.name not in EMULATED)
        some = [(real, v) for v in list_hub_variants(definition, HUB, "positive")]
        # Omit users' functions: their tolerance is half the number of terms, for which equal terms are a weak test.
        backends = tuple(s for s in real if s.subject.implements is None)
        some += [(backends, v) for v in list_hub_variants(definition, HUB, "constant")]
        if dtype == "float32":
            chunked = tuple(s for s in self.scopes if s.subject.chunked)
            some += [(chunked, v) for v in list_hub_variants(definition, LONGEST_HUB, "constant")]
        for scopes, variant in some:
            if scopes:
                # All subjects share a unit, so that the judge's large results can be freed early.
                judged = partial(self._build_judged_case, definition, variant, dtype)
                check = partial(tasks.make_hub_tasks, scopes, judged, variant.degree == HUB)
                label = f"{definition.name}, {variant.label}, {dtype}"
                yield make_work_unit(label, WEIGHTS["hub"] * variant.degree, check)

    def _yield_real_input_units(self, definition: Definition, real: RealInput) -> Iterator[WorkUnit]:
        def make_lazy_judged_case(dtype: str, patch: bool) -> Lazy:
            return cache(lambda: JudgedCase(build_real_case(real, definition, dtype, self.seed, patch)))

        for dtype in self.dtypes:
            patch = make_lazy_judged_case(dtype, True)
            for scope in self.scopes:
                label = f"{definition.name}, {real.name} patch, {dtype}"
                yield _make_subject_unit(
                    label, scope, "accuracy", tasks.make_operator_tasks, patch, ["accuracy"], weight=WEIGHTS["patch"]
                )
        if "float64" not in self.dtypes:
            return
        whole = make_lazy_judged_case("float64", False)
        # Finite differences on the whole input are slow and use only one backend. All backends are compared with the
        # judge on the patch.
        differenced = next((s for s in self.scopes if s.subject.name not in UNDIFFERENCED), None)
        for scope in self.scopes:
            if real.backends and scope.subject.name not in real.backends:
                continue
            unit = partial(_make_subject_unit, f"{definition.name}, {real.name}, float64", scope)
            # The weight of the first subject's unit includes the time of the judge.
            weight = WEIGHTS["real adjoint"] + (WEIGHTS["real judge"] if scope is self.scopes[0] else 0)
            yield unit("adjoint", tasks.make_adjoint_tasks, whole, weight=weight)
            if scope is differenced and real.steps:
                weight = WEIGHTS["real differences"]
                yield unit("differences", tasks.make_difference_tasks, whole, real.steps, weight=weight)

    def _yield_dimenet_units(self) -> Iterator[WorkUnit]:
        """Yield units for radial functions over three decades of x, and for forces on structures."""
        for dtype in self.dtypes:
            judged = cache(partial(make_radial_basis_case, dtype, self.seed))
            for scope in self.scopes:
                label = f"radial_basis, {CASE}, {dtype}"
                yield _make_subject_unit(
                    label, scope, "accuracy", tasks.make_bessel_tasks, judged, weight=WEIGHTS["bessel"]
                )
        yield from self._yield_force_units((*load_shipped_structures(), *self.structures))

    def _yield_half_units(self) -> Iterator[WorkUnit]:
        """Yield units for cases in half precision, alternating float16 and (with ml_dtypes) bfloat16."""

        def select_half_scopes(half: str) -> list[CheckScope]:
            named = [s for s in self.scopes if s.subject.name in HALF_BACKENDS]
            return [s for s in named if backend_takes_dtype(s.subject.name, find_half_dtype(half))]

        for definition in (d for d in self.list_selected_definitions() if any(a.half for a in d.inputs)):
            for number, variant in enumerate(v for v in list_variants(definition, self.where) if v.kind.every_setting):
                half = list_half_dtypes()[number % len(list_half_dtypes())]
                judged = cache(partial(self._build_judged_case, definition, variant, "float32", half))
                for scope in select_half_scopes(half):
                    label = f"{definition.name}, {variant.label}, {half}"
                    yield _make_subject_unit(label, scope, "accuracy", tasks.make_operator_tasks, judged, ["half"])
        for half in list_half_dtypes():
            for scope in select_half_scopes(half):
                yield _make_subject_unit(
                    f"every number of {half}", scope, "every number", tasks.make_every_half_number_tasks, half
                )

    def _build_judged_case(
        self, definition: Definition, variant: CaseVariant, dtype: str, half: str | None = None
    ) -> JudgedCase:
        return JudgedCase(build_case(definition, variant, dtype, self.seed, half))

    def _yield_force_units(self, structures: Iterable[AtomicStructure]) -> Iterator[WorkUnit]:
        if "float64" not in self.dtypes:
            return
        for structure in structures:
            system = cache(partial(physics.make_physical_system, structure))
            for scope in self.scopes:
                for kind in physics.CHECKS:
                    yield _make_subject_unit(
                        f"{structure.name}, float64", scope, kind, tasks.make_physics_tasks, kind, system
                    )

    def _read_selected_vectors(self, name: str, path: Path) -> list[golden.GoldenVector]:
        vectors = golden.read_vectors(name, path)
        return [v for v in vectors if v.operator in self.selected and admits(self.where, v.values)]

    def _yield_golden_units(self) -> Iterator[WorkUnit]:
        for name, path in golden.find_golden_files().items():
            vectors = cache(partial(self._read_selected_vectors, name, path))
            size = path.stat().st_size / 1000
            for scope in self.scopes:
                for dtype in self.dtypes:  # units of one group run in one process, which calls the judge once
                    yield _make_subject_unit(
                        f"golden {name}", scope, dtype, tasks.make_golden_tasks, vectors, dtype, weight=1 + size / 50
                    )
            if self.judge:
                yield make_work_unit(
                    f"golden {name}: judge", size, partial(tasks.make_golden_tasks, None, vectors, "float64")
                )
        absent = golden.list_missing_vector_failures()
        if absent:
            yield WorkUnit("golden vectors that are missing", 1, lambda: len(absent), lambda: absent)


def _make_subject_unit(
    label: str,
    scope: CheckScope,
    kind: str,
    tasks: Callable[..., list[CheckTask]],
    *arguments: Any,
    weight: float | None = None,
) -> WorkUnit:
    """Return a unit for one kind of check, with the tasks that ``tasks(scope, *arguments)`` returns."""
    subject = scope.subject.name
    weight = (WEIGHTS[kind] if weight is None else weight) * SHARE.get(subject, 1.0)
    return make_work_unit(f"{label}: {subject} {kind}", weight, partial(tasks, scope, *arguments))


def plan_run(
    operators: Iterable[str] | None = None,
    backends: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    seed: int = 0,
    implementation: str | Subject | None = None,
    structures: Iterable[AtomicStructure] = (),
    alone: bool = False,
    where: Iterable[str] = (),
    framework: str | None = None,
    device: str | None = None,
    skip: Iterable[str] = (),
) -> list[WorkUnit]:
    """Return the units of a run; `seed` determines all random numbers.

    `operators` lists names of operators, definitions or families (default: all); with an implementation, it names the
    operator that it implements (default: the operator with its name). `backends` defaults to `list_available_backends`,
    or to none with an implementation. `implementation` is a `Subject`, or a string ``"mymodule:function"`` that names a
    user's function. With a `framework` ("torch" or "jax"), the function is the forward of an operator for tensors on a
    `device`, and all orders are checked (`differentiated`); without an implementation, the functions of
    `trigraph.torch` or `trigraph.jax` are checked. `structures` (`structures.read_structure`) are additional inputs of
    the DimeNet++ family or, with `alone`, the only inputs of the run. `where` restricts the settings of all operators
    (`settings.parse_restriction`). `skip` lists the kinds of check (`SKIPPED`) to omit for the implementation.

    Raises ValueError if a name or kind is unknown, a backend is not available, structures are given but no operator
    uses them, or `TRIGRAPH_CPU_LEVEL` is a level that this processor cannot run.
    """
    with suppress(ImportError):  # missing backends that were requested are reported below
        get_cpu_level()
    operators = None if operators is None else list(operators)
    skip, scopes = list(skip), []
    if unknown := [kind for kind in skip if kind not in SKIPPED]:
        raise ValueError(f"verify: skip names {', '.join(unknown)}; expected {', '.join(SKIPPED)}")
    if framework is not None and implementation is None:
        implementation = make_framework_subject(framework, device)
        third = _select_operator_names(operators) & THIRD.keys()
        scopes.append(CheckScope(make_framework_subject(framework, device, recorded=True), third, skip=frozenset(skip)))
    if implementation is not None:
        if isinstance(implementation, str):
            if operators is not None and len(operators) != 1:
                raise ValueError(
                    f"verify: {implementation!r} implements one operator; got {', '.join(operators) or 'none'}"
                )
            target = operators[0] if operators else None
            if framework is not None:
                implementation, target = make_subject_from_forward(implementation, target, framework, device)
                operators = [target]
            else:
                implementation = make_user_subject(implementation, target)
        operators = [implementation.implements] if operators is None and implementation.implements else operators
        scopes.append(CheckScope(implementation, _select_operator_names(operators), skip=frozenset(skip)))
    selected = _select_operator_names(operators)
    if alone:
        selected = frozenset(name for name in selected if NAMED[name].family == "dimenet")
    restricted = parse_restriction(where, [name for name in NAMED if name in selected])
    scopes = [replace(s, where=restricted) for s in scopes]
    if backends is None:
        backends = list_available_backends() if implementation is None else ()
    chosen = list(dict.fromkeys(backends))
    scopes += [CheckScope(make_backend_subject(name), selected, restricted) for name in chosen if name != "judge"]
    types = DTYPES if dtypes is None else tuple(dtypes)
    for dtype in types:
        if dtype not in DTYPES:
            raise ValueError(f"verify: dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    distinct = _give_distinct_names(structures)
    if distinct and not any(NAMED[name].family == "dimenet" for name in selected):
        raise ValueError("verify: structures are inputs of the dimenet family; none of its operators is selected")
    return list(
        _VerificationRun(
            tuple(scopes), "judge" in chosen, selected, types, seed, distinct, alone, restricted
        ).yield_units()
    )


def _give_distinct_names(structures: Iterable[AtomicStructure]) -> tuple[AtomicStructure, ...]:
    """Return the structures with distinct names, because several files may have the same name."""
    taken = {s.name for s in load_shipped_structures()}
    distinct = []
    for structure in structures:
        name, number = structure.name, 2
        while name in taken:
            name, number = f"{structure.name} ({number})", number + 1
        taken.add(name)
        distinct.append(replace(structure, name=name))
    return tuple(distinct)

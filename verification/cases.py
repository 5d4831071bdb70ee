"""Generation of cases: arguments for all operators of a definition, drawn according to the operator table.

A case contains the values of all arguments of a definition's fwd, bwd, bwd2 and bwd3, and one direction for each
differentiable argument. Definition, variant, dtype and seed determine the case.
"""

import importlib
import importlib.util
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trigraph import pyref
from trigraph.checks import HALF, evaluate_shape, find_choice_index
from trigraph.table import OPERATORS, SYMBOLS, Array, Definition
from trigraph.verification.case import Case, make_read_only
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.kinds import CaseVariant
from trigraph.verification.variants import choose_sizes
from trigraph.verification.variants import list_hub_variants as list_hub_variants
from trigraph.verification.variants import list_variants as list_variants

# Rows are redrawn until |value| >= 2 |change of value| for the largest finite-difference step. Cases that are evaluated
# at only one point use POINT_STEP, which changes values by more than rounding does.
POINT_STEP = 2.0**-12
MAX_ROUNDS = 2000
ROOM = 32  # number of powers of two by which products of scaled cotangents stay below overflow
LARGEST_FREQUENCY = 20.0


def draw_arrays(
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    dtype: str,
    rng: np.random.Generator,
    data: str = "any",
    half: str | None = None,
) -> dict[str, np.ndarray]:
    """Draw values for arrays of the operator table, ``{a.name: a for a in op.arguments}``, with the given sizes.

    Numbers are rounded to `dtype`, so that all subjects and the judge get the same numbers; arrays are read-only. If
    `half` names a half-precision dtype, arrays that kernels also accept in that dtype are rounded to it first.

    `data` is "any" for standard normal numbers; "integers" for integers from -2 to 2, to test conventions such as
    relu'(0) = 0 (sums of products are exact in any order, and often exactly zero); "positive" for sums without
    cancellation; or "constant" for positive numbers with equal rows (nodes, edges, ...).
    """

    def draw_numbers(shape: tuple[int, ...], sample: str) -> np.ndarray:
        if sample == "unit interval":  # distances; some are beyond the cutoff 1
            return rng.uniform(0.1, 0.9 if data in ("positive", "constant") else 1.1, shape)
        if sample == "frequency":  # DimeNet++ has frequencies from pi to 6 pi
            return rng.uniform(1, LARGEST_FREQUENCY, shape)
        if sample == "change of frequency":
            return LARGEST_FREQUENCY / 2 * rng.standard_normal(shape)
        if data == "integers":  # positive, because the sum of the weights is a divisor
            return rng.integers(1, 3, shape) if sample == "positive" else rng.integers(-2, 3, shape)
        if data != "any" or sample == "positive":
            return rng.uniform(0.5, 1.5, shape)
        return rng.standard_normal(shape)

    def draw_array(spec: Array) -> np.ndarray:
        drawn = draw_numbers(evaluate_shape(spec, sizes), spec.sample)
        rows = SYMBOLS.get(spec.dims[0])
        if data == "constant" and rows and not rows.minimum:
            drawn[:] = drawn[:1]
        return make_read_only((drawn.astype(find_half_dtype(half)) if half and spec.half else drawn).astype(dtype))

    return {name: draw_array(spec) for name, spec in arrays.items()}


def list_half_dtypes() -> tuple[str, ...]:
    """Return the names of the half-precision dtypes: float16 and, if ml_dtypes is installed, bfloat16."""
    return HALF if importlib.util.find_spec("ml_dtypes") else HALF[:1]


def find_half_dtype(name: str) -> np.dtype:
    """Return the dtype with a name from `list_half_dtypes`."""
    return np.dtype(name if name == "float16" else getattr(importlib.import_module("ml_dtypes"), name))


def mark_rows_near_kinks(
    definition: Definition, values: Mapping[str, Any], directions: Mapping[str, np.ndarray], step: float
) -> dict[str, np.ndarray]:
    """Return masks of the rows that are too close to a kink, by name of the input to be resampled.

    A row is too close if, for any of its elements, |value| < 2 |change| in a step of +-`step`, the largest
    finite-difference step, along the direction of any input.
    """
    violations: dict[str, np.ndarray] = {}
    present = [a for a in definition.inputs if values[a.name] is not None]
    wide = {a.name: np.asarray(values[a.name], np.float64) for a in present}
    fixed = {name: v for name, v in values.items() if name not in wide and name not in definition.request_names}
    for kink in definition.kinks:
        function = getattr(pyref, kink.function)
        value = function(**wide, **fixed)
        change = np.zeros_like(value)
        for array in present:
            for sign in (step, -step):
                moved = {**wide, array.name: wide[array.name] + sign * directions[array.name]}
                change = np.fmax(change, abs(function(**moved, **fixed) - value))
        clear = abs(value) >= 2 * change
        rows = ~clear.reshape(len(value), -1).all(axis=1) if value.size else np.zeros(len(value), bool)
        if kink.rows:
            named = getattr(values["graph"], kink.rows)[rows]
            rows = np.zeros(len(wide[kink.resample]), bool)
            rows[named] = True
        violations[kink.resample] = violations.get(kink.resample, False) | rows
    return violations


def _resample_near_kinks(case: Case, rng: np.random.Generator) -> Case:
    """Redraw rows until none is too close to a kink; raise RuntimeError after `MAX_ROUNDS` rounds."""
    for _ in range(MAX_ROUNDS):
        bad = mark_rows_near_kinks(case.definition, case.values, case.directions, case.largest_step)
        if not any(rows.any() for rows in bad.values()):
            return case
        values = dict(case.values)
        for name, rows in bad.items():
            array = values[name].copy()
            spec = next(a for a in case.definition.inputs if a.name == name)
            again = draw_arrays({name: spec}, case.sizes, str(array.dtype), rng, half=case.half)[name]
            array[rows] = again[rows]
            values[name] = make_read_only(array)
        case = replace(case, values=values)
    raise RuntimeError(f"{case.definition.name}, {case.name}: no inputs clear of kinks after {MAX_ROUNDS} rounds")


def use_normal_distribution(array: Array) -> Array:
    """Return the array with a standard normal distribution, because the domain of cotangents is not restricted."""
    return replace(array, sample="normal")


def use_direction_distribution(array: Array) -> Array:
    """Return the array with the distribution of directions, which for frequencies are as large as frequencies."""
    return replace(array, sample="change of frequency" if array.sample == "frequency" else "normal")


def draw_case_on_graphs(
    definition: Definition,
    graphs: Mapping[str, Any],
    sizes: Mapping[str, int],
    setting: Mapping[str, Any],
    dtype: str,
    rng: np.random.Generator,
    name: str = "",
    data: str = "any",
    half: str | None = None,
) -> Case:
    """Draw the arrays of a case; `graphs` maps argument names to graph objects.

    `sizes` contains the sizes that no graph object determines. `setting` contains the choices and numbers that differ
    from the defaults, and None for absent inputs and graph objects. `data` and `half` are as for `draw_arrays`. The
    case has no directions and may be close to kinks. Arrays are read-only, so that backends that write to inputs fail.
    """
    op, sizes = OPERATORS[f"{definition.name}_fwd"], dict(sizes)
    graphs = {a.name: setting.get(a.name, graphs[a.name]) for a in op.graph_kind.arguments} if op.graph_kind else {}
    if op.graph_kind is not None:
        sizes |= op.graph_kind.find_sizes(graphs)
    attributes = {a.name: setting.get(a.name, sizes[a.name] if a.is_size else a.default) for a in definition.attributes}
    attributes |= dict.fromkeys(definition.request_names, True)
    inputs = {a.name: a for a in definition.inputs if setting.get(a.name, a) is not None}
    absent = dict.fromkeys(a.name for a in definition.inputs if a.name not in inputs)
    sizes |= {f"has_{n}": int({**absent, **inputs, **graphs}[n] is not None) for n in definition.optional_names}
    sizes |= {a.name: find_choice_index(a.choices, attributes[a.name]) for a in definition.attributes if a.choices}
    grads = {f"grad_{a.name}": a for a in definition.outputs}
    ggs = {f"gg_{n}": use_normal_distribution(a) for n, a in inputs.items()}
    (third_rng,) = rng.spawn(1)  # a separate generator, so that third-order arrays do not change other numbers
    gggs = {f"ggg_{n}": use_normal_distribution(a) for n, a in {**grads, **inputs}.items()}
    values, grad, gg = (draw_arrays(arrays, sizes, dtype, rng, data, half) for arrays in (inputs, grads, ggs))
    ggg = draw_arrays(gggs, sizes, dtype, third_rng, data, half)
    whole = {**absent, **values, **graphs, **attributes}
    return Case(name, definition, sizes, whole, grad, gg, {}, 0.0, half=half, gggs=ggg)


def build_case(definition: Definition, variant: CaseVariant, dtype: str, seed: int, half: str | None = None) -> Case:
    """Build the case for one of ``list_variants(definition)``; `half` is as for `draw_arrays`."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{definition.name}/{variant.label}".encode())])
    sizes = choose_sizes(definition, variant)
    kind = GRAPHS[definition.graph]
    graphs, graph_inputs = (kind.build_hub_graphs if variant.degree else kind.build_variant_graphs)(variant, sizes, rng)
    setting = {a.name: a.choices[(1 + variant.pick) % len(a.choices)] for a in definition.attributes if a.choices}
    name = variant.label + (f", {half}" if half else "")
    case = draw_case_on_graphs(
        definition, graphs, sizes, {**setting, **variant.setting}, dtype, rng, name, variant.distribution, half
    )
    inputs = {a.name: a for a in case.inputs}
    grads = {f"grad_{a.name}": a for a in definition.outputs}
    directions = draw_arrays(
        {n: use_direction_distribution(a) for n, a in {**inputs, **grads}.items()},
        case.sizes,
        dtype,
        rng,
        variant.distribution,
        half,
    )
    (third_rng,) = rng.spawn(1)
    directions |= draw_arrays(
        {f"gg_{n}": use_normal_distribution(a) for n, a in inputs.items()},
        case.sizes,
        dtype,
        third_rng,
        variant.distribution,
        half,
    )
    values = dict(case.values)
    values |= {n: make_read_only(array.astype(dtype)) for n, array in graph_inputs.items() if n in inputs}
    factors = {n: factor for n, factor in variant.kind.factors.items() if n in inputs}
    values |= {n: make_read_only((factor * values[n]).astype(dtype)) for n, factor in factors.items()}
    step = definition.largest_step if variant.kind.differenced else POINT_STEP
    equal = variant.distribution == "constant" or variant.kind.equal_terms
    case = replace(case, values=values, directions=directions, largest_step=step, equal_terms=equal)
    case = scale_cotangents(case, rng) if variant.kind.scaled else case
    return case if variant.distribution != "any" else _resample_near_kinks(case, rng)


def scale_cotangents(case: Case, rng: np.random.Generator) -> Case:
    """Multiply each kind of cotangent by powers of two, which are negative for at most one kind.

    Results are sums of products of cotangents; none of the products overflows.
    """
    room = np.finfo(case.dtype).maxexp - ROOM
    powers = np.diff([0, *np.sort(rng.integers(room, size=2)), room])
    powers[rng.permutation(4)[:3] == 0] *= -1
    kinds = [case.grads, case.ggs, case.gggs]
    grads, ggs, gggs = (
        {n: make_read_only(np.ldexp(a, power - rng.integers(room // 8))) for n, a in arrays.items()}
        for power, arrays in zip(powers, kinds, strict=True)
    )
    return replace(case, grads=grads, ggs=ggs, gggs=gggs)

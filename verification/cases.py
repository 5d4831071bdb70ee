"""Cases: inputs for every operator of a definition, generated from the operator table.

A case holds the values of all arguments that a definition's fwd, bwd and bwd2 take, and one direction for each
differentiable argument. Cases are a function of definition, variant, dtype and seed alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from trigraph import pyref
from trigraph.checks import position, shape_of
from trigraph.operators import SYMBOLS, Argument, Array, Attribute, Definition, Operator
from trigraph.verification.case_graphs import GRAPHS
from trigraph.verification.hubs import HUBS, SETTINGS, WIDTH, WIDTHS
from trigraph.verification.settings import Where, settings_of

__all__ = [
    "MANY",
    "POINT_STEP",
    "VARIANTS",
    "Case",
    "Variant",
    "build",
    "draw",
    "frozen",
    "hubs",
    "kink_violations",
    "plain",
    "variants",
]

# Margin from kinks: rows are drawn again until |value| >= 2 |change of value| for the largest step of any difference.
# Cases that are only compared at one point keep clear of kinks by more than rounding could carry them.
POINT_STEP = 2.0**-12
MAX_ROUNDS = 2000
LARGEST_FREQUENCY = 20.0


@dataclass(frozen=True)
class Case:
    """Arguments of the operators of one definition.

    Attributes
    ----------
    name : str
        Variant, or the real input's name.
    definition : Definition
    sizes : mapping
        Size of every symbol.
    values : mapping
        Arguments of fwd: inputs, graph, attributes.
    grads : mapping
        ``grad_<output>``: cotangents of the outputs.
    ggs : mapping
        ``gg_<input>``: cotangents of the gradients.
    directions : mapping
        One direction for each input and each ``grad_<output>``.
    largest_step : float
        Steps up to here stay on one side of every kink.
    note : str
        What a reader of the results should know about it.
    kind : str
        Name of the variant, without its setting; "" for real inputs.
    equal_terms : bool
        Whether the terms of its sums are equal, or many of them, since many edges share the same few rows: rounding
        errors of a direct sum add up, instead of cancelling in part.
    """

    name: str
    definition: Definition
    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    grads: Mapping[str, np.ndarray]
    ggs: Mapping[str, np.ndarray]
    directions: Mapping[str, np.ndarray]
    largest_step: float
    note: str = ""
    kind: str = ""
    equal_terms: bool = False

    @property
    def inputs(self) -> tuple[Array, ...]:
        """Inputs that are there; optional ones may be absent."""
        return tuple(a for a in self.definition.inputs if self.values[a.name] is not None)

    def given(self, op: Operator) -> tuple[Argument, ...]:
        """Array arguments of an operator that are there."""
        return op.given(self.arguments(op))

    def returned(self, op: Operator) -> tuple[Array, ...]:
        """Fields an operator returns for these inputs and choices."""
        return op.returned(self.values, self.sizes)

    def derived(self, op: Operator) -> tuple[Array, ...]:
        """Fields that have a derivative."""
        return tuple(f for f in self.returned(op) if f not in self.definition.auxiliary)

    @cached_property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``."""
        return str(self.values[self.definition.inputs[0].name].dtype)

    def arguments(self, op: Operator) -> dict[str, Any]:
        """Keyword arguments of one of the definition's operators, `wrt` excluded; nothing is given back."""
        absent = [f"gg_{a.name}" for a in self.definition.inputs if a.optional]
        absent += [a.name for a in op.arguments if a.given_back]
        known = {**dict.fromkeys(absent), **self.values, **self.grads, **self.ggs}
        return {name: known[name] for name in op.parameters}


@dataclass(frozen=True)
class Variant:
    """How the sizes and the graph of a case are chosen.

    `pick` chooses among the typical sizes; `differenced` cases keep the wide margin from kinks and are used for finite
    differences and the algebraic properties; `setting` fixes choices, and inputs that are absent; `degree` is that of
    the hubs of hubs.py, 0 elsewhere; `data` says what numbers are drawn (`draw`); `sizes` fixes sizes of symbols, and
    definitions that lack one of these have no such variant.
    """

    name: str
    pick: int
    index: type[np.signedinteger[Any]]
    differenced: bool = False
    setting: Mapping[str, Any] = field(default_factory=dict)
    degree: int = 0
    data: str = "any"
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name, and its setting."""
        return ", ".join([self.name, *(f"{name}={value}" for name, value in self.setting.items())])


# Edges without a graph: more than two chunks of 256, and whole ones.
LENGTHS = {"length 700": 700, "length 256": 256, "length 257": 257, "length 512": 512}

# By kind of graph (None: no graph).
VARIANTS: dict[str | None, tuple[Variant, ...]] = {
    "edges": (
        Variant("regular", 0, np.int64, True),
        Variant("periodic", 1, np.int32, True),
        Variant("square", 2, np.int32),
        Variant("skewed", 1, np.int64),
        Variant("boundaries", 1, np.int32),
        Variant("wide", 0, np.int32),
        Variant("one channel", 0, np.int64),
        Variant("one edge", 0, np.int64),
        Variant("no edges", 0, np.int32),
        Variant("no nodes", 0, np.int64),
        # Other images of i than that of e itself are left out, and each node has so many edges that its sum is linear.
        Variant("images", 1, np.int32, setting={"exclude": "node"}),
    ),
    "csc": (
        Variant("regular", 0, np.int64, True),
        Variant("shared rows", 2, np.int32, True),
        Variant("square", 1, np.int32),
        Variant("skewed", 1, np.int64),
        Variant("boundaries", 1, np.int32),
        Variant("wide", 0, np.int32),
        Variant("one channel", 0, np.int32),
        Variant("integers", 0, np.int64, data="integers"),
        Variant("one edge", 0, np.int64),
        Variant("no edges", 0, np.int32),
        Variant("no nodes", 0, np.int64),
        Variant("unused rows", 0, np.int32),
        # More heads than are taken together (4 and 8), of widths that are whole vectors of a processor or of a thread.
        Variant("heads of 8", 0, np.int32, sizes={"num_heads": 9, "dim_head": 8}),
        Variant("heads of 16", 0, np.int64, sizes={"num_heads": 9, "dim_head": 16}),
        # Rows wider than the lanes of a block take at once.
        Variant("rows of 132", 0, np.int32, sizes={"dim": 132}),
        Variant("features of 132", 0, np.int64, sizes={"f_in": 132}),
    ),
    None: (
        Variant("regular", 0, np.int64, True),
        Variant("second sizes", 1, np.int64, True),
        *(Variant(name, 2, np.int64) for name in LENGTHS),
        Variant("wide", 0, np.int64),
        Variant("one channel", 0, np.int64),
        Variant("integers", 0, np.int64, data="integers"),
        Variant("one edge", 0, np.int64),
        Variant("no edges", 0, np.int64),
    ),
}


SEGMENTS = (
    Variant("regular", 0, np.int64, True),
    Variant("second sizes", 1, np.int32, True),
    Variant("skewed", 1, np.int64),
    Variant("boundaries", 1, np.int32),
    Variant("wide", 0, np.int32),
    Variant("one channel", 0, np.int64),
    Variant("integers", 0, np.int64, data="integers"),
    Variant("one edge", 0, np.int32),
    Variant("no edges", 0, np.int64),
    Variant("no nodes", 0, np.int32),
)
VARIANTS |= {"triplets": SEGMENTS, "bilinear": SEGMENTS}


EVERY_SETTING = ("regular", "skewed", "boundaries", "integers", "unused rows", "heads of 8", "heads of 16")


def variants(definition: Definition, where: Where | None = None) -> tuple[Variant, ...]:
    """Variants a definition is tried on: one setting each in turn, every setting on those of `EVERY_SETTING`.

    `where` restricts the settings.
    """
    settings = settings_of(definition, where or {})
    base = tuple(v for v in VARIANTS[definition.graph] if v.sizes.keys() <= set(definition.symbols))
    if not settings:
        return base
    turns = [replace(v, setting=settings[i % len(settings)]) for i, v in enumerate(base)]
    more = [replace(v, setting=s) for v in base if v.name in EVERY_SETTING for s in settings]
    return (*turns, *(v for v in more if v not in turns))


def hubs(definition: Definition, degree: int, data: str) -> tuple[Variant, ...]:
    """Variants with sums of `degree` terms, that are "positive", or "constant": positive and equal."""
    index = np.int32 if data == "positive" else np.int64
    return tuple(
        Variant(f"hub of {degree}, {data}", 0, index, setting=setting, degree=degree, data=data)
        for setting in SETTINGS.get(definition.name, ({},))
    )


# Widths that are 1 in "one channel", beside others that are not: an axis of one has any stride.
CHANNELS = ("d", "dim", "f_in", "n_emb", "n_spherical", "num_heads", "num_spherical")

# Graphs with more edges at one place than a chunk has; widths are small in return.
MANY = ("skewed", "boundaries", *LENGTHS)

# What there is none of in "no edges", by kind of graph: rows of edge arrays stay, that nothing uses.
MEMBERS: dict[str | None, str] = {
    "csc": "num_positions",
    "edges": "num_positions",
    "triplets": "num_triplets",
    "bilinear": "num_triplets",
}


def _sizes(definition: Definition, variant: Variant) -> dict[str, int]:
    """Sizes of every symbol but those that a graph settles (case_graphs.py, hubs.py)."""
    if variant.degree:
        return {name: WIDTHS.get(name, WIDTH) for name in definition.symbols}
    sizes = {}
    for name in definition.symbols:
        symbol = SYMBOLS[name]
        size = symbol.typical[variant.pick % len(symbol.typical)]
        if variant.name == "wide":
            # Widths above tiles of 16, 32 and 64, and odd; few entities, since the judge pays for the widths.
            size = 6 * symbol.typical[0] + 9 if symbol.minimum else 3
        elif variant.name == "one channel" and name in CHANNELS:
            size = 1
        elif variant.name in LENGTHS and not symbol.minimum:
            size = LENGTHS[variant.name]
        elif variant.name in MANY and symbol.minimum:
            size = min(symbol.typical)
        elif variant.name == "one edge" and not symbol.minimum:
            size = 1
        elif variant.name == "no edges" and name == MEMBERS.get(definition.graph, "num_edges"):
            size = 0  # a graph keeps rows of edge arrays that nothing uses
        elif variant.name == "no nodes" and not symbol.minimum:
            size = 0
        sizes[name] = size if symbol.maximum is None else min(size, symbol.maximum)
    return sizes | dict(variant.sizes)


def frozen(array: np.ndarray) -> np.ndarray:
    """Return the array, made read-only."""
    array.setflags(write=False)
    return array


def draw(
    arrays: Mapping[str, Array], sizes: Mapping[str, int], dtype: str, rng: np.random.Generator, data: str = "any"
) -> dict[str, np.ndarray]:
    """Draw numbers rounded to dtype, so that everyone gets them exactly, the judge too.

    `data` is "any": standard normal numbers; "integers": from -2 to 2, since sums of products of those are exact in
    every order, so that the values of a kink are often exactly zero, where an operator's convention (relu'(0) = 0) must
    hold; "positive": nothing cancels in a sum; or "constant": positive, all rows of nodes, edges and so on equal.
    """

    def numbers(shape: tuple[int, ...], sample: str) -> np.ndarray:
        if sample == "unit interval":  # and mostly a little beyond its end, where a cutoff lies
            return rng.uniform(0.1, 0.9 if data in ("positive", "constant") else 1.1, shape)
        if sample == "frequency":  # of waves in the unit interval: pi to 6 pi in DimeNet++
            return rng.uniform(1, LARGEST_FREQUENCY, shape)
        if sample == "change of frequency":
            return LARGEST_FREQUENCY / 2 * rng.standard_normal(shape)
        if data == "integers":  # weights are positive: their sum divides
            return rng.integers(1, 3, shape) if sample == "positive" else rng.integers(-2, 3, shape)
        if data != "any" or sample == "positive":
            return rng.uniform(0.5, 1.5, shape)
        return rng.standard_normal(shape)

    def array(spec: Array) -> np.ndarray:
        drawn = numbers(shape_of(spec, sizes), spec.sample)
        rows = SYMBOLS.get(spec.dims[0])
        if data == "constant" and rows and not rows.minimum:
            drawn[:] = drawn[:1]
        return frozen(drawn.astype(dtype))

    return {name: array(spec) for name, spec in arrays.items()}


def kink_violations(
    definition: Definition, values: Mapping[str, Any], directions: Mapping[str, np.ndarray], step: float
) -> dict[str, np.ndarray]:
    """Rows of each resampled input that come too near a kink.

    Parameters
    ----------
    definition : Definition
    values : mapping
        Arguments of fwd.
    directions : mapping
        Directions of the inputs.
    step : float
        Largest step of any difference.

    Returns
    -------
    mapping from input to boolean array
        True where some |value| < 2 |change| for a step of +-`step` along some input's direction.
    """
    found: dict[str, np.ndarray] = {}
    present = [a for a in definition.inputs if values[a.name] is not None]
    wide = {a.name: np.asarray(values[a.name], np.float64) for a in present}
    fixed = {name: v for name, v in values.items() if name not in wide}
    for kink in definition.kinks:
        function = getattr(pyref, kink.function)
        here = function(**wide, **fixed)
        change = np.zeros_like(here)
        for array in present:
            for sign in (step, -step):
                moved = {**wide, array.name: wide[array.name] + sign * directions[array.name]}
                change = np.fmax(change, abs(function(**moved, **fixed) - here))
        clear = abs(here) >= 2 * change
        rows = ~clear.reshape(len(here), -1).all(axis=1) if here.size else np.zeros(len(here), bool)
        if kink.rows:
            named = getattr(values["graph"], kink.rows)[rows]
            rows = np.zeros(len(wide[kink.resample]), bool)
            rows[named] = True
        found[kink.resample] = found.get(kink.resample, False) | rows
    return found


def _resample(case: Case, rng: np.random.Generator) -> Case:
    """Draw rows again until every kink is clear.

    Raises
    ------
    RuntimeError
        If that does not come to an end.
    """
    for _ in range(MAX_ROUNDS):
        bad = kink_violations(case.definition, case.values, case.directions, case.largest_step)
        if not any(rows.any() for rows in bad.values()):
            return case
        values = dict(case.values)
        for name, rows in bad.items():
            array = values[name].copy()
            spec = next(a for a in case.definition.inputs if a.name == name)
            again = draw({name: spec}, case.sizes, str(array.dtype), rng)[name]
            array[rows] = again[rows]
            values[name] = frozen(array)
        case = replace(case, values=values)
    raise RuntimeError(f"{case.definition.name}, {case.name}: no inputs clear of kinks after {MAX_ROUNDS} rounds")


def plain(array: Array) -> Array:
    """Return the array with standard normal numbers: cotangents have no domain."""
    return replace(array, sample="normal")


def direction(array: Array) -> Array:
    """Return the array with numbers of the size of a change: frequencies are not of order one."""
    return replace(array, sample="change of frequency" if array.sample == "frequency" else "normal")


def _attribute(a: Attribute, variant: Variant, sizes: Mapping[str, int]) -> Any:
    if a.name in variant.setting:
        return variant.setting[a.name]
    if a.real:
        return a.default
    return a.choices[(1 + variant.pick) % len(a.choices)] if a.choices else sizes[a.name]


def build(definition: Definition, variant: Variant, dtype: str, seed: int) -> Case:
    """Build one case.

    Parameters
    ----------
    definition : Definition
    variant : Variant
        One of `variants(definition)`.
    dtype : {"float32", "float64"}
    seed : int

    Returns
    -------
    Case
        Arrays are read-only: a panel that writes to its inputs fails.
    """
    rng = np.random.default_rng([seed, zlib.crc32(f"{definition.name}/{variant.label}".encode())])
    sizes = _sizes(definition, variant)
    graphs: dict[str, Any] = {}
    belonging: dict[str, Any] = {}
    if variant.degree or definition.graph is not None:
        graphs, belonging = (HUBS if variant.degree else GRAPHS)[definition.graph](variant, sizes, rng)
    attributes = {a.name: _attribute(a, variant, sizes) for a in definition.attributes}
    inputs = {a.name: a for a in definition.inputs if variant.setting.get(a.name, a) is not None}
    absent = dict.fromkeys(a.name for a in definition.inputs if a.name not in inputs)
    sizes |= {f"has_{n}": int({**absent, **inputs, **graphs}[n] is not None) for n in definition.optional}
    sizes |= {a.name: position(a.choices, attributes[a.name]) for a in definition.attributes if a.choices}
    grads = {f"grad_{a.name}": a for a in definition.outputs}
    directions = {n: direction(a) for n, a in {**inputs, **grads}.items()}
    drawn = [
        draw(arrays, sizes, dtype, rng, variant.data)
        for arrays in (inputs, grads, {f"gg_{n}": plain(a) for n, a in inputs.items()}, directions)
    ]
    drawn[0] |= {n: frozen(array.astype(dtype)) for n, array in belonging.items() if n in inputs}
    step = definition.largest_step if variant.differenced else POINT_STEP
    values = {**absent, **drawn[0], **graphs, **attributes}
    equal = variant.data == "constant" or variant.name == "boundaries"
    case = Case(variant.label, definition, sizes, values, drawn[1], drawn[2], drawn[3], step, "", variant.name, equal)
    return case if variant.data != "any" else _resample(case, rng)

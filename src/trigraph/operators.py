"""The operator table: the single statement of every operator trigraph offers.

Each :class:`Definition` states one differentiable operator: its inputs and outputs with symbolic shapes, its
graph, its attributes, the polynomial degree of every input, where it is not smooth, and what it costs. From it
follow, without anything written by hand for one operator, the argument checks and their texts, the signatures and
docstrings, the f2py shims, the case generator, the finite differences, the benchmark's roofline, the type stub and
the table in the documentation.

A definition `X` gives three operators: `X_fwd`, its vector-Jacobian product `X_bwd` and the vector-Jacobian
product of that, `X_bwd2`. Only the standard library is used here: the build runs this module before the package
exists.
"""

from __future__ import annotations

import inspect
import re
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import CodeType
from typing import Any

__all__ = [
    "CSC_FORWARD",
    "CSC_REVERSE",
    "DEFINITIONS",
    "GRAPHS",
    "OPERATORS",
    "SYMBOLS",
    "Array",
    "Attribute",
    "Definition",
    "GraphKind",
    "Kink",
    "Operator",
    "Symbol",
    "evaluate",
    "names_in",
    "result_type",
]


@dataclass(frozen=True)
class Symbol:
    """A size that appears in shapes.

    Parameters
    ----------
    doc : str
        What it counts.
    minimum : int
        0 for counts of entities (an empty graph is ordinary input), 1 for widths.
    typical : tuple of int
        Sizes from which cases are drawn; deliberately not powers of two.
    """

    doc: str
    minimum: int
    typical: tuple[int, ...]


SYMBOLS: dict[str, Symbol] = {
    "num_edges": Symbol("rows of the edge arrays", 0, (37, 58)),
    "num_src_nodes": Symbol("source nodes", 0, (11, 14)),
    "num_dst_nodes": Symbol("destination nodes", 0, (9, 14)),
    "num_positions": Symbol("positions of the CSC graph (in-edges over all destinations)", 0, (41, 63)),
    "d": Symbol("dimension of the coordinates", 1, (3, 2, 1)),
    "hidden": Symbol("width H of the kernel network's hidden layer", 1, (13, 8)),
    "f_in": Symbol("features per source node", 1, (3, 5)),
    "f_out": Symbol("features per destination node", 1, (4, 3)),
}


@dataclass(frozen=True)
class Array:
    """A floating array of an operator.

    Parameters
    ----------
    name : str
        Argument name.
    shape : str
        Symbols or expressions in them, separated by spaces: ``"num_edges f_out*f_in"``.
    doc : str
        Meaning and units.
    degree : int or None
        Polynomial degree of the outputs in this input, the other inputs fixed (piecewise between kinks); None
        where they are not polynomial. Central differences are exact up to degree 2.
    """

    name: str
    shape: str
    doc: str
    degree: int | None = None

    @property
    def dims(self) -> tuple[str, ...]:
        """Expressions of the axes."""
        return tuple(self.shape.split())


@dataclass(frozen=True)
class Attribute:
    """A size given by the caller (``f_in``); its name is a symbol of :data:`SYMBOLS`."""

    name: str
    doc: str


@dataclass(frozen=True)
class Kink:
    """Where an operator is not differentiable.

    `function` names a function of the pyref panel, called with the inputs, graph and attributes of the forward
    operator; the operator has a kink where one of the values it returns is zero. Its first axis follows the rows of
    the input `resample`, which the case generator draws again until every value is clear of zero.
    """

    function: str
    resample: str


@dataclass(frozen=True)
class GraphKind:
    """A graph object: its class, the sizes it fixes and the arrays Fortran receives."""

    type_name: str
    sizes: tuple[str, ...]
    forward: tuple[tuple[str, str], ...]
    reverse: tuple[tuple[str, str], ...]


CSC_FORWARD = (("offsets", "num_dst_nodes+1"), ("indices", "num_positions"), ("edge_ids", "num_positions"))
CSC_REVERSE = (
    ("destinations", "num_positions"),
    ("src_offsets", "num_src_nodes+1"),
    ("src_positions", "num_positions"),
    ("row_offsets", "num_edges+1"),
    ("row_positions", "num_positions"),
)
GRAPHS: dict[str, GraphKind] = {
    "csc": GraphKind("CSC", ("num_src_nodes", "num_dst_nodes", "num_positions", "num_edges"), CSC_FORWARD, CSC_REVERSE)
}


@dataclass(frozen=True)
class Definition:
    """One differentiable operator.

    Parameters
    ----------
    name, family : str
        ``gno_kernel`` in ``gno``; the family is the file name in every panel.
    summary : str
        One sentence.
    formulas : tuple of str
        Formulas of fwd, bwd and bwd2.
    source : str
        Where the formula comes from.
    inputs, outputs : tuple of Array
        In signature order.
    attributes : tuple of Attribute
    graph : str or None
        Key of :data:`GRAPHS`.
    kinks : tuple of Kink
    terms : str
        Number of terms in the longest direct sum behind any output or derivative (accuracy rule).
    operations : tuple of str
        Floating operations (a multiply and an add count two) of fwd, bwd and bwd2.
    """

    name: str
    family: str
    summary: str
    formulas: tuple[str, str, str]
    source: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    attributes: tuple[Attribute, ...]
    graph: str | None
    kinks: tuple[Kink, ...]
    terms: str
    operations: tuple[str, str, str]

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Sizes of the operator in canonical order: the graph's, then as they first appear, attributes last."""
        found: dict[str, None] = dict.fromkeys(GRAPHS[self.graph].sizes if self.graph else ())
        attributes = [a.name for a in self.attributes]
        for array in self.inputs + self.outputs:
            for dim in array.dims:
                found.update(dict.fromkeys(n for n in sorted(names_in(dim)) if n not in attributes))
        return (*found, *attributes)


@dataclass(frozen=True)
class Argument(Array):
    """An array argument of one operator; `nullable` arguments may be None, which means zero."""

    nullable: bool = False


@dataclass(frozen=True)
class Operator:
    """One callable: a definition at derivative order 0 (fwd), 1 (bwd) or 2 (bwd2)."""

    name: str
    order: int
    definition: Definition

    @property
    def family(self) -> str:
        """File name of the operator in every panel."""
        return self.definition.family

    @property
    def graph(self) -> GraphKind | None:
        """The kind of graph it takes."""
        return GRAPHS[self.definition.graph] if self.definition.graph else None

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Attributes in signature order."""
        return self.definition.attributes

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Array arguments in signature order: cotangents of gradients, gradients of outputs, inputs."""
        spec = self.definition
        inputs = tuple(Argument(a.name, a.shape, a.doc, a.degree) for a in spec.inputs)
        grads = tuple(
            Argument(f"grad_{a.name}", a.shape, f"Gradient of a scalar in {a.name}.", 1) for a in spec.outputs
        )
        ggs = tuple(
            Argument(f"gg_{a.name}", a.shape, f"Cotangent of {spec.name}_bwd's {a.name}; None is zero.", 1, True)
            for a in spec.inputs
        )
        return (ggs if self.order == 2 else ()) + (grads if self.order else ()) + inputs

    @cached_property
    def fields(self) -> tuple[Array, ...]:
        """What it returns: the outputs, or one derivative for each field."""
        spec = self.definition
        if self.order == 0:
            return spec.outputs
        inputs = tuple(Array(a.name, a.shape, f"Derivative in {a.name}.") for a in spec.inputs)
        if self.order == 1:
            return inputs
        return tuple(Array(f"grad_{a.name}", a.shape, f"Derivative in grad_{a.name}.") for a in spec.outputs) + inputs

    @property
    def single(self) -> bool:
        """Whether it returns the array itself rather than a NamedTuple."""
        return self.order == 0 and len(self.fields) == 1

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the positional parameters, `wrt` excluded."""
        graph = ("graph",) if self.graph else ()
        return (*(a.name for a in self.arguments), *graph, *(a.name for a in self.attributes))

    @cached_property
    def binding_order(self) -> tuple[Argument, ...]:
        """Array arguments as sizes and dtypes are bound: inputs first, so that a wrong gradient is the one blamed."""
        inputs = {a.name for a in self.definition.inputs}
        return tuple(sorted(self.arguments, key=lambda a: a.name not in inputs))

    @cached_property
    def signature(self) -> inspect.Signature:
        """Signature every panel shares; `wrt` belongs to derivatives."""
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, positional) for name in self.parameters]
        if self.order:
            parameters.append(inspect.Parameter("wrt", positional, default=None))
        return inspect.Signature(parameters)

    @property
    def operations(self) -> str:
        """Expression of the floating operations."""
        return self.definition.operations[self.order]


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "<operator table>", "eval")


def evaluate(expression: str, sizes: Mapping[str, int]) -> int:
    """Value of an expression of the table for given sizes.

    Raises
    ------
    NameError
        A symbol has no size yet.
    """
    return int(eval(_code(expression), {"__builtins__": {}}, dict(sizes)))


@cache
def names_in(expression: str) -> frozenset[str]:
    """Symbols of an expression."""
    return frozenset(re.findall(r"[a-z_]\w*", expression))


F_IN = Attribute("f_in", "Features per source node.")
F_OUT = Attribute("f_out", "Features per destination node; the fast index of the kernel.")
ATHENA = "athena's GNO layer (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer), packed as there."
PARAMS = "hidden*(d+1+f_out*f_in)+f_out*f_in"
PARAMS_DOC = "U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major."
COORDS = Array("coords", "num_edges d", "dx of each edge, in the caller's length unit.", 1)
FEATURES = Array("features", "num_src_nodes f_in", "h of each source node.", 1)
KERNEL_SHAPE = "num_edges f_out*f_in"

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        name="gno_kernel",
        family="gno",
        summary="Per-edge kernel of a graph neural operator: a two-layer network of the edge's coordinates.",
        formulas=(
            "kernel = V relu(U dx + b_u) + b_v",
            "s = mask (V^T g); coords = U^T s; params: dU = sum s dx^T, db_u = sum s, dV = sum g a^T, db_v = sum g",
            "with t = mask (U c + Udd dx + bdd), s' = mask (Vdd^T g): grad_kernel = V t + Vdd a + bdd_v; "
            "coords = Udd^T s + U^T s'; params: V: sum g t^T, U: sum s c^T + sum s' dx^T, b_u: sum s', b_v: 0",
        ),
        source=ATHENA,
        inputs=(COORDS, Array("params", PARAMS, PARAMS_DOC, 2)),
        outputs=(Array("kernel", KERNEL_SHAPE, "Column-major (f_out, f_in) matrix of each edge."),),
        attributes=(F_IN, F_OUT),
        graph=None,
        kinks=(Kink("gno_kernel_kinks", "coords"),),
        terms="num_edges+hidden+f_out*f_in+d",
        operations=(
            "2*num_edges*hidden*(d+f_in*f_out)",
            "2*num_edges*hidden*(3*d+2*f_in*f_out)",
            "2*num_edges*hidden*(8*d+5*f_in*f_out)",
        ),
    ),
    Definition(
        name="gno_aggregate",
        family="gno",
        summary="Sum over in-edges of the edge's kernel matrix times the source's features.",
        formulas=(
            "message_i = sum over e into i of K_e h_src(e), K_e = kernel[e] as (f_out, f_in) column-major",
            "features_j = sum over e out of j of K_e^T g_dst(e); kernel_e = g_dst(e) h_src(e)^T",
            "bilinear, by polarisation: grad_message = fwd(gg_features, kernel) + fwd(features, gg_kernel); "
            "features = sum gg_K_e^T g_dst(e); kernel_e = g_dst(e) gg_h_src(e)^T",
        ),
        source=ATHENA,
        inputs=(FEATURES, Array("kernel", KERNEL_SHAPE, "Column-major (f_out, f_in) matrix of each edge row.", 1)),
        outputs=(Array("message", "num_dst_nodes f_out", "Sum of messages at each destination."),),
        attributes=(F_IN, F_OUT),
        graph="csc",
        kinks=(),
        terms="num_positions*f_in+f_out",
        operations=(
            "2*num_positions*f_in*f_out",
            "4*num_positions*f_in*f_out",
            "8*num_positions*f_in*f_out",
        ),
    ),
    Definition(
        name="gno_message",
        family="gno",
        summary="Kernel and aggregation in one: the (num_edges, f_out*f_in) kernel is never stored.",
        formulas=(
            "message = gno_aggregate_fwd(features, gno_kernel_fwd(coords, params))",
            "features = gno_aggregate_bwd(g).features; coords, params = gno_kernel_bwd(g_dst(e) h_src(e)^T)",
            "with Kdd the grad_kernel of gno_kernel_bwd2 at g h^T: grad_message = fwd(gg_h, K) + fwd(h, Kdd); "
            "features = gno_aggregate_bwd(g; Kdd).features; "
            "coords, params = gno_kernel_bwd2 at g h^T + gno_kernel_bwd at g gg_h^T",
        ),
        source=ATHENA,
        inputs=(FEATURES, COORDS, Array("params", PARAMS, PARAMS_DOC, 2)),
        outputs=(Array("message", "num_dst_nodes f_out", "Sum of messages at each destination."),),
        attributes=(F_IN, F_OUT),
        graph="csc",
        kinks=(Kink("gno_message_kinks", "coords"),),
        terms="num_positions*f_in+hidden*f_in*f_out+d",
        operations=(
            "2*num_positions*hidden*(d+f_in)+2*num_dst_nodes*(hidden+1)*f_in*f_out",
            "2*num_positions*hidden*(3*d+3*f_in)+4*num_dst_nodes*(hidden+1)*f_in*f_out",
            "2*num_positions*hidden*(8*d+8*f_in)+10*num_dst_nodes*(hidden+1)*f_in*f_out",
        ),
    ),
)

ORDERS = ("fwd", "bwd", "bwd2")
OPERATORS: dict[str, Operator] = {
    f"{spec.name}_{suffix}": Operator(f"{spec.name}_{suffix}", order, spec)
    for spec in DEFINITIONS
    for order, suffix in enumerate(ORDERS)
}


@cache
def result_type(name: str) -> type[Any]:
    """Return the NamedTuple an operator returns: fields in table order, None where a derivative was not asked for."""
    typename = "".join(part.capitalize() for part in name.split("_"))
    cls = namedtuple(typename, [f.name for f in OPERATORS[name].fields])  # type: ignore[misc]
    cls.__module__ = "trigraph.results"  # where pickle finds it
    return cls

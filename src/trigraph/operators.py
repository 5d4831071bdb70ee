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
from dataclasses import dataclass, field, replace
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
    "GraphArgument",
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
    maximum : int or None
        Largest size, where there is one.
    """

    doc: str
    minimum: int
    typical: tuple[int, ...]
    maximum: int | None = None


SYMBOLS: dict[str, Symbol] = {
    "num_edges": Symbol("rows of the edge arrays", 0, (37, 58)),
    "num_src_nodes": Symbol("source nodes", 0, (11, 14)),
    "num_dst_nodes": Symbol("destination nodes", 0, (9, 14)),
    "num_positions": Symbol("positions of the CSC graph (in-edges over all destinations)", 0, (41, 63)),
    "d": Symbol("dimension of the coordinates", 1, (3, 2, 1)),
    "hidden": Symbol("width H of the kernel network's hidden layer", 1, (13, 8)),
    "f_in": Symbol("features per source node", 1, (3, 5)),
    "f_out": Symbol("features per destination node", 1, (4, 3)),
    "num_nodes": Symbol("nodes", 0, (9, 12)),
    "n_radial": Symbol("radial basis functions R", 1, (6, 3), 16),
    "n_spherical": Symbol("spherical basis functions S", 1, (7, 4), 8),
    "envelope_exponent": Symbol("exponent p of the envelope", 2, (5, 4), 16),
    "n_emb": Symbol("width C of the edge embedding", 1, (10, 5)),
    "n_mid": Symbol("width M between the two projections of the basis", 1, (4, 3)),
    "dim": Symbol("width of the node embedding", 1, (7, 4, 5)),
    "dim_head": Symbol("width of one attention head", 1, (5, 4, 3)),
    "num_heads": Symbol("attention heads", 1, (3, 2)),
    "num_triplets": Symbol("triplets", 0, (53, 41)),
    "num_inputs": Symbol("rows of m", 0, (31, 23)),
    "num_outputs": Symbol("rows of the result: atoms, or edges", 0, (11, 7)),
    "num_radial": Symbol("radial basis functions", 1, (6, 4)),
    "num_spherical": Symbol("circular or spherical basis functions S", 1, (7, 5)),
    "interm": Symbol("width of the intermediate embedding", 1, (5, 3)),
    "emb_in": Symbol("width of the embedding of the inputs", 1, (4, 6)),
    "emb_out": Symbol("width of the embedding of the outputs", 1, (6, 5)),
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
    sample : {"normal", "unit interval", "frequency", "positive"}
        Distribution cases are drawn from.
    column : bool
        Whether a trailing axis of one is accepted; derivatives come back in the shape given.
    optional : bool
        Whether this input may be None: it is absent then, and so is its derivative. Shapes may use ``has_<name>``.
    keyword : bool
        Whether it stands after the attributes, None by default.
    index : bool
        Whether it holds integers of the graph's dtype; -1 where there is nothing.
    when : str
        Condition in sizes and positions of choices under which this auxiliary output exists; empty: always.
    """

    name: str
    shape: str
    doc: str
    degree: int | None = None
    sample: str = "normal"
    column: bool = False
    optional: bool = False
    keyword: bool = False
    index: bool = False
    when: str = ""

    @property
    def dims(self) -> tuple[str, ...]:
        """Expressions of the axes."""
        return tuple(self.shape.split())


@dataclass(frozen=True)
class Attribute:
    """What the caller gives beside arrays and graph: a size, one of several choices, or a number that is not negative.

    Parameters
    ----------
    name, doc : str
        The name of a size is a symbol of :data:`SYMBOLS`.
    default : object
        `inspect.Parameter.empty` where the caller must give it.
    choices : tuple
        Allowed values; empty for a size or number. Fortran and CUDA receive the position in this tuple, and so do
        expressions of shapes.
    requires : tuple of (choice, str)
        Method of the graph that raises where the graph cannot serve a choice.
    real : bool
        Whether it is a number (a finite float >= 0) rather than a size.
    """

    name: str
    doc: str
    default: Any = inspect.Parameter.empty
    choices: tuple[str | bool | None, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()
    real: bool = False

    @property
    def required(self) -> bool:
        """Whether the caller must give it."""
        return self.default is inspect.Parameter.empty

    @property
    def size(self) -> bool:
        """Whether it is a size."""
        return not self.choices and not self.real


@dataclass(frozen=True)
class Kink:
    """Where an operator is not differentiable.

    `function` names a function of the pyref panel, called with the inputs, graph and attributes of the forward
    operator; the operator has a kink where one of the values it returns is zero. Its first axis follows the rows of
    the input `resample`, which the case generator draws again until every value is clear of zero; `rows` names the
    array of the graph that holds the row for each value, where that is another.
    """

    function: str
    resample: str
    rows: str = ""


@dataclass(frozen=True)
class GraphArgument:
    """A graph object an operator takes: argument name, meaning, and whether it may be None (the identity)."""

    name: str
    doc: str
    optional: bool = False


@dataclass(frozen=True)
class GraphKind:
    """The graph objects of an operator: their class, the sizes they fix and the arrays Fortran receives.

    Parameters
    ----------
    type_name : str
    sizes : tuple of str
    forward, fast, reverse : tuple of (name, length)
        Arrays that go to every operator; to the fast path too; to its derivatives (what `prepare` builds).
    arguments : tuple of GraphArgument
    paths : mapping from size or array to tuple of str
        Where it is found, ``argument.attribute``, the first whose argument is not None (default: ``graph.<name>``).
    """

    type_name: str
    sizes: tuple[str, ...]
    forward: tuple[tuple[str, str], ...]
    fast: tuple[tuple[str, str], ...]
    reverse: tuple[tuple[str, str], ...]
    arguments: tuple[GraphArgument, ...] = (GraphArgument("graph", "Whose rows the edge arrays have."),)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the graph objects that may be None."""
        return tuple(a.name for a in self.arguments if a.optional)

    def find(self, name: str, values: Mapping[str, Any]) -> Any:
        """Return a size, or an array, of the graph objects among `values`; None where the object is absent."""
        for path in self.paths.get(name, (f"graph.{name}",)):
            argument, attribute = path.split(".")
            graph = values[argument]
            if graph is not None:
                prepared = graph.prepare() if name in dict(self.reverse) else graph
                return getattr(prepared, attribute)
        return None


CSC_FORWARD = (("offsets", "num_dst_nodes+1"), ("indices", "num_positions"), ("edge_ids", "num_positions"))
CSC_REVERSE = (
    ("destinations", "num_positions"),
    ("src_offsets", "num_src_nodes+1"),
    ("src_positions", "num_positions"),
    ("row_offsets", "num_edges+1"),
    ("row_positions", "num_positions"),
)
EDGES_FORWARD = (
    ("src", "num_edges"),
    ("dst", "num_edges"),
    ("dst_offsets", "num_nodes+1"),
    ("dst_edge_index", "num_edges"),
    ("reverse_edge", "num_edges"),
)
EDGES_FAST = (("src_offsets", "num_nodes+1"), ("reverse_start", "num_edges"), ("reverse_stop", "num_edges"))
TRIPLETS = GraphArgument("triplets", "Outer edge of each triplet.")
TRIPLETS_FORWARD = (("triplet_edge", "num_triplets"),)
TRIPLETS_FAST = (("triplet_offsets", "num_edges+1"), ("triplet_order", "num_triplets"))
TRIPLETS_PATHS = {
    "num_edges": ("triplets.num_segments",),
    "num_triplets": ("triplets.num_members",),
    "triplet_edge": ("triplets.index",),
    "triplet_offsets": ("triplets.offsets",),
    "triplet_order": ("triplets.order",),
}
GRAPHS: dict[str, GraphKind] = {
    "csc": GraphKind(
        "CSC", ("num_src_nodes", "num_dst_nodes", "num_positions", "num_edges"), CSC_FORWARD, (), CSC_REVERSE
    ),
    "edges": GraphKind("EdgeGraph", ("num_nodes", "num_edges"), EDGES_FORWARD, EDGES_FAST, ()),
    "triplets": GraphKind(
        "Segments", ("num_edges", "num_triplets"), TRIPLETS_FORWARD, TRIPLETS_FAST, (), (TRIPLETS,), TRIPLETS_PATHS
    ),
    "bilinear": GraphKind(
        "Segments",
        ("num_edges", "num_triplets", "num_inputs", "num_outputs"),
        (*TRIPLETS_FORWARD, ("atom_of_edge", "num_edges"), ("input_of_triplet", "num_triplets")),
        (
            *TRIPLETS_FAST,
            ("atom_offsets", "num_outputs+1"),
            ("atom_order", "num_edges"),
            ("input_offsets", "num_inputs+1"),
            ("input_order", "num_triplets"),
        ),
        (),
        (
            TRIPLETS,
            GraphArgument("atoms", "Atom of each edge: edges of an atom are summed (None: they are not).", True),
            GraphArgument("idx_in", "Row of m for each triplet (None: its own).", True),
        ),
        {
            **TRIPLETS_PATHS,
            "num_inputs": ("idx_in.num_segments", "triplets.num_members"),
            "num_outputs": ("atoms.num_segments", "triplets.num_segments"),
            "atom_of_edge": ("atoms.index",),
            "atom_offsets": ("atoms.offsets",),
            "atom_order": ("atoms.order",),
            "input_of_triplet": ("idx_in.index",),
            "input_offsets": ("idx_in.offsets",),
            "input_order": ("idx_in.order",),
        },
    ),
}


@dataclass(frozen=True)
class Restriction:
    """A part of bwd2 under a name of its own: some cotangents are zero, only some fields are returned.

    Parameters
    ----------
    suffix : str
        ``bwd2_main`` gives ``agg_edge_to_edge_bwd2_main``.
    arguments : tuple of str
        Array arguments it takes, in order; the others are zero (cotangents), or do not matter to its fields.
    fields : tuple of str
        What it returns.
    doc : str
    """

    suffix: str
    arguments: tuple[str, ...]
    fields: tuple[str, ...]
    doc: str


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
    restrictions : tuple of Restriction
        Parts of bwd2 with names of their own.
    auxiliary : tuple of Array
        What fwd returns beside the outputs: not differentiable.
    given_back : tuple of str
        Outputs and auxiliary outputs that bwd takes as keywords (recomputed when None). The direct formula always
        recomputes them.
    settings : tuple of mappings
        Choices and absent inputs (None) that cases must cover; empty: chosen by the case.
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
    restrictions: tuple[Restriction, ...] = ()
    auxiliary: tuple[Array, ...] = ()
    given_back: tuple[str, ...] = ()
    settings: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Sizes of the operator in canonical order: the graph's, then as they first appear, attributes last."""
        found: dict[str, None] = dict.fromkeys(GRAPHS[self.graph].sizes if self.graph else ())
        others = {a.name for a in self.attributes} | {f"has_{n}" for n in self.optional}
        for array in self.inputs + self.outputs:
            for dim in array.dims:
                found.update(dict.fromkeys(n for n in sorted(names_in(dim)) if n not in others))
        return (*found, *(a.name for a in self.attributes if a.size))

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of inputs and graph objects that may be None."""
        graphs = GRAPHS[self.graph].optional if self.graph else ()
        return (*(a.name for a in self.inputs if a.optional), *graphs)


@dataclass(frozen=True)
class Argument(Array):
    """An array argument of one operator.

    `nullable` arguments may be None: cotangents, which are zero then; optional inputs; what fwd gave back.
    """

    nullable: bool = False
    given_back: bool = False


@dataclass(frozen=True)
class Operator:
    """One callable: a definition at derivative order 0 (fwd), 1 (bwd) or 2 (bwd2)."""

    name: str
    order: int
    definition: Definition
    restriction: Restriction | None = None

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
        """Array arguments: cotangents of gradients, gradients of outputs, inputs, what bwd is given back."""
        spec = self.definition
        inputs = tuple(Argument(**vars(a), nullable=a.optional) for a in spec.inputs)
        grads = tuple(
            Argument(f"grad_{a.name}", a.shape, f"Gradient of a scalar in {a.name}.", 1) for a in spec.outputs
        )
        ggs = tuple(
            Argument(
                f"gg_{a.name}",
                a.shape,
                f"Cotangent of {spec.name}_bwd's {a.name}; None is zero.",
                1,
                column=a.column,
                nullable=True,
            )
            for a in spec.inputs
        )
        found = (ggs if self.order == 2 else ()) + (grads if self.order else ()) + inputs
        if self.order == 1:
            known = {a.name: a for a in (*spec.outputs, *spec.auxiliary)}
            found += tuple(
                Argument(
                    **vars(
                        replace(known[n], keyword=True, doc=f"As {spec.name}_fwd returned it; None: computed again.")
                    ),
                    nullable=True,
                    given_back=True,
                )
                for n in spec.given_back
            )
        if self.restriction:
            found = tuple(a for a in found if a.name in self.restriction.arguments)
        return found

    @cached_property
    def fields(self) -> tuple[Array, ...]:
        """What it returns: the outputs and auxiliary outputs, or one derivative for each field."""
        spec = self.definition
        if self.order == 0:
            return spec.outputs + spec.auxiliary
        inputs = tuple(
            Array(a.name, a.shape, f"Derivative in {a.name}.", column=a.column, optional=a.optional)
            for a in spec.inputs
        )
        if self.order == 1:
            return inputs
        found = tuple(Array(f"grad_{a.name}", a.shape, f"Derivative in grad_{a.name}.") for a in spec.outputs) + inputs
        if self.restriction:
            found = tuple(f for f in found if f.name in self.restriction.fields)
        return found

    def given(self, values: Mapping[str, Any]) -> tuple[Argument, ...]:
        """Array arguments that are not None."""
        return tuple(a for a in self.arguments if values.get(a.name) is not None)

    def returned(self, values: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Array, ...]:
        """Fields that exist for these inputs and choices; the others are None."""
        return tuple(
            f
            for f in self.fields
            if not (f.optional and values[f.name] is None) and (not f.when or evaluate(f.when, sizes))
        )

    def presence(self, given_back: bool) -> tuple[str, ...]:
        """Names of what may be absent: optional inputs and graph objects and, if asked, what is given back."""
        back = tuple(a.name for a in self.arguments if a.given_back) if given_back else ()
        return (*self.definition.optional, *back)

    @property
    def single(self) -> bool:
        """Whether it returns the array itself rather than a NamedTuple."""
        return len(self.fields) == 1 and (self.order == 0 or self.restriction is not None)

    @property
    def selective(self) -> bool:
        """Whether the caller may ask for some fields only (`wrt`)."""
        return self.order > 0 and not self.single

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the attributes that are choices."""
        return tuple(a.name for a in self.attributes if a.choices)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the attributes that are real numbers."""
        return tuple(a.name for a in self.attributes if a.real)

    @property
    def formula(self) -> str:
        """What it computes."""
        return self.restriction.doc if self.restriction else self.definition.formulas[self.order]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the positional parameters, `wrt` excluded."""
        graphs = tuple(a.name for a in self.graph.arguments) if self.graph else ()
        arrays = tuple(a.name for a in self.arguments if not a.keyword)
        keywords = tuple(a.name for a in self.arguments if a.keyword)
        return (*arrays, *graphs, *(a.name for a in self.attributes), *keywords)

    @cached_property
    def binding_order(self) -> tuple[Argument, ...]:
        """Array arguments as sizes and dtypes are bound: inputs first, so that a wrong gradient is the one blamed."""
        inputs = {a.name for a in self.definition.inputs}
        return tuple(sorted(self.arguments, key=lambda a: a.name not in inputs))

    @cached_property
    def signature(self) -> inspect.Signature:
        """Signature every panel shares; `wrt` belongs to derivatives with named fields."""
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {a.name: a.default for a in self.attributes}
        defaults |= dict.fromkeys(
            (*(a.name for a in self.arguments if a.keyword), *(self.graph.optional if self.graph else ()))
        )
        empty = inspect.Parameter.empty
        parameters = [inspect.Parameter(n, positional, default=defaults.get(n, empty)) for n in self.parameters]
        if self.selective:
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
DIMENET = "Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet."
GAT = "Velickovic et al. (2018), arXiv:1710.10903; parameters as in pylibcugraphops' mha_gat_n2n."
WEIGHTED = "Weighted sum, mean, minimum and maximum over in-edges, as in pylibcugraphops' agg_weighted_n2n."
GEMNET = (
    "Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; weights and results of fairchem's BasisEmbedding and "
    "EfficientInteractionBilinear, ragged instead of padded."
)
ACTIVATIONS = ("linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh")
HEADS = "num_heads*dim_head"
RAD_BASIS = Array("rad_basis", "num_edges num_radial", "Radial basis of each edge.", 1)
SPHERICAL_WEIGHT = Array("weight", "num_radial num_spherical interm", "Weight of BasisEmbedding.", 1)
PARAMS = "hidden*(d+1+f_out*f_in)+f_out*f_in"
PARAMS_DOC = "U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major."
COORDS = Array("coords", "num_edges d", "dx of each edge, in the caller's length unit.", 1)
FEATURES = Array("features", "num_src_nodes f_in", "h of each source node.", 1)
KERNEL_SHAPE = "num_edges f_out*f_in"

RADIAL_TERMS = "num_edges*n_radial*(n_spherical+1)"
SUM_TERMS = "num_edges*(n_spherical*n_spherical*n_emb+n_mid*(n_spherical*n_radial+n_spherical*n_emb))"


def _times(terms: str, fwd: int, bwd: int, bwd2: int) -> tuple[str, str, str]:
    """Return the operations of each order, so many for every term."""
    return f"{fwd}*{terms}", f"{bwd}*{terms}", f"{bwd2}*{terms}"


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
    Definition(
        name="radial_basis",
        family="dimenet",
        summary="Radial basis of DimeNet++: sines for the edges, spherical Bessel functions for the triplets.",
        formulas=(
            "x = dist; q = envelope_exponent + 1; env = 1/x - (q+1)(q+2)/2 x^(q-1) + q(q+2) x^q - q(q+1)/2 x^(q+1) "
            "for x < 1, else 0; rbf[k] = env sin(freq_k x); sbf_rad[l*R+k] = env N_lk j_l(z_lk x)",
            "dist = sum grad_rbf drbf/dx + sum grad_sbf_rad dsbf_rad/dx; freq_k = sum grad_rbf env x cos(freq_k x)",
            "derivatives of sum gg_dist dist + sum gg_freq freq, j_l'' by the Bessel equation",
        ),
        source=DIMENET,
        inputs=(
            Array("dist", "num_edges", "Distance over cutoff of each edge, > 0.", sample="unit interval", column=True),
            Array("freq", "n_radial", "Frequencies of the sines; R = len(freq).", sample="frequency"),
        ),
        outputs=(
            Array("rbf", "num_edges n_radial", "Radial basis of each edge."),
            Array("sbf_rad", "num_edges n_spherical*n_radial", "Radial part of the spherical basis of each edge."),
        ),
        attributes=(
            Attribute("n_spherical", "Spherical basis functions S.", 7),
            Attribute("envelope_exponent", "Exponent p of the smooth cutoff.", 5),
        ),
        graph=None,
        kinks=(Kink("radial_basis_kinks", "dist"),),
        terms="num_edges+n_radial*(n_spherical+1)",
        operations=_times(RADIAL_TERMS, 30, 40, 60),
    ),
    Definition(
        name="agg_edge_to_edge",
        family="dimenet",
        summary="Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.",
        formulas=(
            "Y_l = sqrt((2l+1)/4pi) P_l(u_e.u_e'); q[c] = sum_m W2[c,m] sum_{l,n} rbf[e',l*R+n] Y_l W1[l*R+n,m]; "
            "out[e,c] = sum over e' into src(e) of embedding[e',c] q[c]",
            "the gradient of sum grad_out out, vec included (through u = vec/norm(vec))",
            "the gradient of the derivative of sum grad_out out along (gg_vec, gg_rbf, gg_embedding, gg_weights)",
        ),
        source=DIMENET,
        inputs=(
            Array("vec", "num_edges 3", "Vector of each edge, not zero; only its direction matters."),
            Array("rbf", "num_edges n_spherical*n_radial", "Radial part of the spherical basis of each edge.", 1),
            Array("embedding", "num_edges n_emb", "Embedding of each edge.", 1),
            Array("weights", "n_spherical*n_radial+n_emb n_mid", "Rows of W1 (S*R, M), then of W2 (C, M).", 2),
        ),
        outputs=(Array("out", "num_edges n_emb", "Aggregated embedding of each edge."),),
        attributes=(
            Attribute("n_spherical", "Spherical basis functions S.", 7),
            Attribute("n_radial", "Radial basis functions R.", 6),
            Attribute(
                "exclude",
                "Left out: every e' = (k->j) with k == i (node), only the very reverse edge (edge), nothing (None).",
                "node",
                (None, "node", "edge"),
                (("edge", "require_reverse"),),
            ),
        ),
        graph="edges",
        kinks=(),
        terms="num_edges*n_spherical*n_radial*n_mid+n_emb*n_mid",
        operations=_times(SUM_TERMS, 4, 12, 32),
        restrictions=(
            Restriction(
                "bwd2_grad",
                ("gg_rbf", "gg_embedding", "vec", "rbf", "embedding", "weights"),
                ("grad_out",),
                "fwd(rbf := gg_rbf) + fwd(embedding := gg_embedding), vec constant",
            ),
            Restriction(
                "bwd2_main",
                ("gg_rbf", "gg_embedding", "grad_out", "vec", "rbf", "embedding", "weights"),
                ("rbf", "embedding", "weights"),
                "rbf: bwd_rbf(embedding := gg_embedding); embedding: bwd_embedding(rbf := gg_rbf); "
                "weights: bwd_weights(rbf := gg_rbf) + bwd_weights(embedding := gg_embedding), vec constant",
            ),
        ),
    ),
    Definition(
        name="mha_gat_n2n",
        family="gat",
        summary="Multi-head graph attention from source to destination nodes.",
        formulas=(
            "raw = a_s.x_src + a_d.x_dst (+ a_e.f_e) per head, a = attention_weights; pre = activation(raw); "
            "post = softmax of pre over the in-edges of a destination; output_i = sum post x_src, heads concatenated or averaged; "
            "softmax_scores = (pre, post)",
            "dpost = g.x_src; dpre = post (dpost - sum post dpost); draw = dpre activation'(raw); "
            "src: sum post g + a_s sum draw; dst: a_d sum draw; edge: a_e draw; weights: sum draw x",
            "the gradient of the derivative of sum grad_output output along (gg_src, gg_dst, gg_weights, gg_edge)",
        ),
        source=GAT,
        inputs=(
            Array(
                "src_embedding", f"num_src_nodes {HEADS}", "Embedding of each source node, heads one after the other."
            ),
            Array("dst_embedding", f"num_dst_nodes {HEADS}", "Embedding of each destination node."),
            Array(
                "attention_weights",
                f"{HEADS}*(2+has_edge_embedding)",
                "Weights of the source's half, of the destination's, and of the edge's where there is one.",
            ),
            Array(
                "edge_embedding",
                f"num_edges {HEADS}",
                "Embedding of each edge row, or None.",
                optional=True,
                keyword=True,
            ),
        ),
        outputs=(
            Array(
                "output_embedding",
                "num_dst_nodes dim_head*(1+concat_heads*(num_heads-1))",
                "Heads concatenated, or their mean.",
            ),
        ),
        auxiliary=(
            Array(
                "softmax_scores", "2 num_heads num_positions", "Scores before and after the softmax, by CSC position."
            ),
        ),
        given_back=("softmax_scores",),
        attributes=(
            Attribute("num_heads", "Attention heads."),
            Attribute("concat_heads", "Concatenate the heads (True), or average them.", True, (False, True)),
            Attribute("activation", "Of the scores.", "LeakyReLU", ACTIVATIONS),
            Attribute("negative_slope", "Slope of LeakyReLU below zero.", 0.2, real=True),
        ),
        graph="csc",
        kinks=(Kink("mha_gat_n2n_kinks", "src_embedding", "indices"),),
        terms="num_positions+3*num_heads*dim_head+num_src_nodes",
        operations=tuple(
            f"{n}*(num_positions*({HEADS}+4*num_heads)+{HEADS}*(num_src_nodes+num_dst_nodes))" for n in (2, 6, 20)
        ),
        settings=(
            {"activation": "LeakyReLU", "edge_embedding": None},
            {"activation": "ELU", "concat_heads": False},
            {"activation": "linear"},
            {"activation": "ReLU", "concat_heads": False, "edge_embedding": None},
            {"activation": "sigmoid", "edge_embedding": None},
            {"activation": "LeakyReLU", "concat_heads": False, "negative_slope": 0.01},
            {"activation": "tanh", "concat_heads": False},
        ),
    ),
    Definition(
        name="agg_weighted_n2n",
        family="weighted",
        summary="Sum, mean, minimum or maximum over in-edges of the edge's weight times the source's embedding.",
        formulas=(
            "message_e = w_e x_src(e); output_i = sum, minimum or maximum over e into i, or sum / node_degree with "
            "node_degree = sum w_e (mean_by='weight') or the number of edges; location = CSC position of the extremum",
            "sum: x_j = sum w_e g_dst(e), w_e = g_dst(e).x_src(e); mean: g / node_degree, and by weight "
            "w_e = g_dst(e).(x_src(e) - output_dst(e)) / node_degree; min, max: of the edges at the locations alone",
            "the gradient of the derivative of sum grad_output output along (gg_embedding, gg_edge_weight)",
        ),
        source=WEIGHTED,
        inputs=(
            Array("embedding", "num_src_nodes dim", "Embedding of each source node.", 1),
            Array("edge_weight", "num_edges", "Weight of each edge row; None: ones.", sample="positive", optional=True),
        ),
        outputs=(Array("output_embedding", "num_dst_nodes dim", "Aggregated embedding; 0 without in-edges."),),
        auxiliary=(
            Array("node_degree", "num_dst_nodes", "Denominator of the mean; None for the others.", when="op==1"),
            Array(
                "output_extrema_location",
                "num_dst_nodes dim",
                "CSC position of the extremum, the lowest on ties, the first NaN before all; -1 without in-edges; "
                "None for sum and mean.",
                index=True,
                when="op>1",
            ),
        ),
        given_back=("output_embedding", "node_degree", "output_extrema_location"),
        attributes=(
            Attribute("op", "Aggregation.", "sum", ("sum", "mean", "min", "max")),
            Attribute(
                "mean_by",
                "What the mean divides by: sum of weights, or number of edges.",
                "weight",
                ("weight", "count"),
            ),
        ),
        graph="csc",
        kinks=(Kink("agg_weighted_n2n_kinks", "embedding", "indices"),),
        terms="num_positions+dim",
        operations=("2*num_positions*dim", "4*num_positions*dim", "8*num_positions*dim"),
        settings=(
            {"op": "sum"},
            {"op": "mean"},
            {"op": "max"},
            {"op": "min"},
            {"op": "mean", "mean_by": "count"},
            {"op": "sum", "edge_weight": None},
            {"op": "mean", "edge_weight": None},
            {"op": "max", "edge_weight": None},
        ),
    ),
    Definition(
        name="basis_embedding_radial",
        family="gemnet",
        summary="Radial basis times a weight: BasisEmbedding without a spherical part.",
        formulas=(
            "rad_W1 = rad_basis weight^T",
            "rad_basis = g weight; weight = g^T rad_basis",
            "bilinear, by polarisation: grad_rad_W1 = gg_rad_basis weight^T + rad_basis gg_weight^T; "
            "rad_basis = g gg_weight; weight = g^T gg_rad_basis",
        ),
        source=GEMNET,
        inputs=(RAD_BASIS, Array("weight", "interm num_radial", "Weight of BasisEmbedding.", 1)),
        outputs=(Array("rad_W1", "num_edges interm", "Embedded basis of each edge."),),
        attributes=(),
        graph=None,
        kinks=(),
        terms="num_edges+num_radial+interm",
        operations=tuple(f"{n}*num_edges*num_radial*interm" for n in (2, 4, 8)),
    ),
    Definition(
        name="basis_embedding_spherical",
        family="gemnet",
        summary="Radial basis times a weight for each spherical function: BasisEmbedding's first factor.",
        formulas=(
            "rad_W1 = (rad_basis weight.reshape(num_radial, S*interm)).reshape(num_edges, interm, S): a reshape of "
            "memory in the order (S, interm), not a transpose",
            "the same product backwards, through the same reshape",
            "bilinear, by polarisation",
        ),
        source=GEMNET,
        inputs=(RAD_BASIS, SPHERICAL_WEIGHT),
        outputs=(Array("rad_W1", "num_edges interm num_spherical", "Embedded radial basis of each edge."),),
        attributes=(),
        graph=None,
        kinks=(),
        terms="num_edges+num_radial+interm*num_spherical",
        operations=tuple(f"{n}*num_edges*num_radial*interm*num_spherical" for n in (2, 4, 8)),
    ),
    Definition(
        name="basis_embedding_triplets",
        family="gemnet",
        summary="Embedded radial and spherical basis of each triplet: BasisEmbedding with a spherical basis.",
        formulas=(
            "rad_W1[t,i] = sum_s basis_embedding_spherical[edge(t),i,s] sph_basis[t,s]",
            "sph_basis[t,s] = sum_i g[t,i] rad_W1[edge(t),i,s]; rad_basis and weight from the gradient of rad_W1, "
            "sum over t of e of g[t,i] sph_basis[t,s]",
            "trilinear, by polarisation",
        ),
        source=GEMNET,
        inputs=(
            RAD_BASIS,
            SPHERICAL_WEIGHT,
            Array("sph_basis", "num_triplets num_spherical", "Circular or spherical basis of each triplet.", 1),
        ),
        outputs=(Array("rad_W1", "num_triplets interm", "Embedded basis of each triplet."),),
        attributes=(),
        graph="triplets",
        kinks=(),
        terms="num_triplets+num_edges+num_radial+interm*num_spherical",
        operations=tuple(f"{n}*(num_edges*num_radial+num_triplets)*interm*num_spherical" for n in (2, 6, 18)),
    ),
    Definition(
        name="interaction_bilinear",
        family="gemnet",
        summary="Efficient bilinear interaction of GemNet-OC: triplets (or quadruplets) to edges, and on to atoms.",
        formulas=(
            "B_e[s,c] = sum over t of e of sph[t,s] m[t,c]; P[i,c] = sum_s rad_W1[e,i,s] B_e[s,c], summed over the "
            "atom's edges where atoms are given; m_ca = weight vec(P), emb_in fast",
            "the gradient of sum grad_m_ca m_ca",
            "multilinear, by polarisation",
        ),
        source=GEMNET,
        inputs=(
            Array("rad_W1", "num_edges interm num_spherical", "Embedded radial basis of each edge.", 1),
            Array("sph", "num_triplets num_spherical", "Circular or spherical basis of each triplet.", 1),
            Array("m", "num_inputs emb_in", "Embedding of each triplet, or of each row idx_in names.", 1),
            Array("weight", "emb_out interm*emb_in", "Weight of the bilinear layer, emb_in fast.", 1),
        ),
        outputs=(Array("m_ca", "num_outputs emb_out", "Embedding of each edge, or atom."),),
        attributes=(),
        graph="bilinear",
        kinks=(),
        terms="num_triplets+num_edges+num_spherical*interm+interm*emb_in+emb_out",
        operations=tuple(
            f"{n}*(num_triplets*num_spherical*emb_in+num_edges*num_spherical*interm*emb_in+num_outputs*interm*emb_in*emb_out)"
            for n in (2, 6, 24)
        ),
        settings=(
            {"atoms": None, "idx_in": None},
            {},
            {"atoms": None},
            {"idx_in": None},
        ),
    ),
)

ORDERS = ("fwd", "bwd", "bwd2")
OPERATORS: dict[str, Operator] = {
    f"{spec.name}_{suffix}": Operator(f"{spec.name}_{suffix}", order, spec)
    for spec in DEFINITIONS
    for order, suffix in enumerate(ORDERS)
} | {
    f"{spec.name}_{r.suffix}": Operator(f"{spec.name}_{r.suffix}", 2, spec, r)
    for spec in DEFINITIONS
    for r in spec.restrictions
}


@cache
def result_type(name: str) -> type[Any]:
    """Return the NamedTuple an operator returns: fields in table order, None where a derivative was not asked for."""
    typename = "".join(part.capitalize() for part in name.split("_"))
    cls = namedtuple(typename, [f.name for f in OPERATORS[name].fields])  # type: ignore[misc]
    cls.__module__ = "trigraph.results"  # where pickle finds it
    return cls

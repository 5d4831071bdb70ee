"""Classes of the operator table: sizes, arrays, attributes, definitions, and the operators derived from them.

This module uses only the standard library, because the build runs it before the package exists.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType
from typing import Any

from trigraph.table.graph_kinds import GRAPHS, GraphKind
from trigraph.table.lazy import lazy


@dataclass(frozen=True)
class SizeSymbol:
    """Symbolic size in array shapes."""

    doc: str  # what the symbol means
    minimum: int  # 0 for counts of entities (an empty graph is ordinary input), 1 for widths
    typical: tuple[int, ...]  # sizes that test cases use; deliberately not powers of two
    maximum: int | None = None  # largest size, if a definition limits it (`Definition.maxima`)


SYMBOLS: dict[str, SizeSymbol] = {
    "num_edges": SizeSymbol("rows of the edge arrays", 0, (37, 58)),
    "num_src_nodes": SizeSymbol("source nodes", 0, (11, 14)),
    "num_dst_nodes": SizeSymbol("destination nodes", 0, (9, 14)),
    "num_positions": SizeSymbol("positions of the CSC graph (in-edges over all destinations)", 0, (41, 63)),
    "d": SizeSymbol("dimension of the coordinates", 1, (3, 2, 1)),
    "hidden": SizeSymbol("width H of the kernel network's hidden layer", 1, (13, 8)),
    "f_in": SizeSymbol("features per source node", 1, (3, 5)),
    "f_out": SizeSymbol("features per destination node", 1, (4, 3)),
    "num_nodes": SizeSymbol("nodes", 0, (9, 12)),
    "num_radial": SizeSymbol("radial basis functions R", 1, (6, 3)),
    "num_spherical": SizeSymbol("circular or spherical basis functions S", 1, (7, 4)),
    "envelope_exponent": SizeSymbol("exponent p of the envelope", 2, (5, 4)),
    "n_emb": SizeSymbol("width C of the edge embedding", 1, (10, 5)),
    "n_mid": SizeSymbol("width M between the two projections of the basis", 1, (4, 3)),
    "dim": SizeSymbol("width of the node embedding", 1, (7, 4, 5)),
    "dim_head": SizeSymbol("width of one attention head", 1, (5, 4, 3)),
    "num_heads": SizeSymbol("attention heads", 1, (3, 2)),
    "num_triplets": SizeSymbol("triplets", 0, (53, 41)),
    "num_inputs": SizeSymbol("rows of m", 0, (31, 23)),
    "num_outputs": SizeSymbol("rows of the result: atoms, or edges", 0, (11, 7)),
    "interm": SizeSymbol("width of the intermediate embedding", 1, (5, 3)),
    "emb_in": SizeSymbol("width of the embedding of the inputs", 1, (4, 6)),
    "emb_out": SizeSymbol("width of the embedding of the outputs", 1, (6, 5)),
}


@dataclass(frozen=True)
class Array:
    """Array argument or result of an operator; floating-point unless `index` is True."""

    name: str
    # Symbols or expressions of symbols, separated by spaces: ``"num_edges f_in*f_out"``. The last factor of an axis
    # varies fastest in memory.
    shape: str
    doc: str  # meaning and units of the array
    # Polynomial degree of the outputs in this input, with the other inputs fixed (piecewise between kinks); None if
    # the outputs are not polynomial in it. Central differences are exact up to degree 2.
    degree: int | None = None
    sample: str = "normal"  # distribution of generated cases: "normal", "unit interval", "frequency" or "positive"
    column: bool = False  # whether the array, and then its derivatives, may have a trailing axis of length one
    # Whether this input may be None; its derivative is then None too. Shapes may use ``has_<name>``, which is 0 or 1.
    optional: bool = False
    keyword: bool = False  # whether the argument follows the attributes in the signature, with default None
    index: bool = False  # whether the array holds indices of the graph's dtype; -1 means "none"
    when: str = ""  # condition, in sizes and indices of choices, under which this output exists; "": always
    half: bool = False  # whether kernels also accept float16 or bfloat16; arrays without `half` are then float32
    positive: bool = False  # whether values <= 0 raise an error; NumPy arrays only, to avoid synchronization

    @property
    def dims(self) -> tuple[str, ...]:
        """Size expression of each axis."""
        return _split_shape(self.shape)


@dataclass(frozen=True)
class Attribute:
    """Argument that is neither an array nor a graph: a size, one of several choices, or a number >= 0."""

    name: str  # for a size, a symbol of :data:`SYMBOLS`
    doc: str
    default: Any = inspect.Parameter.empty  # empty: the caller must pass a value
    # Allowed values; empty for a size or number. Fortran, CUDA and shape expressions receive the index in this tuple.
    choices: tuple[str | bool | None, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()  # (choice, graph method that raises if the graph does not support it)
    real: bool = False  # whether the attribute is a finite float >= 0 rather than a size
    requests: bool = False  # whether the attribute, which only fwd has, requests an auxiliary output

    @property
    def is_required(self) -> bool:
        """Whether the caller must pass the attribute."""
        return self.default is inspect.Parameter.empty

    @lazy
    def is_size(self) -> bool:
        """Whether the attribute is a size."""
        return not self.choices and not self.real

    @lazy
    def value_types(self) -> frozenset[type]:
        """Types of the attribute's values; `trigraph.X` converts other values to one of these types."""
        return frozenset(type(c) for c in self.choices) or frozenset((float, int) if self.real else (int,))


@dataclass(frozen=True)
class Kink:
    """Points at which an operator is not differentiable.

    `function` names a function of the pyref backend, which takes the inputs, graph and attributes of the forward
    operator. The operator has a kink where one of the returned values is zero. The first axis of these values
    corresponds to the rows of the input `resample`, which the case generator draws again until no value is near zero.
    If values and rows are numbered differently, `rows` names the graph array that holds the row of each value.
    """

    function: str
    resample: str
    rows: str = ""


@dataclass(frozen=True)
class Bwd2Restriction:
    """Variant of bwd2 with its own name: some cotangents are zero, and only some fields are returned."""

    suffix: str  # ``bwd2_main`` gives ``agg_edge_to_edge_bwd2_main``
    # Array arguments, in order. All other cotangents are zero, and no returned field depends on other arguments.
    arguments: tuple[str, ...]
    fields: tuple[str, ...]  # fields of the result
    doc: str


@dataclass(frozen=True)
class DocstringExample:
    """Example calls with small numbers, shown in docstrings and run by tests.

    Examples of derivatives use the outputs of fwd as output gradients. The second-order example uses the square of the
    first input as its cotangent. The third-order example also uses the outputs as cotangents of the output gradients.
    All other cotangents are None.
    """

    lines: tuple[str, ...]  # NumPy statements that assign the arguments
    arguments: str  # arguments of fwd, separated by commas
    # Printed result by operator suffix; for "torch", the gradient of the summed output in the first argument.
    prints: Mapping[str, str]


@dataclass(frozen=True)
class Definition:
    """Definition of one differentiable operator."""

    name: str  # such as ``gno_kernel``
    family: str  # such as ``gno``; also the file name in every backend
    summary: str  # summary in one sentence
    formulas: tuple[str, str, str]  # formulas of fwd, bwd and bwd2
    source: str  # reference for the formula
    inputs: tuple[Array, ...]  # in signature order
    outputs: tuple[Array, ...]
    terms: str  # number of terms of the longest sum in any output or derivative; sets the tolerance
    operations: tuple[str, str, str]  # floating-point operations of fwd, bwd and bwd2; a multiply-add counts as two
    example: DocstringExample
    layers: tuple[str, ...] = ()  # classes of `trigraph.torch.nn` that call the operator
    attributes: tuple[Attribute, ...] = ()
    graph: str | None = None  # key of :data:`GRAPHS`
    kinks: tuple[Kink, ...] = ()
    restrictions: tuple[Bwd2Restriction, ...] = ()  # variants of bwd2 with their own names
    auxiliary: tuple[Array, ...] = ()  # additional results of fwd, not differentiable
    # Outputs and auxiliary outputs that bwd accepts as keywords and recomputes when they are None. The Fortran
    # reference always recomputes them.
    given_back: tuple[str, ...] = ()
    given_back_when: tuple[tuple[str, str], ...] = ()  # (name in `given_back`, condition under which bwd reads it)
    settings: tuple[Mapping[str, Any], ...] = ()  # choices and absent inputs (None) that test cases must cover; (): any
    maxima: tuple[tuple[str, int], ...] = ()  # (symbol, largest supported size)
    # Condition, in indices of choices, under which the outputs are linear in each input; "": every degree is 1.
    linear_when: str = ""
    largest_step: float = 2.0**-6  # largest finite-difference step; inputs of test cases are of order one

    @lazy
    def symbols(self) -> tuple[str, ...]:
        """Names of all sizes: first of the graph, then of the arrays in order of appearance, then of the attributes."""
        symbols: dict[str, None] = dict.fromkeys(GRAPHS[self.graph].sizes if self.graph else ())
        not_sizes = {a.name for a in self.attributes} | {f"has_{n}" for n in self.optional_names}
        for array in self.inputs + self.outputs:
            for dim in array.dims:
                symbols.update(dict.fromkeys(n for n in sorted(find_symbol_names(dim)) if n not in not_sizes))
        return (*symbols, *(a.name for a in self.attributes if a.is_size))

    def get_limited_symbol(self, name: str) -> SizeSymbol:
        """Return a size of :data:`SYMBOLS` with the maximum that this operator supports."""
        return self._limited_symbols.get(name) or SYMBOLS[name]

    @lazy
    def _limited_symbols(self) -> dict[str, SizeSymbol]:
        return {name: replace(SYMBOLS[name], maximum=maximum) for name, maximum in self.maxima}

    @lazy
    def request_names(self) -> tuple[str, ...]:
        """Names of the attributes that request auxiliary outputs of fwd; derivatives do not have these attributes."""
        return tuple(a.name for a in self.attributes if a.requests)

    @lazy
    def has_native_bwd3(self) -> bool:
        """Whether the outputs are not polynomial in some input; the fast path then implements bwd3 itself."""
        return any(a.degree is None for a in self.inputs)

    @lazy
    def is_always_multilinear(self) -> bool:
        """Whether the outputs are linear in each input, for all choices."""
        return not self.linear_when and all(a.degree == 1 for a in self.inputs)

    def is_multilinear(self, values: Mapping[str, Any]) -> bool:
        """Return whether the outputs are linear in each input, for these attributes."""
        if not self.linear_when:
            return self.is_always_multilinear
        chosen = {
            a.name: (a.choices, values[a.name])
            for a in self.attributes
            if a.name in find_symbol_names(self.linear_when)
        }
        choice_indices = {
            n: choices.index(v) if isinstance(v, str) and v in choices else -1 for n, (choices, v) in chosen.items()
        }
        return bool(evaluate_expression(self.linear_when, choice_indices))

    @lazy
    def optional_names(self) -> tuple[str, ...]:
        """Names of inputs and graph objects that may be None."""
        graphs = GRAPHS[self.graph].optional_names if self.graph else ()
        return (*(a.name for a in self.inputs if a.optional), *graphs)


@dataclass(frozen=True)
class ArrayArgument(Array):
    """Array argument of one operator.

    `nullable` arguments may be None: cotangents (which are then zero), optional inputs, and results of fwd for bwd.
    """

    nullable: bool = False
    given_back: bool = False


# Formula in the docstring of every bwd3.
FORMULA_OF_THIRD = (
    "gg_: the derivative of bwd(g, x); grad_ and inputs: the derivative of bwd2(a, g, x), with g = grad_, x = inputs, "
    "a = gg_; both in t at t = 0, for g + t ggg_grad_ and x + t ggg_ in place of g and x"
)


@dataclass(frozen=True)
class Operator:
    """Operator: a definition at derivative order 0 (fwd), 1 (bwd), 2 (bwd2) or 3 (bwd3)."""

    name: str
    order: int
    definition: Definition
    restriction: Bwd2Restriction | None = None

    @property
    def family(self) -> str:
        """File name of the operator in every backend."""
        return self.definition.family

    @property
    def suffix(self) -> str:
        """Suffix of the name after the definition's name, such as ``bwd2``."""
        return self.name.removeprefix(f"{self.definition.name}_")

    @lazy
    def graph_kind(self) -> GraphKind | None:
        """Kind of graph that the operator takes, or None."""
        return GRAPHS[self.definition.graph] if self.definition.graph else None

    @lazy
    def attributes(self) -> tuple[Attribute, ...]:
        """Attributes in signature order."""
        return tuple(a for a in self.definition.attributes if self.order == 0 or not a.requests)

    @lazy
    def arguments(self) -> tuple[ArrayArgument, ...]:
        """Array arguments: cotangents of gradients, gradients of outputs, inputs, results of fwd passed to bwd."""
        spec = self.definition
        inputs = tuple(ArrayArgument(**vars(a), nullable=a.optional) for a in spec.inputs)
        grads = tuple(
            ArrayArgument(f"grad_{a.name}", a.shape, f"Gradient of a scalar in {a.name}.", 1, half=a.half)
            for a in spec.outputs
        )
        doc = f"Cotangent of {spec.name}_bwd's {{}}; None is zero."
        ggs = tuple(
            ArrayArgument(f"gg_{a.name}", a.shape, doc.format(a.name), 1, column=a.column, half=a.half, nullable=True)
            for a in spec.inputs
        )
        gggs = tuple(
            ArrayArgument(
                f"ggg_{a.name}", a.shape, doc.format(a.name).replace("bwd", "bwd2"), 1, column=a.column, nullable=True
            )
            for a in Operator(f"{spec.name}_bwd2", 2, spec).fields
        )
        outputs = {a.name: vars(a) for a in (*spec.outputs, *spec.auxiliary)}
        overrides = {"keyword": True, "doc": f"Result of {spec.name}_fwd; recomputed if None."}
        reused_results = tuple(
            ArrayArgument(**outputs[n] | overrides, nullable=True, given_back=True) for n in spec.given_back
        )
        if self.order == 3:
            return tuple(replace(a, half=False) for a in (*gggs, *ggs, *grads, *inputs))
        arguments = ((*inputs,), (*grads, *inputs, *reused_results), (*ggs, *grads, *inputs))[self.order]
        return tuple(a for a in arguments if not self.restriction or a.name in self.restriction.arguments)

    @lazy
    def fields(self) -> tuple[Array, ...]:
        """Fields of the result: outputs and auxiliary outputs of fwd, or the derivatives."""
        spec = self.definition
        if self.order == 0:
            return spec.outputs + spec.auxiliary
        inputs = tuple(
            Array(
                a.name,
                a.shape,
                f"Derivative with respect to {a.name}.",
                column=a.column,
                optional=a.optional,
                half=a.half,
            )
            for a in spec.inputs
        )
        if self.order == 1:
            return inputs
        grads = (
            Array(f"grad_{a.name}", a.shape, f"Derivative with respect to grad_{a.name}.", half=a.half)
            for a in spec.outputs
        )
        if self.order == 3:
            ggs = (replace(a, name=f"gg_{a.name}", doc=f"Derivative with respect to gg_{a.name}.") for a in inputs)
            return tuple(replace(a, half=False) for a in (*ggs, *grads, *inputs))
        fields = (*grads, *inputs)
        return tuple(f for f in fields if not self.restriction or f.name in self.restriction.fields)

    def select_present_arguments(self, values: Mapping[str, Any]) -> tuple[ArrayArgument, ...]:
        """Return the array arguments that are not None."""
        return tuple(a for a in self.arguments if values.get(a.name) is not None)

    def list_returned_fields(self, values: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Array, ...]:
        """Return the fields that exist for these inputs and choices; other fields are None."""
        return tuple(
            f
            for f in self.fields
            if not (f.optional and values[f.name.removeprefix("gg_")] is None)
            and (not f.when or evaluate_expression(f.when, sizes))
        )

    @lazy
    def returns_array(self) -> bool:
        """Whether the operator returns the array itself rather than a NamedTuple."""
        return len(self.fields) == 1 and (self.order == 0 or self.restriction is not None)

    @lazy
    def accepts_wrt(self) -> bool:
        """Whether the caller may request only some fields (`wrt`)."""
        return self.order > 0 and not self.returns_array

    @lazy
    def choice_attribute_names(self) -> tuple[str, ...]:
        """Names of the attributes that are choices."""
        return tuple(a.name for a in self.attributes if a.choices)

    @lazy
    def real_attribute_names(self) -> tuple[str, ...]:
        """Names of the attributes that are real numbers."""
        return tuple(a.name for a in self.attributes if a.real)

    @property
    def formula(self) -> str:
        """Formula of the result."""
        return self.restriction.doc if self.restriction else (*self.definition.formulas, FORMULA_OF_THIRD)[self.order]

    @lazy
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the positional parameters, without `wrt`."""
        graphs = tuple(a.name for a in self.graph_kind.arguments) if self.graph_kind else ()
        arrays = tuple(a.name for a in self.arguments if not a.keyword)
        keywords = tuple(a.name for a in self.arguments if a.keyword)
        requests = self.definition.request_names if self.order == 0 else ()
        attributes = tuple(a.name for a in self.attributes if a.name not in requests)
        return (*arrays, *graphs, *attributes, *keywords, *requests)

    @lazy
    def size_binding_order(self) -> tuple[ArrayArgument, ...]:
        """Array arguments in the order in which they bind sizes: inputs first, so that errors name a gradient."""
        inputs = {a.name for a in self.definition.inputs}
        return tuple(sorted(self.arguments, key=lambda a: a.name not in inputs))

    @lazy
    def argument_axes(self) -> tuple[tuple[ArrayArgument, tuple[tuple[str, frozenset[str]], ...]], ...]:
        """Array arguments in `size_binding_order`, each with the expressions of its axes and the symbols in them."""
        return tuple((a, tuple((dim, find_symbol_names(dim)) for dim in a.dims)) for a in self.size_binding_order)

    @lazy
    def index_arguments(self) -> tuple[ArrayArgument, ...]:
        """Array arguments that hold integers."""
        return tuple(a for a in self.arguments if a.index)

    @lazy
    def positive_arguments(self) -> tuple[ArrayArgument, ...]:
        """Array arguments whose numbers must be positive."""
        return tuple(a for a in self.arguments if a.positive)

    @lazy
    def column_arguments(self) -> tuple[ArrayArgument, ...]:
        """Array arguments that may have a trailing axis of length one."""
        return tuple(a for a in self.arguments if a.column)

    @lazy
    def signature(self) -> inspect.Signature:
        """Signature of the operator in every backend; derivatives with named fields also have `wrt`."""
        positional, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        nullable = {a.name for a in self.arguments if a.nullable and not a.keyword}  # optional in `trigraph.*` only
        defaults = {n: value for n, value in self.defaults.items() if n not in nullable}
        return inspect.Signature(
            [inspect.Parameter(n, positional, default=defaults.get(n, empty)) for n in self.signature_names]
        )

    @lazy
    def signature_names(self) -> tuple[str, ...]:
        """Names of the positional parameters; `wrt`, if there is one, is the last."""
        return (*self.parameter_names, *(("wrt",) if self.accepts_wrt else ()))

    @lazy
    def defaults(self) -> dict[str, Any]:
        """Default values of the parameters that a caller of `trigraph.X` may omit."""
        absent = (
            *(a.name for a in self.arguments if a.nullable),
            *(self.graph_kind.optional_names if self.graph_kind else ()),
            "wrt",
        )
        defaults = {a.name: a.default for a in self.attributes if not a.is_required} | dict.fromkeys(absent)
        return {n: defaults[n] for n in self.signature_names if n in defaults}

    @property
    def operation_count_expression(self) -> str:
        """Expression for the number of floating-point operations.

        A native bwd3 is bwd on numbers with four components (`fortran/fast/jets.inc`); a product takes 9 multiplies.
        """
        return self.definition.operations[self.order] if self.order < 3 else f"9*({self.definition.operations[1]})"


# The caches are bounded, because their keys are the expressions of the table.
@cache
def _split_shape(shape: str) -> tuple[str, ...]:
    return tuple(shape.split())


@cache
def _compile_expression(expression: str) -> CodeType:
    try:
        return compile(expression, "<operator table>", "eval")
    except SystemError:  # CPython raises SystemError instead of MemoryError if an allocation fails
        raise MemoryError("the system refused memory for an expression of the operator table") from None


_NO_GLOBALS: dict[str, Any] = {"__builtins__": {}}


def evaluate_expression(expression: str, sizes: Mapping[str, int]) -> int:
    """Evaluate an expression of the table for given sizes; raise NameError if a symbol has no size yet."""
    if expression in sizes:  # most expressions consist of one symbol
        return sizes[expression]
    return eval(_compile_expression(expression), _NO_GLOBALS, sizes)


def evaluate_shape(array: Array, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an array of the table for given sizes."""
    return tuple([evaluate_expression(dim, sizes) for dim in array.dims])


@cache
def find_symbol_names(expression: str) -> frozenset[str]:
    """Return the symbols in an expression."""
    return frozenset(re.findall(r"[a-z_]\w*", expression))

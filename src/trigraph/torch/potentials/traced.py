"""Traced programs: graphs of operations that compute derivatives, rewritten so that torch compiles them only once."""

import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from trigraph.torch.library import OPERATORS_OF_TORCH
from trigraph.torch.potentials.structures import DST

_forward, _backward = (OPERATORS_OF_TORCH[f"agg_weighted_n2n_{order}"] for order in ("fwd", "bwd"))
# Programs call these overloads of `agg_weighted_n2n` and its derivative. In a sum, `op` (the argument at
# _CHOICE_POSITION) is _SUM; in a gradient of rows, the last argument (the requested fields) is _ROWS. The last
# arguments are `op`, `mean_by`, the backend (only in Python) and, for the derivative, the requested fields.
_SUM: int | str
_ROWS: int | str
if _forward.native and _backward.native:
    _sums, _sums_backward = _forward.native.overload, _backward.native.overload
    _SUM, _CHOICE_POSITION, _ROWS = 0, -2, _backward.native.bits["embedding"]
else:
    _sums, _sums_backward = _forward.overload, _backward.overload
    _SUM, _CHOICE_POSITION, _ROWS = "sum", -3, "embedding"
# Maps each derivative operator to its field names and a function that encodes the requested fields.
_SELECTIVE: dict[Any, tuple[list[str], Any]] = {
    overload: ([f.name for f in op.op.fields], mask)
    for op in OPERATORS_OF_TORCH.values()
    if op.op.accepts_wrt and not op.op.returns_array
    for overload, mask in (
        (op.overload, str),
        *([(op.native.overload, op.native.make_field_mask)] if op.native else []),
    )
}


def trace_differentiable_program(function: Any, *example: Any, tracing_mode: str = "symbolic") -> Any:
    """Trace a function that computes its own gradients to a graph of operations that can be differentiated again.

    Autograd detaches the results that it saves, for example the value of a square root. This function removes these
    detach operations, because they would make the next derivative incomplete.
    """
    program: Any = make_fx(function, tracing_mode=tracing_mode)(*example)  # type: ignore[arg-type]
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    prune_requested_fields(program)
    program.recompile()
    return program


def prune_requested_fields(program: Any) -> None:
    """Make derivative operators compute only the fields that the program reads.

    When autograd computes forces, it also requests gradients of all parameters, which the program never reads.
    """
    for node in reversed(program.graph.nodes):
        if node.target not in _SELECTIVE or any(user.target is not operator.getitem for user in node.users):
            continue
        for item in [user for user in node.users if not user.users]:
            program.graph.erase_node(item)
        names, mask = _SELECTIVE[node.target]
        read = ",".join(name for place, name in enumerate(names) if place in {user.args[1] for user in node.users})
        node.update_arg(len(node.args) - 1, mask(read))


def read_size_conditions(program: Any) -> str:
    """Return the conditions on sizes that a model evaluated during tracing, such as ``num_atoms > 20``.

    `ShapeEnv.evaluate_guards_expression` evaluates the conditions for the tensors that `list_program_tensors` returns.
    """
    traced = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.meta.get("val") is not None]
    return traced[0].fake_mode.shape_env.produce_guards_expression(traced)


def _multiply_transposed(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of `first`, transposed to (inner, rows), and `second` (rows, columns).

    Gradients of parameters are such sums over rows. Torch's compiler generates one kernel for a float32 sum over at
    most 4096 rows and another for more, and recompiles the program to switch kernels, but products need only one. A
    single column is duplicated, because the compiler turns a product of one row and one column into a sum.
    """
    columns = second.shape[1]
    return first.t().mm(second if columns > 1 else second.expand(-1, 2))[:, :columns]


class _BiasAddition(torch.autograd.Function):
    """Add a row vector of biases to x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        # The compiler would merge x + bias into the matrix product that yields x, and first copy the bias to each row.
        return x - bias.neg()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, _multiply_transposed(grad.new_ones(grad.shape[0], 1), grad)[0]


class _OuterProduct(torch.autograd.Function):
    """Product of matrices (rows, 1) and (1, columns), computed as an elementwise product."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return first * second

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        first, second = ctx.saved_tensors
        return (grad * second).sum(1, keepdim=True), _multiply_transposed(first, grad)


class _SingleColumnProduct(torch.autograd.Function):
    """Product of matrices (rows, inner) and (inner, 1), computed as an elementwise product and a sum over columns."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return (first * second.t()).sum(1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        first, second = ctx.saved_tensors
        return grad * second.t(), _multiply_transposed(first, grad)


class _RowSums(torch.autograd.Function):
    """Sum rows, each of which contributes to the sum given by `index`, so that the derivative is a selection.

    `rest` contains the other arguments of `agg_weighted_n2n_fwd`: None (no weights), the tensors of the graph, and
    numbers and choices, which are constants or determined by shapes.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, *rest: Any) -> Tensor:
        ctx.save_for_backward(index)
        ctx.number = len(rest)
        return _sums(values, *rest)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, *ctx.number * [None]


class _RowSelection(torch.autograd.Function):
    """Select the rows given by `index`. The derivative is the transpose, `_RowSums`, which adds in a fixed order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, *rest: Any) -> Tensor:
        tensors = [t for t in rest if isinstance(t, Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.others = rest[1 + len(tensors) :]
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        tensors = ctx.saved_tensors
        summed = _sums(grad, None, *tensors, *ctx.others)[0]
        return summed, None, *(1 + len(tensors) + len(ctx.others)) * [None]


def _wrap_apply_in_function(cls: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """Return a function that calls `cls.apply`, because traced programs can call only ordinary functions."""

    def apply_autograd_function(*args: Any) -> Tensor:
        return cls.apply(*args)  # type: ignore[no-any-return, no-untyped-call]

    apply_autograd_function.__name__ = apply_autograd_function.__qualname__ = cls.__name__.removeprefix("_")
    return apply_autograd_function


add_bias, multiply_outer, multiply_single_column, sum_rows, select_rows = map(
    _wrap_apply_in_function, (_BiasAddition, _OuterProduct, _SingleColumnProduct, _RowSums, _RowSelection)
)


def find_index_nodes(program: Any, state: Mapping[str, Tensor], example: Any) -> dict[Any, Any]:
    """Return the program nodes for the destination of each edge and the structure of each atom.

    The keys are the nodes for the first tensors of the graphs `Neighbors.into` and `Neighbors.members`. `example` is
    the `trigraph.torch.potentials.program_inputs.ProgramInputs` with which the program was traced.
    """
    leaves = (n for n in program.graph.nodes if n.op == "placeholder" and n.meta.get("val") is not None)
    nodes = itertools.islice(leaves, len(state), None)
    _, _, _, batch, _ = (None if t is None else next(nodes) for t in example[:5])
    graph, _, into, members = ([None if t is None else next(nodes) for t in tensors] for tensors in example.graphs)
    return {into[0]: graph[DST], members[0]: batch}


def rewrite_sums(program: Any, indices: Mapping[Any, Any]) -> None:
    """Rewrite sums to which each row contributes once, so that their derivatives are selections, which can be fused.

    `indices` maps the node for a graph's first tensor to the node for the index of the sum that each row belongs to.
    """
    for node in list(program.graph.nodes):
        if node.target is _sums:
            values, weights, *graph = node.args
            call, new_arguments = sum_rows, (values, indices.get(graph[0]), weights, *graph)
        elif node.target is _sums_backward and node.args[-1] == _ROWS:
            grad, _, weights, *absent = node.args[:6]
            graph = node.args[6:-1]
            call, new_arguments = select_rows, (grad, indices.get(graph[0]), weights, *graph)
            weights = next((t for t in (weights, *absent) if t is not None), None)
        else:
            continue
        if new_arguments[1] is None or weights is not None or graph[_CHOICE_POSITION] != _SUM:
            continue
        with program.graph.inserting_before(node):
            replacement = program.graph.call_function(call, new_arguments)
        for item in list(node.users):  # one user per field; only the first field is not empty
            item.replace_all_uses_with(replacement)
            program.graph.erase_node(item)
        program.graph.erase_node(node)
    program.recompile()


def rewrite_products(program: Any) -> None:
    """Rewrite matrix products in an equivalent form that torch's compiler optimizes better.

    For products with one column or an inner size of 1, the compiler chooses a kernel by the number of rows, and may
    compile again for other numbers. Biases are added separately, so that they are fused with the activation.
    """
    aten = torch.ops.aten
    for node in list(program.graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *bias, first, second = node.args
        shape = second.meta["val"].shape
        inner, columns = (isinstance(n, int) and n == 1 for n in shape)  # isinstance because sizes may be symbolic
        if bias and tuple(bias[0].meta["val"].shape) != tuple(shape[1:]):
            continue
        if not (inner or columns or bias):
            continue
        with program.graph.inserting_before(node):
            call = program.graph.call_function
            kind = multiply_outer if inner else multiply_single_column if columns else aten.mm.default
            replacement = call(kind, (first, second))
            if bias:
                replacement = call(add_bias, (replacement, bias[0]))
        node.replace_all_uses_with(replacement)
        program.graph.erase_node(node)
    program.recompile()

"""Traced programs: graphs of operations that compute derivatives, which torch compiles for all sizes."""

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx


def trace(function: Any, *example: Any, tracing_mode: str = "symbolic") -> Any:
    """Trace a function that computes its own gradients to a graph of operations that can be differentiated again.

    Autograd detaches the results that it saves, such as a square root. These operations are removed, because they
    would cut off the next derivative.
    """
    program: Any = make_fx(function, tracing_mode=tracing_mode)(*example)  # type: ignore[arg-type]
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    program.recompile()
    return program


def condition_of(program: Any) -> str:
    """Return the conditions on sizes that a model evaluated during tracing, such as more than 20 atoms.

    `ShapeEnv.evaluate_guards_expression` evaluates them for the tensors of a call, `leaves_of`.
    """
    traced = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.meta.get("val") is not None]
    return traced[0].fake_mode.shape_env.produce_guards_expression(traced)


def _over_rows(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of (inner, rows), first transposed, and (rows, columns).

    Gradients of parameters are such sums over rows. A sum in single precision has one form in torch's compiler for at
    most 4096 rows and another for more, and the whole program is compiled again when a call needs the other one. A
    product has one form, except that the compiler turns a product with one row and one column into a sum. Therefore a
    single column is passed twice.
    """
    columns = second.shape[1]
    return first.t().mm(second if columns > 1 else second.expand(-1, 2))[:, :columns]


class _WithBias(torch.autograd.Function):
    """x + bias, with a bias for each column."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        # The compiler would turn x + bias into a product with a bias, which first copies the bias into each row.
        return x - bias.neg()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, _over_rows(grad.new_ones(grad.shape[0], 1), grad)[0]


class _Outer(torch.autograd.Function):
    """The product of (rows, 1) and (1, columns), written as an elementwise product."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return first * second

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        first, second = ctx.saved_tensors
        return (grad * second).sum(1, keepdim=True), _over_rows(first, grad)


class _OneColumn(torch.autograd.Function):
    """The product of (rows, inner) and (inner, 1), written as an elementwise product and a sum over columns."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return (first * second.t()).sum(1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        first, second = ctx.saved_tensors
        return grad * second.t(), _over_rows(first, grad)


def with_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Call `_WithBias`; traced programs contain functions."""
    return _WithBias.apply(x, bias)  # type: ignore[no-untyped-call]


def outer(first: Tensor, second: Tensor) -> Tensor:
    """Call `_Outer`."""
    return _Outer.apply(first, second)  # type: ignore[no-untyped-call]


def one_column(first: Tensor, second: Tensor) -> Tensor:
    """Call `_OneColumn`."""
    return _OneColumn.apply(first, second)  # type: ignore[no-untyped-call]


def rewrite_products(program: Any) -> None:
    """Write matrix products in the form of which torch's compiler makes most, with equal results.

    Of a product with one column or one inner index the compiler decides by the number of rows whether it is a pass over
    elements, and compiles again for other numbers. A bias is added in the pass that applies the activation.
    """
    aten = torch.ops.aten
    for node in list(program.graph.nodes):
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *bias, first, second = node.args
        shape = second.meta["val"].shape
        inner, columns = (isinstance(n, int) and n == 1 for n in shape)  # others are symbols
        if bias and tuple(bias[0].meta["val"].shape) != tuple(shape[1:]):
            continue
        if not (inner or columns or bias):
            continue
        with program.graph.inserting_before(node):
            call = program.graph.call_function
            kind = outer if inner else one_column if columns else aten.mm.default
            replacement = call(kind, (first, second))
            if bias:
                replacement = call(with_bias, (replacement, bias[0]))
        node.replace_all_uses_with(replacement)
        program.graph.erase_node(node)
    program.recompile()

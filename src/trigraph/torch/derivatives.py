"""Derivatives of trigraph's torch operators: X_bwd for X_fwd, X_bwd2 for X_bwd, and X_bwd3 or plain forms for X_bwd2.

X_bwd3 is the derivative of X_bwd2 for operators that are not multilinear. X_bwd3 itself cannot be differentiated: if a
further derivative may be needed, torch differentiates the operator's plain form (`trigraph.plain`) instead.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from trigraph.backends.choice import supports_bwd3
from trigraph.backends.third import compose_multilinear_bwd3
from trigraph.checks import find_choice_index
from trigraph.table import evaluate_expression
from trigraph.table.lazy import lazy
from trigraph.torch.library import LIBRARY, OPERATORS_OF_TORCH, TorchOperator, has_tangents
from trigraph.torch.native import REFUSAL_ERRORS
from trigraph.torch.plain import make_bwd2_contraction


class OperatorDerivatives:
    """Reverse- and forward-mode derivatives of an operator, for its torch.autograd.Function."""

    def __init__(self, op: TorchOperator) -> None:
        self.op, self.order = op, op.op.order
        self.spec = op.op.definition
        self.fields = tuple(f.name for f in op.op.fields)
        self.outputs = tuple(a.name for a in self.spec.outputs)
        self.inputs = tuple(a.name for a in self.spec.inputs)
        self.differentiable = self.outputs if self.order == 0 else self.fields
        self.constants = frozenset(self.fields).difference(self.differentiable)
        self.output_positions = [i for i, n in enumerate(self.fields) if n in self.outputs]
        # Results of `list_constant_and_reused_fields`, keyed by a call's choices, which determine the fields and what
        # bwd reuses.
        self.choice_cache: dict[tuple[Any, ...], tuple[frozenset[str], list[int | None]]] = {}

    @lazy
    def derivative_operators(self) -> tuple[TorchOperator, TorchOperator]:
        """Operators X_bwd and X_bwd2 of the definition."""
        return OPERATORS_OF_TORCH[f"{self.spec.name}_bwd"], OPERATORS_OF_TORCH[f"{self.spec.name}_bwd2"]

    def save_for_derivatives(self, ctx: Any, inputs: Sequence[Any], output: Any, forwards: bool = False) -> None:
        """Save arguments and reusable results for reverse mode and, if `forwards`, also for forward mode."""
        count = self.op.num_tensors
        results = output if isinstance(output, tuple) else (output,)
        ctx.rest = inputs[count:]
        nondifferentiable, result_positions = self.list_constant_and_reused_fields(
            dict(zip(self.op.plain_names, ctx.rest[self.op.num_numbers :], strict=True))
        )
        # Save graph tensors, too: autograd frees saved tensors after the backward pass, and raises if one was modified.
        saved = (*inputs[:count], *[None if i is None else results[i] for i in result_positions])
        ctx.save_for_backward(*saved)
        if forwards:
            ctx.save_for_forward(*saved)
        ctx.shapes = [results[i].shape for i in self.output_positions]
        ctx.set_materialize_grads(False)
        if nondifferentiable:
            ctx.mark_non_differentiable(
                *[t for n, t in zip(self.fields, results, strict=True) if n in nondifferentiable]
            )

    def list_constant_and_reused_fields(self, keywords: Mapping[str, Any]) -> tuple[frozenset[str], list[int | None]]:
        """Return the fields without a derivative, and the positions of results that bwd reuses.

        Fields that were not requested, or do not exist for these attributes, have no derivative. A position is None if
        bwd does not read the result, whose memory can then be freed or overwritten.
        """
        if self.op.op.accepts_wrt:
            return frozenset(self.fields).difference(keywords["wanted"].split(",")), []
        key = tuple([keywords[name] for name in self.op.op.choice_attribute_names])
        choice = self.choice_cache.get(key)
        if choice is None:
            choices = {
                a.name: find_choice_index(a.choices, keywords[a.name]) for a in self.op.op.attributes if a.choices
            }
            absent = frozenset(f.name for f in self.op.op.fields if f.when and not evaluate_expression(f.when, choices))
            unused = {n for n, when in self.spec.given_back_when if not evaluate_expression(when, choices)} | absent
            result_positions = [None if n in unused else self.fields.index(n) for n in self.spec.given_back]
            choice = self.choice_cache[key] = self.constants | absent, result_positions
        return choice

    def restore_arguments(self, ctx: Any, saved: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the call's arrays and reusable results by name, and the call's `keywords`."""
        count = self.op.num_tensors
        arrays, keywords = self.op.unflatten_arguments((*saved[:count], *ctx.rest), lambda t: t)
        values = dict(zip(self.op.array_names, arrays, strict=True))
        if self.order == 0:
            values |= zip(self.spec.given_back, saved[count:], strict=False)
        return values, keywords

    def compute_derivative_fields(
        self, op: TorchOperator, values: dict[str, Any], keywords: Any, fields: Sequence[str]
    ) -> Any:
        """Call a derivative operator with the original graphs, attributes and backend; return the fields by name."""
        if not fields:
            return {}
        result = op([values.get(name) for name in op.array_names], {**keywords, "wanted": ",".join(fields)})
        named = zip((f.name for f in op.op.fields), result if isinstance(result, tuple) else (result,), strict=True)
        return {n: t for n, t in named if n in fields}

    def make_zero_output_gradients(self, ctx: Any, like: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return zeros as the gradients of all outputs, by name."""
        return {f"grad_{n}": like.new_zeros(s) for n, s in zip(self.outputs, ctx.shapes, strict=True)}

    def make_third_derivative(
        self, values: Mapping[str, Any], keywords: Mapping[str, Any], cotangents: Mapping[str, Any]
    ) -> Any:
        """Return a function that maps names of bwd2's arguments to gradients, given cotangents of bwd2's fields.

        For a multilinear operator, X_bwd and X_bwd2 compute gradients that can be differentiated again
        (`trigraph.backends.third.compose_multilinear_bwd3`). Other operators use X_bwd3 if the backend has it,
        gradients are disabled and no array has a tangent; otherwise they use the plain form.
        """
        if not self.spec.is_multilinear(keywords):
            bwd3 = OPERATORS_OF_TORCH[f"{self.spec.name}_bwd3"]
            backend = keywords["backend"] or ("gpu" if values[self.inputs[0]].is_cuda else "fortran")
            may_be_differentiated = torch.is_grad_enabled() or has_tangents(
                [*map(values.get, self.op.array_names), *cotangents.values()]
            )
            if may_be_differentiated or not supports_bwd3(backend, bwd3.op, keywords):
                return partial(
                    self.compute_contraction_gradients,
                    self.make_operator_contraction(values, keywords, cotangents, {}),
                    is_last_derivative=not may_be_differentiated,
                )
            bwd3_values = {**values, **{f"ggg_{n}": t for n, t in cotangents.items()}}
            return lambda wanted: self.compute_derivative_fields(
                bwd3, bwd3_values, keywords, [n for n in wanted if n in bwd3.fields]
            )
        names = [n for n in self.inputs if values[n] is not None]

        def compute_bwd_or_bwd2(order: int, changed: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
            return self.compute_derivative_fields(self.derivative_operators[order - 1], changed, keywords, fields)

        return lambda wanted: compose_multilinear_bwd3(names, values, cotangents, wanted, compute_bwd_or_bwd2)

    def backward(self, ctx: Any, cotangents: Sequence[Any], needed: Sequence[bool]) -> tuple[Any, ...]:
        """Return the requested gradients of the arguments, and None for the other arguments."""
        if all(t is None for t in cotangents):  # zero cotangents would yield NaN for arrays with NaN
            return (None,) * len(needed)
        values, keywords = self.restore_arguments(ctx, ctx.saved_tensors)
        if self.order == 2:
            present = {n: t for n, t in zip(self.fields, cotangents, strict=True) if t is not None and t.numel()}
            wanted = [n for n, need in zip(self.op.array_names, needed, strict=False) if need]
            grads = self.make_third_derivative(values, keywords, present)(wanted) if present else {}
            return (*(grads.get(n) for n in self.op.array_names), *(None for _ in needed[self.op.num_arrays :]))
        prefix = "grad_" if self.order == 0 else "gg_"
        prefixed = {f"{prefix}{n}": t for n, t in zip(self.fields, cotangents, strict=True) if n in self.differentiable}
        if self.order == 0 and any(t is None for t in prefixed.values()):
            prefixed = self.make_zero_output_gradients(ctx, values[self.inputs[0]]) | {
                n: t for n, t in prefixed.items() if t is not None
            }
        op = self.derivative_operators[self.order]
        names = {n for n, need in zip(self.op.array_names, needed, strict=False) if need}
        fields = [f.name for f in op.op.fields if f.name in names]
        grads = self.compute_derivative_fields(op, values | prefixed, keywords, fields)
        return (*(grads.get(n) for n in self.op.array_names), *(None for _ in needed[self.op.num_arrays :]))

    def compute_native_gradients(self, ctx: Any, cotangents: Sequence[Any], needed: Sequence[bool]) -> Any:
        """Compute `backward` in C++ for a plain call of X_fwd that is differentiated once; otherwise return None.

        The arguments of X_bwd are the gradients of the outputs, and the arrays and results of X_fwd. Its fields are the
        derivatives with respect to the arrays of X_fwd, and its attributes are the first ones of X_fwd.
        """
        bwd = self.derivative_operators[0]
        native = bwd.native
        if self.order or native is None or torch.is_grad_enabled():
            return None
        saved, graphs = ctx.saved_tensors, slice(self.op.num_arrays, self.op.num_tensors)
        arrays = [*[cotangents[i] for i in self.output_positions], *saved[: graphs.start], *saved[graphs.stop :]]
        if native.plain_call_needs_gradient(arrays) is None:
            return None
        wanted = sum([bit for bit, need in zip(native.bits.values(), needed, strict=True) if need])
        try:
            results = native.eager(
                *arrays, *saved[graphs], *ctx.numbers[: bwd.backend_position - bwd.num_tensors], wanted
            )
        except REFUSAL_ERRORS:
            return None
        fields = results if isinstance(results, tuple) else (results,)
        return [t if need else None for t, need in zip(fields, needed, strict=True)]

    def compute_tangents(self, ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Any:
        """Return the derivatives of the results along tangents of the arguments (forward mode).

        With the tangents passed to X_bwd2 as gg_input, its field grad_output is the Jacobian-vector product. Because
        second derivatives are symmetric, its other fields are the derivatives of the gradients along the tangents.
        """
        values, keywords = self.restore_arguments(ctx, saved)
        tangents_by_name = {n: t for n, t in zip(self.op.array_names, tangents, strict=False) if t is not None}
        left = self.list_constant_and_reused_fields(keywords)[0]
        bwd, bwd2 = self.derivative_operators
        direction = {f"gg_{n}": tangents_by_name[n] for n in self.inputs if n in tangents_by_name}
        if self.order == 2:
            by_field = self.compute_bwd2_tangents(values, keywords, tangents_by_name)
        elif self.order == 0:
            names = tuple(f"grad_{n}" for n in self.outputs)
            by_field = self.compute_derivative_fields(
                bwd2, values | self.make_zero_output_gradients(ctx, values[self.inputs[0]]) | direction, keywords, names
            )
            by_field = {n.removeprefix("grad_"): t for n, t in by_field.items()}
        else:
            fields = tuple(n for n in self.fields if n not in left)
            by_field = self.compute_derivative_fields(bwd2, values | direction, keywords, fields) if direction else {}
            grads = tuple(f"grad_{n}" for n in self.outputs)
            if any(n in tangents_by_name for n in grads):
                more = values | {n: tangents_by_name.get(n, torch.zeros_like(values[n])) for n in grads}
                for n, t in self.compute_derivative_fields(bwd, more, keywords, fields).items():
                    by_field[n] = by_field[n] + t if n in by_field else t
        # Torch requires a tangent for each differentiable result.
        named = ((n, by_field.get(n)) for n in self.fields)
        results = tuple(torch.zeros_like(values[n]) if t is None and n not in left else t for n, t in named)
        return results if len(results) > 1 else results[0]

    def compute_bwd2_tangents(
        self, values: Mapping[str, Any], keywords: Mapping[str, Any], tangents_by_name: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the derivatives of bwd2's fields along tangents of its arguments (forward mode of `third`)."""
        names = [n for n in self.inputs if values[n] is not None]
        wanted = keywords["wanted"].split(",")
        if self.spec.is_multilinear(keywords):
            by_field: dict[str, torch.Tensor] = {}

            def add_bwd2_fields(changed: dict[str, Any], without: Sequence[str] = ()) -> None:
                fields = tuple(n for n in wanted if n not in without)
                for n, t in self.compute_derivative_fields(
                    self.derivative_operators[1], {**values, **changed}, keywords, fields
                ).items():
                    by_field[n] = by_field[n] + t if n in by_field else t

            grads = [f"grad_{n}" for n in self.outputs]
            if any(f"gg_{n}" in tangents_by_name for n in names):
                add_bwd2_fields({f"gg_{n}": tangents_by_name.get(f"gg_{n}") for n in names})
            if any(n in tangents_by_name for n in grads):
                add_bwd2_fields({n: tangents_by_name.get(n, torch.zeros_like(values[n])) for n in grads}, grads)
            for n in names:
                if n in tangents_by_name:
                    add_bwd2_fields({n: tangents_by_name[n], f"gg_{n}": None}, (n,))
            return by_field
        mixed = {n: tangents_by_name[f"gg_{n}"] for n in names if f"gg_{n}" in tangents_by_name}
        return self.compute_contraction_gradients(
            self.make_operator_contraction(values, keywords, tangents_by_name, mixed), wanted
        )

    def make_operator_contraction(self, *arguments: Any) -> Any:
        """Call `trigraph.torch.plain.make_bwd2_contraction` for this operator."""
        values, keywords, *more = arguments
        # `view_as` removes wrappers of finished torch.func levels, as any torch operation does but `vjp` does not.
        values, *more = ({n: t if t is None else t.view_as(t) for n, t in v.items()} for v in (values, *more))
        return make_bwd2_contraction(self.spec, values, keywords, *more)

    def compute_contraction_gradients(
        self, curvature: tuple[Mapping[str, Any], Any], wanted: Sequence[str], is_last_derivative: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return the gradients of the function from `make_bwd2_contraction` with respect to the wanted arrays.

        `is_last_derivative` means that nothing is recorded and no array has a tangent, so that plain autograd suffices.
        """
        arrays, function = curvature
        some = [n for n in wanted if n in arrays]
        if is_last_derivative:
            leaves = {n: arrays[n].detach().requires_grad_() for n in some}
            with torch.enable_grad():
                number = function(leaves)
            return dict(zip(some, torch.autograd.grad(number, [*leaves.values()], materialize_grads=True), strict=True))
        vjp_result = torch.func.vjp(lambda *t: function(dict(zip(some, t, strict=True))), *(arrays[n] for n in some))
        number, pull = vjp_result[:2]
        return dict(zip(some, pull(torch.ones_like(number)), strict=True))


def register_derivatives() -> None:
    """Set the `OperatorDerivatives` of each operator, and register derivatives with torch for compiled programs."""
    for name, op in OPERATORS_OF_TORCH.items():
        derivative = op.derivative = OperatorDerivatives(op)

        def backward(ctx: Any, *cotangents: Any, derivative: OperatorDerivatives = derivative) -> tuple[Any, ...]:
            return derivative.backward(ctx, cotangents, ctx.needs_input_grad)

        if op.op.order < 3:
            torch.library.register_autograd(
                f"trigraph::{name}", backward, setup_context=derivative.save_for_derivatives, lib=LIBRARY
            )
            if op.native is not None:
                op.native.register_autograd(backward, derivative.save_for_derivatives)

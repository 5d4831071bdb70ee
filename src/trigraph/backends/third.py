"""Third derivatives composed of derivatives of lower order.

Let F be an operator with inputs x and Jacobian J, g = grad_ and a = gg_. Then bwd(g, x) = J^T g, and bwd2(a, g, x)
returns J a and the gradient of <g, J a> with respect to x. bwd3 is the derivative of bwd and bwd2 along cotangents c_g
and c_x of bwd2's fields (`trigraph.table.grammar.FORMULA_OF_THIRD`). If an operator is linear in each input, calls of
bwd and bwd2 with one input replaced by its direction give bwd3; similar calls give bwd3 for the graph neural operator
(`third_gno`). For other operators, some backends have their own bwd3.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trigraph.arrays import get_array_module
from trigraph.backends import third_gno
from trigraph.backends.choice import (
    DIFFERENTIABLE_BACKENDS,
    get_backend_function,
    is_bwd3_composed,
    is_bwd3_native,
    supports_bwd3,
)
from trigraph.checks import evaluate_shape
from trigraph.table import OPERATORS, Operator, result_type
from trigraph.table.public import BACKENDS


def compose_multilinear_bwd3(
    names: Sequence[str],
    values: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    wanted: Sequence[str],
    call_lower: Callable[[int, dict[str, Any], tuple[str, ...]], Mapping[str, Any]],
    tangent: bool = True,
) -> dict[str, Any]:
    """Return the gradients of <cotangents, bwd2's fields> by argument of bwd2; omit arguments without any term.

    `names` lists the inputs that are not None; `cotangents` maps fields to their cotangents. `call_lower` takes the
    order of a derivative, its arguments by name and the names of the fields to compute, and returns the fields by name.

    The tangent of bwd2 along c_x is a sum over the inputs n. Term n is bwd2 with c_n in place of input n, without
    a_n and without a gradient for n. ``tangent=False`` omits this sum; the other terms are correct for any operator.
    """
    results: dict[str, Any] = {}

    def add_lower_order_terms(order: int, changed: Mapping[str, Any], fields: Mapping[str, str]) -> None:
        if not fields:
            return
        for n, t in call_lower(order, {**values, **changed}, tuple(fields)).items():
            results[fields[n]] = results[fields[n]] + t if fields[n] in results else t

    grads, direction_cotangents = ({n: t for n, t in cotangents.items() if (n in names) is at} for at in (False, True))
    of_along = {n: f"gg_{n}" for n in names if f"gg_{n}" in wanted}
    of_inputs = {n: n for n in names if n in wanted}
    of_grads = {n: n for n in wanted if n.startswith("grad_")}
    if grads:
        add_lower_order_terms(1, grads, of_along)
        add_lower_order_terms(2, grads, of_inputs)
    if direction_cotangents:
        add_lower_order_terms(2, {f"gg_{n}": direction_cotangents.get(n) for n in names}, of_along)
    for n, t in direction_cotangents.items() if tangent else ():
        add_lower_order_terms(2, {n: t, f"gg_{n}": None}, {**of_grads, **{k: k for k in of_inputs if k != n}})
    return results


def execute_bwd3(op: Operator, values: Any, sizes: Any, wanted: Sequence[str], out: Any, backend: str) -> Any:
    """Run a checked call of bwd3; raise ValueError if the backend does not have it."""
    spec = op.definition
    if backend in DIFFERENTIABLE_BACKENDS or (is_bwd3_native(backend, op.name) and not is_bwd3_composed(op, values)):
        return get_backend_function(backend, "execute")(op, values, sizes, wanted, out)
    if not supports_bwd3(backend, op, values):
        supporting_backends = ", ".join(
            b for b, (_, kind) in BACKENDS.items() if kind == "numpy" and supports_bwd3(b, op, values)
        )
        raise ValueError(
            f"{op.name}: backend {backend!r} has third derivatives of graph neural operators, DimeNet++ and operators "
            f"that are linear in each input only; expected one of {supporting_backends}, or "
            f"trigraph.torch.{spec.name}, which has them on every device"
        )
    first = values[spec.inputs[0].name]
    xp = get_array_module(first)
    names = [a.name for a in spec.inputs if values[a.name] is not None]
    lower = {order: OPERATORS[f"{spec.name}_{suffix}"] for order, suffix in ((1, "bwd"), (2, "bwd2"))}

    def compute_lower_order_fields(
        order: int, changed: dict[str, Any], fields: tuple[str, ...], **other_sizes: int
    ) -> dict[str, Any]:
        given = {n: changed.get(n) for n in lower[order].signature_names if n != "wrt"}
        result = get_backend_function(backend, "execute")(lower[order], given, {**sizes, **other_sizes}, fields, {})
        return {n: getattr(result, n) for n in fields}

    cotangents = {f.name: values[f"ggg_{f.name}"] for f in lower[2].fields if values[f"ggg_{f.name}"] is not None}
    is_multilinear_here = spec.is_multilinear(values)
    terms = compose_multilinear_bwd3(
        names, values, cotangents, wanted, compute_lower_order_fields, tangent=is_multilinear_here
    )
    if not is_multilinear_here:
        third_gno.add_bwd2_tangent(terms, values, cotangents, wanted, compute_lower_order_fields)
    results = dict.fromkeys(f.name for f in op.fields)
    for field in op.fields:
        if field.name not in wanted:
            continue
        term = terms[field.name] if field.name in terms else xp.zeros(evaluate_shape(field, sizes), first.dtype)
        if field.name in out:
            out[field.name][...] = term
        results[field.name] = out.get(field.name, term)
    return result_type(op.name)(**results)

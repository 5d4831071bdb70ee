"""The JAX primitive of all operators, its derivatives, and its lowering to an XLA FFI call.

Let ``bwd(g, x) = J^T g`` and ``bwd2(a, g, x) = (J a, H a)``, where ``H`` is the Hessian of ``<g, F>``. The tangent of
the forward operator along ``a`` is the first part of bwd2, which does not depend on ``g``. Each operator is linear in
``g`` and in ``a``, and the table gives its transpose. `BWD_TANGENT` is the tangent of bwd along ``along_`` of ``g`` and
``gg_`` of ``x``; the transpose of `BWD_TANGENT` is one call of bwd2. `SECOND_DERIVATIVE` is the second
derivative ``D2F[a, b]`` of the forward operator along two directions. The compiled operators have its transpose only;
the plain form (`trigraph.plain`) computes `SECOND_DERIVATIVE` and all third derivatives.
"""

import ctypes
import importlib.util
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from trigraph.checks import evaluate_shape
from trigraph.fortran.shims import SHIM_SETS
from trigraph.fortran.threads import synchronise_library_settings
from trigraph.jax.plain import PLAIN
from trigraph.table import DEFINITIONS, OPERATORS, ORDERS, Definition, Operator, evaluate_expression

# Orders in `CallSpec`: D2F[gg_x, along_x], and bwd(along_g, x) + bwd2(gg_x, g, x).
SECOND_DERIVATIVE, BWD_TANGENT = 3, 4
SPECS = {spec.name: spec for spec in DEFINITIONS}
SHIMS = SHIM_SETS["fast"]
TARGET = "trigraph"


class CallSpec(NamedTuple):
    """Static part of a call: definition, order, sizes, attributes, and names of operands and results."""

    name: str
    order: int
    sizes: tuple[tuple[str, int], ...]
    attributes: tuple[tuple[str, Any], ...]
    names: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()

    @property
    def definition(self) -> Definition:
        """Definition of the operator in the table."""
        return SPECS[self.name]

    @property
    def table_operator(self) -> Operator:
        """Operator of this order. `SECOND_DERIVATIVE` uses bwd2, which has a field for its result."""
        return OPERATORS[f"{self.name}_{ORDERS[min(self.order, 2)]}"]


operator = Primitive("trigraph")
operator.multiple_results = True
lax: Any = jax.lax
core: Any = jax.core
type_of = jax.typeof if hasattr(jax, "typeof") else core.get_aval  # JAX before 0.6 has no typeof
Values = dict[str, Any]


def compute_wanted_fields(form: CallSpec, values: Mapping[str, Any], wanted: Sequence[str]) -> Values:
    """Return the wanted fields of a call by name. Cotangents and gradients that `values` lacks are zero."""
    if not wanted:
        return {}
    form = form._replace(names=tuple(values), wanted=tuple(wanted))
    return dict(zip(wanted, operator.bind(*_unify_manual_axes(values.values()), form=form), strict=True))


def _get_manual_axes(aval: Any) -> frozenset[Any]:
    """Return the axes of `jax.shard_map` along which an array varies, called `vma` in JAX 0.6 to 0.9."""
    manual = getattr(aval, "manual_axis_type", None)
    axes: frozenset[Any] = getattr(aval, "vma", frozenset()) if manual is None else manual.varying
    return axes


def _unify_manual_axes(operands: Collection[Any]) -> list[Any]:
    """Cast operands so that they vary along the same axes; the transpose of a cast is a sum of cotangents."""
    axes_of_each = [_get_manual_axes(type_of(x)) for x in operands]
    axes = frozenset[Any]().union(*axes_of_each)
    if not axes:
        return list(operands)
    cast = partial(lax.pcast, to="varying") if hasattr(lax, "pcast") else lax.pvary  # pcast came with JAX 0.8
    return [
        cast(x, tuple(sorted(axes - a, key=str))) if a != axes else x
        for x, a in zip(operands, axes_of_each, strict=True)
    ]


def _list_result_shapes(form: CallSpec, dtypes: Mapping[str, Any]) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the wanted fields, given the dtypes of the operands."""
    fields, sizes = {f.name: f for f in form.table_operator.fields}, dict(form.sizes)
    index, real = dtypes[form.names[0]], dtypes[form.definition.inputs[0].name]
    return [
        jax.ShapeDtypeStruct(evaluate_shape(fields[n], sizes), index if fields[n].index else real) for n in form.wanted
    ]


# --- Compilation


def _compute_operator_results(*operands: Any, form: CallSpec) -> Sequence[Any]:
    """Compute a call with the FFI handler or the plain form."""
    values, sizes, op = dict(zip(form.names, operands, strict=True)), dict(form.sizes), form.table_operator
    results = _list_result_shapes(form, {n: v.dtype for n, v in values.items()})
    fields = {f.name: f for f in op.fields}
    written = [math.prod(r.shape) for r in results]
    numbers = [sizes[s] for s in form.definition.symbols]
    if not (all(numbers) and all(written)):  # all sums are empty
        return [
            jnp.full(r.shape, -1 if fields[n].index else 0, r.dtype) for n, r in zip(form.wanted, results, strict=True)
        ]
    if form.order == BWD_TANGENT:
        rest, own = _split_by_prefix(form, values)
        by_first = _compute_fields_of_order(form, rest, 1, form.wanted, grad=own["along"])
        by_field = _sum_by_name(
            by_first, _compute_fields_of_order(form, rest, 2, form.wanted, gg=own["gg"], grad=own["grad"])
        )
        return [by_field[n] for n in form.wanted]
    if form.order == SECOND_DERIVATIVE:
        by_field = _compute_second_derivative(form, values)
        return [by_field[n.removeprefix("grad_")] for n in form.wanted]
    first = values[form.definition.inputs[0].name]
    absent = {n for n in form.definition.optional_names if not _has_optional_input(form, n)}
    for a in op.arguments:
        if a.name not in values and not a.given_back and a.name.removeprefix("gg_") not in absent:
            values[a.name] = jnp.zeros(evaluate_shape(a, sizes), first.dtype)
    names = (*SHIMS.list_graph_arrays(op), *(a.name for a in SHIMS.select_arguments(op)))
    integers = [
        *numbers,
        *(int(n in values or _has_optional_input(form, n)) for n in SHIMS.list_optional_arguments(op)),
        *(sizes[n] for n in op.choice_attribute_names),
    ]
    type_suffix = f"_f{8 * first.dtype.itemsize}" + (
        f"_i{8 * values[form.names[0]].dtype.itemsize}" if op.graph_kind else ""
    )
    wanted = [int(f.name in form.wanted) for f in op.fields]
    attributes = dict(form.attributes)
    order = [f.name for f in op.fields if f.name in form.wanted]
    ffi_results = jax.ffi.ffi_call(TARGET, [results[form.wanted.index(n)] for n in order])(
        *(values[n] for n in names if n in values),
        function=op.name + type_suffix,
        integers=np.array(integers, np.int32),
        numbers=np.array([attributes[n] for n in op.real_attribute_names], np.float64),
        given=np.array([n in values for n in names], np.int32),
        flags=np.array(wanted if op.accepts_wrt else [], np.int32),
        wanted=np.array(wanted, np.int32),
    )
    return [ffi_results[order.index(n)] for n in form.wanted]


def _has_optional_input(form: CallSpec, name: str) -> bool:
    """Return whether an optional input or graph object was given."""
    return bool(dict(form.sizes).get(f"has_{name}"))


def _refuse_non_cpu_device(context: Any, *operands: Any, form: CallSpec) -> Any:
    raise NotImplementedError(
        f"{form.table_operator.name}: called by a program for a device other than a CPU; expected jax.default_device "
        "or jax.device_put with a CPU device: trigraph.jax does not support GPUs"
    )


def _infer_result_avals(*operands: Any, form: CallSpec) -> list[Any]:
    results = _list_result_shapes(form, {n: a.dtype for n, a in zip(form.names, operands, strict=True)})
    first = operands[0]
    if not _get_manual_axes(first):
        return [jax.core.ShapedArray(r.shape, r.dtype) for r in results]
    sharding = NamedSharding(first.sharding.mesh, PartitionSpec())
    return [first.update(shape=r.shape, dtype=r.dtype, weak_type=False, sharding=sharding) for r in results]


# --- Derivatives


def _split_by_prefix(form: CallSpec, values: Mapping[str, Any]) -> tuple[Values, dict[str, Values]]:
    """Return the operands without a prefix and, for each prefix, its operands under their names without the prefix."""
    prefixes: dict[str, Values] = {"grad": {}, "gg": {}, "along": {}}
    rest = {}
    for name, value in values.items():
        prefix, _, base = name.partition("_")
        if prefix in prefixes:
            prefixes[prefix][base] = value
        else:
            rest[name] = value
    return rest, prefixes


def _compute_fields_of_order(
    form: CallSpec, rest: Values, order: int, wanted: Sequence[str], **groups: Values
) -> Values:
    """Return the wanted fields of an order for the operands in `rest`, and those in `groups` under their prefixes."""
    prefixed = {f"{prefix}_{n}": value for prefix, group in groups.items() for n, value in group.items()}
    return compute_wanted_fields(form._replace(order=order), rest | prefixed, wanted)


def _sum_by_name(*parts: Values) -> Values:
    total: Values = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, form: CallSpec) -> tuple[Any, Any]:
    results = operator.bind(*primals, form=form)
    values = dict(zip(form.names, primals, strict=True))
    named_tangents = {n: t for n, t in zip(form.names, tangents, strict=True) if type(t) is not ad.Zero}
    rest, own = _split_by_prefix(form, values)
    along, moved = _split_by_prefix(form, named_tangents)
    # Tangents of fwd's results are ignored, because bwd2 treats these results as functions of the inputs.
    along = {a.name: along[a.name] for a in form.definition.inputs if a.name in along}
    compute, wanted = partial(_compute_fields_of_order, form, rest), form.wanted
    inputs = [n for n in wanted if not n.startswith("grad_")]
    grads = [n for n in wanted if n.startswith("grad_")]
    parts: list[Values] = []
    if form.order == 0:
        if along:
            given_back = {n: r for n, r in zip(wanted, results, strict=True) if _is_reused_by_bwd(form, n)}
            names = [f"grad_{a.name}" for a in form.definition.outputs]
            fields = _compute_fields_of_order(form, rest | given_back, 2, names, gg=along)
            parts.append({n.removeprefix("grad_"): t for n, t in fields.items()})
    elif form.order == 1:
        if along and moved["grad"]:
            parts.append(compute(BWD_TANGENT, wanted, along=moved["grad"], gg=along, grad=own["grad"]))
        elif along:
            parts.append(compute(2, wanted, gg=along, grad=own["grad"]))
        elif moved["grad"]:
            parts.append(compute(1, wanted, grad=moved["grad"]))
    elif form.order == BWD_TANGENT:
        if moved["gg"] or moved["along"]:
            parts.append(compute(BWD_TANGENT, wanted, along=moved["along"], gg=moved["gg"], grad=own["grad"]))
        if moved["grad"]:
            parts.append(compute(2, wanted, gg=own["gg"], grad=moved["grad"]))
        if along:
            parts.append(compute(2, wanted, gg=along, grad=own["along"]))
            parts.append(_compute_plain_tangents(form._replace(order=2), values, along, wanted))
    elif form.order == 2:
        if moved["gg"]:
            parts.append(compute(2, wanted, gg=moved["gg"], grad=own["grad"]))
        if moved["grad"]:
            parts.append(compute(2, inputs, gg=own["gg"], grad=moved["grad"]))
        if along:
            parts.append(compute(SECOND_DERIVATIVE, grads, gg=own["gg"], along=along))
            parts.append(_compute_plain_tangents(form, values, along, inputs))
    else:
        for direction in ("gg", "along"):
            if moved[direction]:
                pair = {"gg": own["gg"], "along": own["along"]} | {direction: moved[direction]}
                parts.append(compute(SECOND_DERIVATIVE, wanted, **pair))
        if along:
            parts.append(_compute_plain_tangents(form, values, along, wanted))
    fields = _sum_by_name(*parts)
    zeros = (type_of(r).to_tangent_aval() for r in results)
    return results, [fields.get(n, ad.Zero(z)) for n, z in zip(form.wanted, zeros, strict=True)]


def _is_reused_by_bwd(form: CallSpec, name: str) -> bool:
    """Return whether bwd takes a result of fwd as an argument."""
    when = dict(form.definition.given_back_when).get(name)
    return name in form.definition.given_back and (when is None or bool(evaluate_expression(when, dict(form.sizes))))


def _transpose(cotangents: Sequence[Any], *operands: Any, form: CallSpec) -> list[Any]:
    values = {n: v for n, v in zip(form.names, operands, strict=True) if not ad.is_undefined_primal(v)}
    unknown = [n for n, v in zip(form.names, operands, strict=True) if ad.is_undefined_primal(v)]
    cotangents_by_field = {n: c for n, c in zip(form.wanted, cotangents, strict=True) if type(c) is not ad.Zero}
    rest, own = _split_by_prefix(form, values)
    inputs, of_groups = _split_by_prefix(form, cotangents_by_field)
    prefix = unknown[0].partition("_")[0]
    targets = [n.partition("_")[2] for n in unknown]
    compute = partial(_compute_fields_of_order, form, rest)
    parts: list[Values] = []
    if form.order == 1:  # transpose with respect to the output gradients
        if inputs:
            parts.append(compute(2, unknown, gg=inputs))
    elif form.order == BWD_TANGENT:
        if inputs:
            unknown_to = {n: n.removeprefix("gg_").replace("along_", "grad_", 1) for n in unknown}
            fields = compute(2, list(unknown_to.values()), gg=inputs, grad=own["grad"])
            parts.append({n: fields[to] for n, to in unknown_to.items() if to in fields})
    elif prefix == "grad":  # transpose of bwd2's input fields
        if inputs:
            parts.append(compute(SECOND_DERIVATIVE, unknown, gg=own["gg"], along=inputs))
    elif form.order == 2:
        if of_groups["grad"]:
            parts.append(compute(1, targets, grad=of_groups["grad"]))
        if inputs:
            parts.append(compute(2, targets, gg=inputs, grad=own["grad"]))
    elif of_groups["grad"]:  # SECOND is symmetric in its directions
        other = own["gg"] if prefix == "along" else own["along"]
        parts.append(compute(2, targets, gg=other, grad=of_groups["grad"]))
    fields = _sum_by_name(*parts)
    wanted = unknown if prefix == "grad" or form.order == BWD_TANGENT else targets
    named = {n: fields[w] for n, w in zip(unknown, wanted, strict=True) if w in fields}
    return [
        (named[n] if n in named else ad.Zero(v.aval)) if ad.is_undefined_primal(v) else None
        for n, v in zip(form.names, operands, strict=True)
    ]


def _make_plain_derivative(form: CallSpec, values: Mapping[str, Any]) -> tuple[Any, Values]:
    """Return the derivative of the plain form along the gg operands as a function of the inputs, and these inputs."""
    rest, operand_groups = _split_by_prefix(form, values)
    inputs = {a.name: rest[a.name] for a in form.definition.inputs if a.name in rest}
    gg = {n: operand_groups["gg"].get(n, jnp.zeros_like(x)) for n, x in inputs.items()}

    def compute_plain_outputs(x: Values) -> Any:
        return PLAIN[form.name](rest | x, dict(form.sizes + form.attributes))

    return lambda x: jax.jvp(compute_plain_outputs, (x,), (gg,))[1], inputs


def _compute_second_derivative(form: CallSpec, values: Mapping[str, Any]) -> Values:
    """Compute D2F[gg, along] of every output with the plain form."""
    derivative, inputs = _make_plain_derivative(form, values)
    along = _split_by_prefix(form, values)[1]["along"]
    directions = {n: along.get(n, jnp.zeros_like(x)) for n, x in inputs.items()}
    fields: Values = jax.jvp(derivative, (inputs,), (directions,))[1]
    return fields


def _compute_plain_tangents(form: CallSpec, values: Values, along: Values, wanted: Sequence[str]) -> Values:
    """Compute tangents of `SECOND_DERIVATIVE`, or of bwd2's derivatives in inputs, with the plain form."""
    if not wanted:
        return {}
    inputs = {a.name: values[a.name] for a in form.definition.inputs if a.name in values}
    directions = {n: along.get(n, jnp.zeros_like(x)) for n, x in inputs.items()}
    grads = _split_by_prefix(form, values)[1]["grad"]

    def compute_plain_fields(x: Values) -> Values:
        if form.order == SECOND_DERIVATIVE:
            return {f"grad_{n}": y for n, y in _compute_second_derivative(form, values | x).items()}
        derivative, _ = _make_plain_derivative(form, values | x)
        outputs, pull = jax.vjp(derivative, x)
        return pull({n: grads.get(n, jnp.zeros_like(y)) for n, y in outputs.items()})[0]

    tangents = jax.jvp(compute_plain_fields, (inputs,), (directions,))[1]
    return {n: tangents[n] for n in wanted}


def _map_over_batch(operands: Sequence[Any], axes: Sequence[int | None], *, form: CallSpec) -> tuple[Any, Any]:
    """Call the operator for the entries of the batch one after another."""
    batched = [jnp.moveaxis(x, a, 0) for x, a in zip(operands, axes, strict=True) if a is not None]

    def bind_batch_entry(entries: Sequence[Any]) -> Any:
        rest = iter(entries)
        return operator.bind(*(x if a is None else next(rest) for x, a in zip(operands, axes, strict=True)), form=form)

    return jax.lax.map(bind_batch_entry, batched), [0] * len(form.wanted)


def _register_ffi_handler() -> None:
    """Load and register the handler, which calls the C interface of the fast path."""
    spec = importlib.util.find_spec("trigraph.fortran._xla")
    if spec is None or spec.origin is None:
        raise ImportError(
            "trigraph.jax needs trigraph.fortran._xla, which this installation lacks; install trigraph again"
        )
    synchronise_library_settings()
    library = ctypes.CDLL(spec.origin)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.trigraph_xla_call), platform="cpu")


_register_ffi_handler()
_jitted_bind = jax.jit(lambda *operands, form: operator.bind(*operands, form=form), static_argnames="form")
operator.def_impl(lambda *operands, form: _jitted_bind(*operands, form=form))
operator.def_abstract_eval(_infer_result_avals)
ad.primitive_jvps[operator] = _jvp
ad.primitive_transposes[operator] = _transpose
batching.primitive_batchers[operator] = _map_over_batch
mlir.register_lowering(operator, _refuse_non_cpu_device)
mlir.register_lowering(operator, mlir.lower_fun(_compute_operator_results, multiple_results=True), platform="cpu")

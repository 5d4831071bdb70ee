"""A user's forward function in torch or JAX as a subject: automatic differentiation yields all orders of an operator.

The function is called with the operator's inputs as tensors and with its graph objects and attributes, all by keyword.
It returns the results of the operator's fwd as a tensor, a tuple in field order, or a mapping from field to tensor;
auxiliary outputs may be omitted. Differentiation yields bwd and bwd2 and, for trigraph's own functions, bwd3, with and
without recording the last derivative for a further one.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from slopecheck.frameworks import DIFFERENTIATING
from slopecheck.loading import import_function
from slopecheck.outcome import LEFT_OUT, NotOffered, describe_exception
from slopecheck.terminal import escape_unprintable
from trigraph.graphs import to_device
from trigraph.table import DEFINITIONS, OPERATORS, Operator
from trigraph.verification.implementation import check_accepts_keywords, parse_user_result
from trigraph.verification.subjects import Subject


def _make_device_array(framework: str, name: str | None) -> Any:
    """Return an array on the named device; raise ValueError if there is no such device."""
    try:
        if framework == "torch":
            import torch

            return torch.zeros(1, device=name or "cpu")
        import jax

        platform, _, number = (name or "cpu").partition(":")
        return jax.device_put(0.0, jax.devices(platform)[int(number or 0)])
    except (RuntimeError, AssertionError, IndexError, ValueError) as error:
        raise ValueError(f"verify: device {name!r} cannot be used: {error}") from error


def _compute_fields_by_autograd(
    function: Callable[..., Any],
    framework: str,
    like: Any,
    op: Operator,
    values: Mapping[str, Any],
    wrt: Sequence[str] | None,
    recorded: bool = False,
) -> dict[str, Any]:
    """Return the fields of an operator of any order, with None for fields that were not requested.

    With `recorded`, the last derivative can be differentiated again.
    """
    spec, fwd = op.definition, OPERATORS[f"{op.definition.name}_fwd"]
    inputs = [a.name for a in spec.inputs if values[a.name] is not None]
    left_out = {*inputs, *spec.request_names}
    constants = {n: v for n, v in values.items() if n in fwd.parameter_names and n not in left_out}
    auxiliary: dict[str, Any] = {}

    def compute_outputs(*tensors: Any) -> tuple[Any, ...]:
        returned = function(**dict(zip(inputs, tensors, strict=True)), **constants)
        fields = parse_user_result(fwd, returned, tools.is_array)
        auxiliary.update({a.name: fields.get(a.name) for a in spec.auxiliary})
        return tuple(fields[a.name] for a in spec.outputs)

    tools = DIFFERENTIATING[framework](compute_outputs, recorded)

    def make_tensors(names: Sequence[str], shapes: Sequence[Any]) -> list[Any]:
        """Return arguments as tensors, with zeros for absent arguments."""
        return [
            tools.from_host(np.zeros(s.shape, s.dtype) if values.get(n) is None else values[n], like)
            for n, s in zip(names, shapes, strict=True)
        ]

    leaves, wanted = make_tensors(inputs, [values[n] for n in inputs]), range(len(inputs))
    try:
        outputs = tools.compute_outputs(leaves)
        fields: dict[str, Any] = {a.name: y for a, y in zip(spec.outputs, outputs, strict=True)} | auxiliary
        if op.order:
            of_outputs, names = [f"grad_{a.name}" for a in spec.outputs], list(inputs)
            factors = [make_tensors(of_outputs, [tools.to_host(y) for y in outputs])]
            if op.order >= 2:
                factors.append(make_tensors([f"gg_{n}" for n in inputs], [values[n] for n in inputs]))
                names += of_outputs
            if op.order == 3:
                shapes = [tools.to_host(t) for t in (*leaves, *factors[0])]
                gggs = make_tensors([f"ggg_{n}" for n in names], shapes)
                factors += [gggs[: len(inputs)], gggs[len(inputs) :]]
                names += [f"gg_{n}" for n in inputs]
            groups = tools.compute_derivatives(op.order, leaves, wanted, *factors)
            fields = dict(zip(names, chain(*groups), strict=True))
            leaves, inputs = [*leaves, *chain(*factors[:2])][: len(names)], names
            # The derivative with respect to an input that the function does not use is zero.
            for name, tensor in zip(inputs, leaves, strict=True):
                if fields[name] is None:
                    fields[name] = tools.from_host(np.zeros_like(tools.to_host(tensor)), like)
    except NotImplementedError as error:
        raise NotOffered(describe_exception(error)) from error
    asked = {f.name for f in op.fields if wrt is None or f.name in wrt}
    left_out = {a.name for a in spec.auxiliary if op.order == 0 and auxiliary.get(a.name) is None}
    LEFT_OUT.update(left_out)
    returned = {f.name: fields.get(f.name) if f.name in asked else None for f in op.fields if f.name not in left_out}
    return {n: None if v is None else tools.to_host(v) for n, v in returned.items()}


def _move_graphs_to_device(op: Operator, values: Mapping[str, Any], like: Any) -> dict[str, Any]:
    """Return the graph arguments with their arrays moved to the device of the tensor `like`."""
    from trigraph.torch.arrays import use_torch_stream_and_allocator

    with use_torch_stream_and_allocator(like):
        return {a.name: to_device(values[a.name]) for a in (op.graph_kind.arguments if op.graph_kind else ())}


def make_framework_subject(framework: str, device: str | None = None, recorded: bool = False) -> Subject:
    """Return a subject that computes all operators by differentiating functions of `trigraph.torch` or `trigraph.jax`.

    With `recorded`, the last derivative can be differentiated again; the functions use different code for it.
    Raises ValueError if the functions cannot be imported.
    """
    name = f"trigraph.{framework}"
    try:
        functions = importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"verify: framework {framework!r} cannot be used: {error}") from None
    DIFFERENTIATING[framework](print)  # raises an error that names the missing package
    like = _make_device_array(framework, device)

    def compute_fields(op: Operator, values: Mapping[str, Any], wrt: Sequence[str] | None) -> dict[str, Any]:
        if op.restriction is not None:
            raise NotOffered(f"{name} has only the whole bwd2")
        if framework == "torch" and like.is_cuda:
            values = {**values, **_move_graphs_to_device(op, values, like)}
        return _compute_fields_by_autograd(
            getattr(functions, op.definition.name), framework, like, op, values, wrt, recorded
        )

    name += ", recorded" * recorded
    return Subject(name, True, compute_fields, selective=False, supports_third=lambda op, values: True)


def make_subject_from_forward(
    name: str,
    definition: str | None,
    framework: str,
    device: str | None = None,
    function: Callable[..., Any] | None = None,
) -> tuple[Subject, str]:
    """Return a subject that computes fwd, bwd and bwd2 from a user's forward function, and the operator's name.

    Unless the function is given, it is imported by `name`, such as ``"mymodule:function"``. `definition` is the name of
    the operator without its order, such as ``"mha_gat_n2n"`` (default: the function's name). `device` is a device of
    the framework (default: ``"cpu"``). Raises ValueError if the function cannot be loaded or does not accept the
    arguments, or if there is no such operator, framework or device.
    """
    if framework not in DIFFERENTIATING:
        raise ValueError(f"verify: framework is {framework!r}; expected one of {', '.join(DIFFERENTIATING)}")
    own = import_function(name, "verify: implementation") if function is None else function
    target, names = definition or getattr(own, "__name__", ""), [d.name for d in DEFINITIONS]
    if target not in names:
        raise ValueError(f"verify: {name!r} implements {target!r}; expected one of {', '.join(names)}")
    DIFFERENTIATING[framework](own)  # raises an error that names the missing package
    fwd = OPERATORS[f"{target}_fwd"]
    absent = [a.name for a in fwd.definition.inputs if a.optional]  # inputs that are not passed if None
    check_accepts_keywords(
        name, own, fwd, [n for n in fwd.parameter_names if n not in fwd.definition.request_names], absent
    )
    call = partial(_compute_fields_by_autograd, own, framework, _make_device_array(framework, device))
    return Subject(escape_unprintable(name), False, call, selective=False), target

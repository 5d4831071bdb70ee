"""Functions that write into the caller's arrays, made of the operator table and of the original's parameters."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trigraph.arrays import array_kind, as_array, is_tensor
from trigraph.backends import FUNCTIONS
from trigraph.table import OPERATORS
from trigraph.table.public import publish, summary


@contextlib.contextmanager
def _on_stream(pointer: int, array: Any) -> Iterator[None]:
    """Run CuPy on the CUDA stream of this address, or on the current one if it is 0; the CPU has no streams."""
    if not pointer or array_kind(array) != "cupy":
        yield
        return
    import cupy

    with array.device, cupy.cuda.ExternalStream(pointer):
        yield


def in_place(
    module: str,
    operator: str,
    parameters: str,
    settings: Callable[[str, Mapping[str, Any]], dict[str, Any]],
    defaults: Mapping[str, Any],
) -> Callable[..., None]:
    """Return a function of `module` with the name of an operator, which writes into the caller's arrays.

    `parameters` are the original's, separated by spaces: ``name>field`` receives a field of trigraph's function, and
    ``name<argument`` is one of its array arguments. `settings` returns the graph and the attributes for the function's
    name and its arguments. Parameters in `defaults` may be omitted. Fields whose arrays are None are not computed.
    """
    op = OPERATORS[operator]
    outputs = {field: name for name, field in re.findall(r"(\w+)>(\w+)", parameters)}
    inputs = {argument: name for name, argument in re.findall(r"(\w+)<(\w+)", parameters)}
    original = {f"out['{field}']": name for field, name in outputs.items()} | inputs
    pattern = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in original)
    names = [re.split("[<>]", word)[0] for word in parameters.split()]
    empty, by_either = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(n, by_either, default=defaults.get(n, empty)) for n in names])

    def function(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        keywords = settings(operator, given) | {argument: as_array(given[name]) for argument, name in inputs.items()}
        results = {field: given[name] for field, name in outputs.items() if given[name] is not None}
        for field, value in results.items():
            if is_tensor(value) and value.is_neg():  # it would be read as a copy, and the copy be written
                name = outputs[field]
                raise ValueError(f"{operator}: {name} has torch's negative bit; expected a tensor of the values it has")
        if not results:
            return
        out = {field: as_array(value) for field, value in results.items()}
        keywords |= {"wrt": list(out)} if op.selective else {}
        try:
            with _on_stream(given["stream_id" if "stream_id" in given else "cuda_stream"], next(iter(out.values()))):
                FUNCTIONS[operator](**keywords, out=out)
        except (TypeError, ValueError) as error:  # in the original's names of the arguments
            raise type(error)(re.sub(pattern, lambda match: original[match[0]], str(error))) from None
        for value in results.values():
            if is_tensor(value):
                import torch

                torch.autograd.graph.increment_version(value)  # a backward that has saved it must know

    same = ", ".join(f"`{name}` is `{field}`" for field, name in (outputs | inputs).items())
    doc = f"{summary(op)}\n\nIt writes into its first arguments. Of `trigraph.{operator}`, {same}."
    publish(function, module, operator, signature, doc)
    return function

"""Calls of trigraph's functions that write into the caller's arrays, with errors in the caller's words."""

import contextlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trigraph.backends import FUNCTIONS
from trigraph.graphs.arrays import array_kind, as_array, is_tensor

Names = Mapping[str, str]
"""Names of arguments or fields of a trigraph function, and the original's names of them."""


@contextlib.contextmanager
def _on_stream(pointer: int, array: Any) -> Iterator[None]:
    """Run CuPy on the CUDA stream of this address, or on the current one if it is 0; the CPU has no streams."""
    if not pointer or array_kind(array) != "cupy":
        yield
        return
    import cupy

    with array.device, cupy.cuda.ExternalStream(pointer):
        yield


def _renamed(arguments: Names, outputs: Names, message: str) -> str:
    """Return a message of a trigraph function with the original's names of the arguments."""
    table = {f"out['{field}']": name for field, name in outputs.items()} | dict(arguments)
    words = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in table)
    return re.sub(words, lambda match: table[match[0]], message)


def write(
    function: str, outputs: Names, arguments: Names, parameters: Mapping[str, Any], stream: int, **attributes: Any
) -> None:
    """Compute the fields whose outputs are not None into them; without any there is nothing to do.

    `function` has this name in `trigraph` and in the drop-in. `parameters` are values by the original's names;
    `attributes` have the same names and meanings in both. `stream` is the address of a CUDA stream, for arrays of a
    device; 0: the current one.
    """
    results = {field: parameters[name] for field, name in outputs.items()}
    for field, value in results.items():
        if is_tensor(value) and value.is_neg():  # it would be read as a copy, and the copy be written
            raise ValueError(
                f"{function}: {outputs[field]} has torch's negative bit; expected a tensor whose memory has its values"
            )
    written = {field: as_array(value) for field, value in results.items() if value is not None}
    if not written:
        return
    values = {argument: as_array(parameters[name]) for argument, name in arguments.items()}
    if "wrt" in inspect.signature(FUNCTIONS[function]).parameters:
        attributes["wrt"] = list(written)
    try:
        with _on_stream(stream, next(iter(written.values()))):
            FUNCTIONS[function](**values, **attributes, out=written)
    except (TypeError, ValueError) as error:
        raise type(error)(_renamed(arguments, outputs, str(error))) from None
    for value in results.values():
        if is_tensor(value):
            import torch

            torch.autograd.graph.increment_version(value)  # a backward that has saved it must know

"""The plain form of every operator (`trigraph.plain`) in torch's own operations, and its second derivatives.

Third and higher derivatives come from it; `trigraph.torch` computes the first two with its operators.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from trigraph import plain
from trigraph.table import DEFINITIONS, GRAPH_PARTS, GRAPHS, Definition
from trigraph.torch.graphs import tensors

Values = Mapping[str, Any]
# Index arrays of `Segments`, by argument, as `trigraph.plain` names them.
SEGMENTS = {"triplets": "triplet_edge", "atoms": "atom_of_edge", "idx_in": "input_of_triplet"}


def _scatter(rows: Tensor, index: Tensor, num: int) -> Tensor:
    return rows.new_zeros(num, *rows.shape[1:]).index_add(0, index, rows)


def _extremum(rows: Tensor, index: Tensor, num: int, which: str) -> Tensor:
    zeros, each = rows.new_zeros(num, *rows.shape[1:]), index[:, None].expand_as(rows)
    return zeros.scatter_reduce(0, each, rows, f"a{which}", include_self=False)


LIBRARY = plain.Library(
    xp=torch,
    scatter=_scatter,
    extremum=_extremum,
    constant=torch.Tensor.detach,
    polynomial=lambda terms, x: reduce(lambda y, term: y * x + term, terms.tolist(), torch.zeros_like(x)),
    wide=torch.Tensor.double,
    array=lambda a, like: (a if isinstance(a, Tensor) else torch.from_numpy(a)).to(like),
)


def _arrays_and_sizes(spec: Definition, keywords: Values) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the index arrays of the graphs, and sizes of the graphs and attributes."""
    arrays: dict[str, Tensor] = {}
    kind = GRAPHS[spec.graph] if spec.graph else None
    for argument in kind.arguments if kind else ():
        graph = keywords[argument.name]
        if graph is None:
            continue
        named = dict(zip(GRAPH_PARTS[type(graph).__name__].arrays, tensors(graph, False), strict=False))
        if argument.name in SEGMENTS:
            named = {SEGMENTS[argument.name]: named["index"]}
        arrays |= {n: t.long() for n, t in named.items() if t is not None}
    if "indices" in arrays:
        rows = torch.arange(len(arrays["offsets"]) - 1, device=arrays["offsets"].device)
        degrees = arrays["offsets"].diff()
        arrays["destinations"] = torch.repeat_interleave(rows, degrees, output_size=len(arrays["indices"]))
    return arrays, {**keywords, **(kind.find_sizes(keywords) if kind else {})}


def _plain(spec: Definition) -> Callable[[Values, Values], tuple[Tensor, ...]]:
    first = spec.inputs[0].name

    def function(values: Values, keywords: Values) -> tuple[Tensor, ...]:
        """Return the outputs for arrays by name, and graphs and attributes; in half precision it sums in float32."""
        arrays, sizes = _arrays_and_sizes(spec, keywords)
        for name in (a.name for a in spec.inputs):
            if (t := values[name]) is not None:
                arrays[name] = t.float() if t.dtype.itemsize == 2 else t
        outputs = plain.PLAIN[spec.name](LIBRARY, arrays, sizes)
        return tuple(outputs[a.name].to(values[first].dtype) for a in spec.outputs)

    return function


def second(
    names: Sequence[str], outputs: Sequence[str], values: Values, keywords: Values, forward: Callable[..., Any]
) -> tuple[dict[str, Tensor], Callable[..., tuple[Tensor, ...]]]:
    """Return the arrays that bwd2 depends on, by name, and bwd2 as a function of them, in the same order.

    Its results are the gradients of `outputs`, then of the inputs `names`.
    """
    primals = {
        **{f"gg_{n}": torch.zeros_like(values[n]) if values[f"gg_{n}"] is None else values[f"gg_{n}"] for n in names},
        **{f"grad_{n}": values[f"grad_{n}"] for n in outputs},
        **{n: values[n] for n in names},
    }

    def function(*arrays: Tensor) -> tuple[Tensor, ...]:
        along, x = arrays[: len(names)], arrays[len(names) + len(outputs) :]

        def computed(*inputs: Tensor) -> tuple[Tensor, ...]:
            results: tuple[Tensor, ...] = forward({**values, **dict(zip(names, inputs, strict=True))}, keywords)
            return results

        def bwd(grads: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(torch.func.vjp(computed, *inputs)[1](grads))

        by_grads, by_inputs = torch.func.vjp(bwd, arrays[len(names) : len(names) + len(outputs)], x)[1](along)
        return (*by_grads, *by_inputs)

    return primals, function


PLAIN = {spec.name: _plain(spec) for spec in DEFINITIONS}

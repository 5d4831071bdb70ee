"""Cases for graph objects that somebody else has made; the numbers are drawn as `trigraph verify` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trigraph.checks import choice_number
from trigraph.table import OPERATORS, Definition
from trigraph.verification.cases import Case, draw, plain


def assemble(
    definition: Definition,
    graphs: Mapping[str, Any],
    sizes: Mapping[str, int],
    setting: Mapping[str, Any],
    dtype: str,
    rng: np.random.Generator,
    name: str = "",
    half: str | None = None,
) -> Case:
    """Draw the arrays of a case.

    Parameters
    ----------
    definition : Definition
    graphs : mapping
        Graph objects by argument name; those that are None in `setting` are left out.
    sizes : mapping
        Sizes that no graph object settles.
    setting : mapping
        Choices and numbers that are not the defaults, and inputs and graph objects that are absent (None).
    dtype : {"float32", "float64"}
    rng : Generator
    name : str
    half : str, optional
        See `trigraph.verification.cases.draw`.

    Returns
    -------
    Case
        Without directions, and not kept clear of kinks.
    """
    op, sizes = OPERATORS[f"{definition.name}_fwd"], dict(sizes)
    graphs = {a.name: setting.get(a.name, graphs[a.name]) for a in op.graph.arguments} if op.graph else {}
    if op.graph is not None:
        sizes |= op.graph.find_sizes(graphs)
    attributes = {a.name: setting.get(a.name, sizes[a.name] if a.size else a.default) for a in definition.attributes}
    inputs = {a.name: a for a in definition.inputs if setting.get(a.name, a) is not None}
    absent = dict.fromkeys(a.name for a in definition.inputs if a.name not in inputs)
    sizes |= {f"has_{n}": int({**absent, **inputs, **graphs}[n] is not None) for n in definition.optional}
    sizes |= {a.name: choice_number(a.choices, attributes[a.name]) for a in definition.attributes if a.choices}
    grads = {f"grad_{a.name}": a for a in definition.outputs}
    ggs = {f"gg_{n}": plain(a) for n, a in inputs.items()}
    values, grad, gg = (draw(arrays, sizes, dtype, rng, half=half) for arrays in (inputs, grads, ggs))
    return Case(name, definition, sizes, {**absent, **values, **graphs, **attributes}, grad, gg, {}, 0.0, half=half)

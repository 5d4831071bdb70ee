"""Kinds of generated cases: what is special about each, which checks it undergoes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Kind:
    """What is special about all variants of one name.

    Sizes are typical ones of the table but where `entities` fixes those that may be zero (nodes, edges), `widths`
    chooses among the others, or `sizes` fixes some; definitions without all symbols of `sizes` have no such variant.
    """

    remark: str = ""  # what a reader of its failures should know; "" if nothing is special
    entities: int | None = None
    # "typical"; "least"; "wide": above tiles of 16, 32 and 64, and odd; or "one channel": some are 1, beside others
    # that are not, since an axis of one has any stride.
    widths: str = "typical"
    sizes: Mapping[str, int] = field(default_factory=dict)
    data: str = "any"  # what numbers are drawn, "any" or "integers" (`cases.draw`)
    # Powers of two that inputs are multiplied by; definitions without all of these inputs have no such variant.
    factors: Mapping[str, float] = field(default_factory=dict)
    differenced: bool = False  # keeps the wide margin from kinks, for finite differences and the algebraic properties
    every_setting: bool = False  # is tried with every setting; others take settings in turn
    # Has so many edges, or widths, that the emulated device takes one dtype of each setting, in turn.
    large: bool = False
    # One place has more edges than a chunk: the bits of small blocks, too, are then compared with the judge.
    many: bool = False
    # One thread does its work, or threads share it as in "regular": their number would show nothing.
    one_thread: bool = False
    # Is called repeatedly, with `out`, `wrt` and absent cotangents, in one dtype of each setting, in turn.
    called: bool = False
    batch: bool = False  # is called in a batch with other graphs
    equal_terms: bool = False  # see `cases.Case`


def _length(terms: int) -> Kind:
    return Kind(f"sums of {terms} terms over the edges", entities=terms, widths="least", many=True)


def _heads(width: int) -> Kind:
    """More heads than are taken together (4 and 8), of widths that are whole vectors of a processor or of a thread."""
    remark, sizes = "nine heads, and rows of heads that fill whole vectors", {"num_heads": 9, "dim_head": width}
    return Kind(remark, sizes=sizes, every_setting=True, one_thread=True, called=True)


BEYOND_LANES = "rows wider than the threads of a block take at once"
ORDINARY = Kind(differenced=True, batch=True, called=True)
CASE_KINDS = {
    "regular": replace(ORDINARY, every_setting=True),
    "second sizes": ORDINARY,
    "periodic": replace(ORDINARY, remark="several images of one neighbour, and edges from an atom to its own image"),
    "shared rows": replace(
        ORDINARY, remark="several positions of the graph read one row of the edge arrays, and some rows are unused"
    ),
    "square": Kind("as many sources as destinations"),
    "skewed": Kind(
        "one node, row or segment has more than 256 terms to sum",
        widths="least",
        every_setting=True,
        large=True,
        many=True,
        called=True,
        batch=True,
    ),
    "boundaries": Kind(
        "sums of 256, 257 and 512 terms, and long sums first and last",
        widths="least",
        every_setting=True,
        large=True,
        many=True,
        equal_terms=True,
    ),
    # There are only three nodes, edges and so on: with such widths the judge takes long for each.
    "wide": Kind("widths above 64, and odd", entities=3, widths="wide", large=True),
    "one channel": Kind("an axis of length 1", widths="one channel", one_thread=True, called=True),
    "integers": Kind(
        "small integers: sums are exact in every order", data="integers", every_setting=True, one_thread=True
    ),
    "one edge": Kind("a single edge", entities=1, one_thread=True),
    "no edges": Kind("rows of edge arrays that nothing uses, and every sum is empty", one_thread=True, called=True),
    "no nodes": Kind("arrays of length 0", entities=0, one_thread=True),
    "length 700": _length(700),
    "length 256": _length(256),
    "length 257": _length(257),
    "length 512": _length(512),
    # Other images of i than that of e itself are left out, and each node has so many edges that its sum is linear.
    "images": Kind(
        "two images of every other node, both left out of a triplet sum that is linear in the edges",
        large=True,
        called=True,
    ),
    "unused rows": Kind(
        "rows of edge arrays after those that positions read", every_setting=True, one_thread=True, called=True
    ),
    # What positions of one source have in common is its own mean over them: products of deviations from means vanish,
    # but for products of rounding errors.
    "saturated": Kind(
        "parallel edges of one source have all the attention of a destination, the others' scores being far below",
        sizes={"num_dst_nodes": 4, "num_positions": 41},
        factors={"attention_weights": 64.0, "edge_embedding": 1 / 64},
        every_setting=True,
        one_thread=True,
        called=True,
    ),
    "heads of 8": _heads(8),
    "heads of 16": _heads(16),
    "rows of 132": Kind(BEYOND_LANES, sizes={"dim": 132}),
    "features of 132": Kind(BEYOND_LANES, sizes={"f_in": 132}),
}


def kind_of(name: str) -> Kind:
    """Return the kind of a variant's name; hubs and real inputs are of no special kind."""
    return CASE_KINDS.get(name, Kind())


@dataclass(frozen=True)
class Variant:
    """How the sizes and the graph of a case are chosen."""

    name: str
    pick: int  # chooses among the typical sizes
    index: type[np.signedinteger[Any]]  # dtype of the graph
    setting: Mapping[str, Any] = field(default_factory=dict)  # choices, and inputs that are absent (None)
    degree: int = 0  # of hubs (`graphs.CaseGraphs.hub`), 0 elsewhere
    hub_data: str = ""  # what numbers are drawn for hubs

    @property
    def kind(self) -> Kind:
        """What is special about variants of its name."""
        return kind_of(self.name)

    @property
    def data(self) -> str:
        """What numbers are drawn (`cases.draw`)."""
        return self.hub_data or self.kind.data

    @property
    def label(self) -> str:
        """Its name, and its setting."""
        return ", ".join([self.name, *(f"{name}={value}" for name, value in self.setting.items())])

"""Kinds of generated cases, their special properties, and the checks that use them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class CaseKind:
    """Properties of all variants with the same name.

    Sizes are typical sizes of the table unless `entities` fixes those that may be zero (nodes, edges), `widths` selects
    others, or `sizes` fixes some. Definitions that lack a symbol in `sizes` have no such variant.
    """

    remark: str = ""  # explanation shown with failures; "" for ordinary cases
    entities: int | None = None
    # "typical"; "least"; "wide" (odd, and larger than tiles of 16, 32 and 64); or "one channel" (some widths are
    # 1, because the stride of an axis of length 1 is arbitrary).
    widths: str = "typical"
    sizes: Mapping[str, int] = field(default_factory=dict)
    data: str = "any"  # distribution of numbers, "any" or "integers" (`cases.draw_arrays`)
    # Powers of two by which inputs are multiplied; the variant exists only for definitions with all these inputs.
    factors: Mapping[str, float] = field(default_factory=dict)
    differenced: bool = False  # used for finite differences and identities, at a larger distance from kinks
    every_setting: bool = False  # used with every setting; other kinds alternate between settings
    # Whether the emulated device checks each setting in only one dtype, because cases are large.
    large: bool = False
    # Whether a sum exceeds a chunk, so that results with small blocks are also compared with the judge.
    many: bool = False
    # Whether to skip thread checks, because one thread does all work or work is divided as in "regular".
    one_thread: bool = False
    # Whether to check repeated calls, `out`, `wrt` and absent cotangents; each setting is checked in one dtype.
    called: bool = False
    batch: bool = False  # whether to check the case in a batch with other graphs
    third: bool = False  # used for third derivatives, in one dtype per setting (in both dtypes if `scaled`)
    equal_terms: bool = False  # as in `case.Case`
    scaled: bool = False  # multiply cotangents by very different powers of two, up to the limits of the dtype


def _make_long_sums_kind(terms: int) -> CaseKind:
    return CaseKind(f"sums of {terms} terms over the edges", entities=terms, widths="least", many=True)


def _make_many_heads_kind(width: int) -> CaseKind:
    """Return a kind with more heads than are processed together (4 or 8), and widths that fill whole SIMD vectors."""
    remark, sizes = "nine heads, whose rows fill whole SIMD vectors", {"num_heads": 9, "dim_head": width}
    return CaseKind(remark, sizes=sizes, every_setting=True, one_thread=True, called=True)


BEYOND_LANES = "rows are wider than a block's threads process at once"
ORDINARY = CaseKind(differenced=True, batch=True, called=True, third=True)
CASE_KINDS = {
    "regular": replace(ORDINARY, every_setting=True),
    "second sizes": ORDINARY,
    "periodic": replace(
        ORDINARY, remark="several periodic images of one neighbour, and edges from an atom to its own image"
    ),
    "shared rows": replace(
        ORDINARY, remark="several positions of the graph read the same row of the edge arrays, and some rows are unused"
    ),
    "square": CaseKind("equal numbers of source and destination nodes"),
    "skewed": CaseKind(
        "one node, row or segment sums more than 256 terms",
        widths="least",
        every_setting=True,
        large=True,
        many=True,
        called=True,
        batch=True,
        third=True,
    ),
    "boundaries": CaseKind(
        "sums of 256, 257 and 512 terms; the first and the last sum are long",
        widths="least",
        every_setting=True,
        large=True,
        many=True,
        equal_terms=True,
    ),
    # There are only three nodes, edges and so on, because the judge is slow for large widths.
    "wide": CaseKind("widths are odd and larger than 64", entities=3, widths="wide", large=True),
    "one channel": CaseKind("an axis of length 1", widths="one channel", one_thread=True, called=True),
    "scaled cotangents": CaseKind(
        "cotangents differ by many powers of two", widths="least", one_thread=True, third=True, scaled=True
    ),
    "integers": CaseKind(
        "inputs are small integers, so sums are exact in any order",
        data="integers",
        every_setting=True,
        one_thread=True,
        third=True,
    ),
    "one edge": CaseKind("a single edge", entities=1, one_thread=True, third=True),
    "no edges": CaseKind(
        "every sum is empty, and no row of the edge arrays is used", one_thread=True, called=True, third=True
    ),
    "no nodes": CaseKind("arrays of length 0", entities=0, one_thread=True, third=True),
    "length 700": _make_long_sums_kind(700),
    "length 256": _make_long_sums_kind(256),
    "length 257": replace(_make_long_sums_kind(257), third=True),
    "length 512": _make_long_sums_kind(512),
    # Each edge into i excludes images of i from its sum; nodes have enough edges for the linear-time algorithm.
    "images": CaseKind(
        "two images of every other node, both left out of a sum over triplets that takes time linear in the edges",
        large=True,
        called=True,
        third=True,
    ),
    "unused rows": CaseKind(
        "edge arrays end with unused rows",
        every_setting=True,
        one_thread=True,
        called=True,
        third=True,
    ),
    # A value that is the same at all positions of the source equals its attention-weighted mean. Products of deviations
    # from means thus vanish, except for products of rounding errors.
    "saturated": CaseKind(
        "parallel edges from one source receive all the attention of a destination, because other scores are far lower",
        sizes={"num_dst_nodes": 4, "num_positions": 41},
        factors={"attention_weights": 64.0, "edge_embedding": 1 / 64},
        every_setting=True,
        one_thread=True,
        called=True,
        third=True,
    ),
    "heads of 8": _make_many_heads_kind(8),
    "heads of 16": _make_many_heads_kind(16),
    "rows of 132": CaseKind(BEYOND_LANES, sizes={"dim": 132}),
    "features of 132": CaseKind(BEYOND_LANES, sizes={"f_in": 132}),
    "slabs": CaseKind(
        "whole and partial blocks of hidden units, features and nodes, read 16 bytes at a time",
        sizes={"num_dst_nodes": 18, "num_positions": 24, "hidden": 40, "f_in": 36, "f_out": 32},
    ),
}


def find_case_kind(name: str) -> CaseKind:
    """Return the kind of the variants with a name; hubs and real inputs have the default kind."""
    return CASE_KINDS.get(name, CaseKind())


@dataclass(frozen=True)
class CaseVariant:
    """Selection of the sizes, the graph and the setting of a case."""

    name: str
    pick: int  # index into the typical sizes
    index: type[np.signedinteger[Any]]  # index dtype of the graph
    setting: Mapping[str, Any] = field(default_factory=dict)  # choices, and None for absent inputs
    degree: int = 0  # degree of hubs (`graphs.CaseGraphBuilder.build_hub_graphs`); 0 without hubs
    hub_data: str = ""  # distribution of numbers for hubs

    @property
    def kind(self) -> CaseKind:
        """Properties of the variants with this name."""
        return find_case_kind(self.name)

    @property
    def distribution(self) -> str:
        """Distribution of numbers (`cases.draw_arrays`)."""
        return self.hub_data or self.kind.data

    @property
    def label(self) -> str:
        """Name of the variant, and its setting."""
        return ", ".join([self.name, *(f"{name}={value}" for name, value in self.setting.items())])

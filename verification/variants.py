"""Variants: settings and sizes of the cases on which a definition is tested."""

from dataclasses import replace
from typing import Any

import numpy as np

from trigraph.table import Definition
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.kinds import CaseVariant
from trigraph.verification.settings import Where, admits, list_allowed_settings

# Widths for hubs (very many edges at one node); they are small because the judge is slow for each edge.
WIDTHS = {"num_radial": 1, "n_emb": 1, "n_mid": 1, "num_heads": 1}
WIDTH = 2  # size of all other widths

# Settings for hubs, one for each variant of the summation code; other settings change only the terms.
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "mha_gat_n2n": ({"activation": "ELU"},),
    "agg_weighted_n2n": ({"op": "sum"}, {"op": "mean", "mean_by": "weight"}),
    "interaction_bilinear": ({}, {"atoms": None}),
}


def list_variants(definition: Definition, where: Where | None = None) -> tuple[CaseVariant, ...]:
    """Return the variants of a definition: kinds with `every_setting` use all settings, others alternate.

    `where` restricts the settings.
    """
    settings = list_allowed_settings(definition, where or {})
    names = {*definition.symbols, *(a.name for a in definition.inputs)}
    base = tuple(v for v in GRAPHS[definition.graph].variants if {*v.kind.sizes, *v.kind.factors} <= names)
    if not settings:
        return base
    # Omit variants that fix a choice, such as "images", if the restriction requires a different value.
    base = tuple(v for v in base if admits({n: w for n, w in (where or {}).items() if n in v.setting}, v.setting))
    turns = [replace(v, setting={**settings[i % len(settings)], **v.setting}) for i, v in enumerate(base)]
    more = [replace(v, setting=s) for v in base if v.kind.every_setting for s in settings]
    return (*turns, *(v for v in more if v not in turns))


def list_hub_variants(definition: Definition, degree: int, data: str) -> tuple[CaseVariant, ...]:
    """Return variants with sums of `degree` terms that are "positive" or "constant" (positive and equal)."""
    index = np.int32 if data == "positive" else np.int64
    return tuple(
        CaseVariant(f"hub of {degree}, {data}", 0, index, setting, degree, data)
        for setting in SETTINGS.get(definition.name, ({},))
    )


# Sizes that are 1 in the variant "one channel".
CHANNELS = ("d", "dim", "f_in", "n_emb", "num_heads", "num_spherical")


def choose_sizes(definition: Definition, variant: CaseVariant) -> dict[str, int]:
    """Return the size for every symbol that no graph (`graphs.CaseGraphBuilder`) determines."""
    if variant.degree:
        return {name: WIDTHS.get(name, WIDTH) for name in definition.symbols}
    sizes, kind = {}, variant.kind
    for name in definition.symbols:
        symbol = definition.get_limited_symbol(name)
        size = symbol.typical[variant.pick % len(symbol.typical)]
        if not symbol.minimum and kind.entities is not None:
            size = kind.entities
        elif variant.name == "no edges" and name == GRAPHS[definition.graph].members:
            size = 0
        elif symbol.minimum and kind.widths == "wide":
            size = 69 if name == "emb_in" else 6 * symbol.typical[0] + 9  # a warp of gemnet.cu has 64 columns
        elif symbol.minimum and kind.widths == "least":
            size = min(symbol.typical)
        elif kind.widths == "one channel" and name in CHANNELS:
            size = 1
        sizes[name] = size if symbol.maximum is None else min(size, symbol.maximum)
    return sizes | dict(kind.sizes)

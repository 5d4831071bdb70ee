"""What the drop-in does not cover, and what serves instead."""

import fnmatch
from collections.abc import Callable
from typing import Any

_GATHER = "torch.cat of the gathered rows of nodes and edges"
_EDGES = "trigraph's agg_weighted_n2n on a CSC whose sources are the edges"
# Patterns of names of functions; what a message recommends instead.
NOT_COVERED = {
    "agg_concat_e2n*": _EDGES,
    "agg_concat_n2n_e2n*": _EDGES,
    "agg_concat_n2n_*": "pylibcugraphops.pytorch.operators.agg_concat_n2n",
    "agg_concat_weighted_*": "pylibcugraphops.pytorch.operators.agg_concat_n2n with edge_weight",
    "agg_dmpnn_*": "trigraph's agg_weighted_n2n over the edges into the source, less the row of the reverse edge",
    "agg_hg_basis_*": "pylibcugraphops.pytorch.operators.agg_hg_basis_n2n_post",
    "agg_simple_e2n*": _EDGES,
    "agg_simple_n2n*": "agg_weighted_n2n with edge_weight=None",
    "make_csc_hg*": "pylibcugraphops.pytorch.HeteroCSC",
    "make_bipartite_csc_hg*": "pylibcugraphops.pytorch.HeteroCSC",
    "mha_gat_n2n_efeat_*": "pylibcugraphops.pytorch.operators.mha_gat_n2n with edge_feat",
    "mha_gat_v2_*": "torch_geometric.nn.GATv2Conv",
    "mha_simple_*": "torch_geometric.nn.TransformerConv",
    "radial_basis_bwd_bwd*": "trigraph.radial_basis_bwd2",
    "update_efeat_*": _GATHER,
}


def stand_in(module: str, name: str) -> Callable[..., Any]:
    """Return a function that raises NotImplementedError, for a name of the original that is not covered.

    AttributeError if the original has no such name either.
    """
    instead = next((text for pattern, text in NOT_COVERED.items() if fnmatch.fnmatch(name, pattern)), None)
    if instead is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def raises(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name}: trigraph's {module} does not cover it; use {instead}")

    raises.__name__ = raises.__qualname__ = name
    return raises

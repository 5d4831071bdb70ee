"""Graph classes of ``pylibcugraphops.pytorch``, with the arguments of each in the original's order."""

import torch

from trigraph.compat.pylibcugraphops.graphs import Graph
from trigraph.graphs import as_array, check_range, count

__all__ = ["CSC", "BipartiteCSC", "HeteroCSC", "SampledCSC", "SampledHeteroCSC", "StaticCSC", "StaticHeteroCSC"]


class CSC(Graph):
    """A graph by destination.

    Parameters
    ----------
    offsets : tensor of int32 or int64, shape (num_dst_nodes + 1,)
        Starts at 0, never decreases, ends at the number of indices.
    indices : tensor, same dtype, shape (num_indices,)
        Source of each position.
    num_src_nodes : int
    dst_max_in_degree : int, optional
        A bound of the in-degrees; -1 if it is not known.
    is_bipartite : bool
        Whether features are a pair of tensors. Operators take what they are given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, a value is out of range, or an in-degree is larger than
        `dst_max_in_degree`.
    """

    def __init__(
        self,
        offsets: torch.Tensor,
        indices: torch.Tensor,
        num_src_nodes: int,
        dst_max_in_degree: int | None = None,
        is_bipartite: bool = False,
    ) -> None:
        super().__init__(type(self).__name__, offsets, indices, num_src_nodes, None, dst_max_in_degree)
        self.is_bipartite = is_bipartite


class StaticCSC(Graph):
    """A graph whose sources and destinations are the same nodes.

    Parameters
    ----------
    offsets, indices : tensor
        As of :class:`CSC`.
    map_csc_to_coo : tensor, optional
        Row of the edge features for each position.
    reverse_graph_bwd : bool
        Taken for the original's sake: backward passes are the same in every run without it.
    """

    def __init__(
        self,
        offsets: torch.Tensor,
        indices: torch.Tensor,
        map_csc_to_coo: torch.Tensor | None = None,
        reverse_graph_bwd: bool = True,
    ) -> None:
        super().__init__("StaticCSC", offsets, indices, None, map_csc_to_coo)


class BipartiteCSC(Graph):
    """A graph from `num_src_nodes` sources to other nodes; the other arguments are those of :class:`StaticCSC`."""

    def __init__(
        self,
        offsets: torch.Tensor,
        indices: torch.Tensor,
        num_src_nodes: int,
        map_csc_to_coo: torch.Tensor | None = None,
        reverse_graph_bwd: bool = True,
    ) -> None:
        super().__init__("BipartiteCSC", offsets, indices, num_src_nodes, map_csc_to_coo)


class SampledCSC(Graph):
    """A sampled graph, whose destinations are the first of its sources; arguments as of :class:`CSC`."""

    def __init__(
        self, offsets: torch.Tensor, indices: torch.Tensor, max_in_degree: int | None, num_src_nodes: int
    ) -> None:
        super().__init__("SampledCSC", offsets, indices, num_src_nodes, None, max_in_degree)


class HeteroCSC(CSC):
    """A graph whose edges have types.

    Parameters
    ----------
    offsets, indices, num_src_nodes, dst_max_in_degree, is_bipartite
        As of :class:`CSC`.
    edge_types : tensor of integers, shape (num_indices,)
        Type of the edge of each position.
    num_edge_types : int

    Attributes
    ----------
    edge_types : tensor of int64
    """

    def __init__(
        self,
        offsets: torch.Tensor,
        indices: torch.Tensor,
        edge_types: torch.Tensor,
        num_src_nodes: int,
        num_edge_types: int,
        dst_max_in_degree: int | None = None,
        is_bipartite: bool = False,
    ) -> None:
        super().__init__(offsets, indices, num_src_nodes, dst_max_in_degree, is_bipartite)
        name = type(self).__name__
        self.num_edge_types = count(name, "num_edge_types", num_edge_types)
        if not isinstance(edge_types, torch.Tensor) or edge_types.is_floating_point() or edge_types.is_complex():
            kind = edge_types.dtype if isinstance(edge_types, torch.Tensor) else type(edge_types).__name__
            raise TypeError(f"{name}: edge_types is a {kind}; expected a tensor of integers")
        if edge_types.shape != indices.shape:
            raise ValueError(
                f"{name}: edge_types has shape {tuple(edge_types.shape)}; expected {tuple(indices.shape)}, "
                "one type for each index"
            )
        if edge_types.device != indices.device:
            raise ValueError(
                f"{name}: edge_types is on {edge_types.device}; expected {indices.device}, where indices is"
            )
        check_range(name, "edge_types", as_array(edge_types), self.num_edge_types, "num_edge_types")
        # A copy, because what follows is made of it, and operators do not check it again.
        self.edge_types = edge_types.to(torch.int64, copy=True)
        destinations = torch.repeat_interleave(offsets.diff())
        _, pair, number = torch.unique(
            destinations * self.num_edge_types + self.edge_types, return_inverse=True, return_counts=True
        )
        self.edges_of_type = number[pair]
        """Number of edges of the position's type into its destination; tensor of int64, shape (num_indices,)."""


class StaticHeteroCSC(HeteroCSC):
    """A :class:`StaticCSC` whose edges have types."""

    def __init__(
        self, offsets: torch.Tensor, indices: torch.Tensor, edge_types: torch.Tensor, num_edge_types: int
    ) -> None:
        super().__init__(offsets, indices, edge_types, len(offsets) - 1, num_edge_types)


class SampledHeteroCSC(HeteroCSC):
    """A :class:`SampledCSC` whose edges have types."""

    def __init__(
        self,
        offsets: torch.Tensor,
        indices: torch.Tensor,
        edge_types: torch.Tensor,
        max_in_degree: int | None,
        num_src_nodes: int,
        num_edge_types: int,
    ) -> None:
        super().__init__(offsets, indices, edge_types, num_src_nodes, num_edge_types, max_in_degree)

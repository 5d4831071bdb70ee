"""The graph classes of ``pylibcugraphops.pytorch`` that PyTorch Geometric's layers make."""

import torch

from trigraph.arrays import check_range, count, device_of, index_array
from trigraph.compat.pylibcugraphops.graphs import Graph


class CSC(Graph):
    """A graph by destination, of tensors; the last two arguments are accepted for the original's sake."""

    def __init__(
        self,
        offsets: torch.Tensor,
        indices: torch.Tensor,
        num_src_nodes: int,
        dst_max_in_degree: int | None = None,
        is_bipartite: bool = False,
    ) -> None:
        super().__init__(type(self).__name__, offsets, indices, num_src_nodes)


class HeteroCSC(CSC):
    """A graph whose edges have types, a tensor of integers for the positions.

    Attributes
    ----------
    num_edge_types : int
    edge_types : tensor of int64, shape (num_indices,)
    edges_of_type : tensor of int64, shape (num_indices,)
        Number of edges of the position's type into its destination.
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
        super().__init__(offsets, indices, num_src_nodes)
        self.num_edge_types = count("HeteroCSC", "num_edge_types", num_edge_types)
        types = index_array("HeteroCSC", "edge_types", edge_types)
        if types.size != self.n_indices or device_of(types) != self.csc.device:
            raise ValueError(
                f"HeteroCSC: edge_types has shape {types.shape} on {device_of(types)}; expected ({self.n_indices},), "
                f"one type for each index, on {self.csc.device}"
            )
        check_range("HeteroCSC", "edge_types", types, self.num_edge_types, "num_edge_types")
        # A copy, because what follows is made of it, and operators do not check it again.
        self.edge_types = torch.as_tensor(edge_types).to(torch.int64, copy=True)
        pairs = torch.repeat_interleave(offsets.diff()) * self.num_edge_types + self.edge_types
        _, pair, number = torch.unique(pairs, return_inverse=True, return_counts=True)
        self.edges_of_type = number[pair]

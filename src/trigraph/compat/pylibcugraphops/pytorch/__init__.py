"""The graph classes that PyTorch Geometric's layers make. Each graph is checked once."""

import torch

import trigraph
from trigraph.arrays import check_range, count, find_device, index_array

__all__ = ["CSC", "HeteroCSC"]


class CSC:
    """A graph by destination, of tensors; the last argument is accepted for the original's sake.

    Attributes
    ----------
    csc : trigraph.CSC
    """

    def __init__(
        self, offsets: torch.Tensor, indices: torch.Tensor, num_src_nodes: int, dst_max_in_degree: int | None = None
    ) -> None:
        self.csc = trigraph.CSC(offsets, indices, num_src_nodes)


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
    ) -> None:
        super().__init__(offsets, indices, num_src_nodes)
        self.num_edge_types = count("HeteroCSC", "num_edge_types", num_edge_types)
        types, expected = index_array("HeteroCSC", "edge_types", edge_types), self.csc.num_positions
        if types.size != expected or find_device(types) != self.csc.device:
            raise ValueError(
                f"HeteroCSC: edge_types has shape {types.shape} on {find_device(types)}; expected ({expected},), one "
                f"type for each index, on {self.csc.device}"
            )
        check_range("HeteroCSC", "edge_types", types, self.num_edge_types, "num_edge_types")
        # A copy, because what follows is made of it, and operators do not check it again.
        self.edge_types = torch.as_tensor(edge_types).to(torch.int64, copy=True)
        pairs = torch.repeat_interleave(offsets.diff()) * self.num_edge_types + self.edge_types
        _, pair, number = torch.unique(pairs, return_inverse=True, return_counts=True)
        self.edges_of_type = number[pair]

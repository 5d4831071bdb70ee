"""The graph classes that PyTorch Geometric's layers use. Each graph is checked once, when it is made."""

import torch

import trigraph
from trigraph.arrays import check_and_copy_index_array, check_range, find_device, require_count

__all__ = ["CSC", "HeteroCSC"]


class CSC:
    """Graph sorted by destination, made from tensors. `dst_max_in_degree` is ignored.

    Attributes
    ----------
    csc : trigraph.CSC
    """

    def __init__(
        self, offsets: torch.Tensor, indices: torch.Tensor, num_src_nodes: int, dst_max_in_degree: int | None = None
    ) -> None:
        self.csc = trigraph.CSC(offsets, indices, num_src_nodes)


class HeteroCSC(CSC):
    """Graph whose edges have types, given as a tensor of integers.

    Attributes
    ----------
    num_edge_types : int
    edge_types : tensor of int64, shape (num_indices,)
    edges_of_type : tensor of int64, shape (num_indices,)
        Number of edges into the same destination that have the same type.
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
        self.num_edge_types = require_count("HeteroCSC", "num_edge_types", num_edge_types)
        types, expected = check_and_copy_index_array("HeteroCSC", "edge_types", edge_types), self.csc.num_positions
        if types.size != expected or find_device(types) != self.csc.device:
            raise ValueError(
                f"HeteroCSC: edge_types has shape {types.shape} on {find_device(types)}; expected ({expected},), one "
                f"type for each index, on {self.csc.device}"
            )
        check_range("HeteroCSC", "edge_types", types, self.num_edge_types, "num_edge_types")
        # A copy, because `edges_of_type` depends on the types and operators do not check them again.
        self.edge_types = torch.as_tensor(edge_types).to(torch.int64, copy=True)
        pairs = torch.repeat_interleave(offsets.diff()) * self.num_edge_types + self.edge_types
        _, pair, number = torch.unique(pairs, return_inverse=True, return_counts=True)
        self.edges_of_type = number[pair]

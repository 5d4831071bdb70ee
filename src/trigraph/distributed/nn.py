"""DimeNet++ for a structure divided among ranks, with bitwise reproducible energy, forces and gradients."""

from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor
from torch.nn import Linear
from torch.nn import functional as F

from trigraph.distributed.divide import partition
from trigraph.distributed.partition import Partition
from trigraph.distributed.torch import FUNCTIONS, linear, rowwise, total
from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.table.former_names import keep_former_names
from trigraph.torch import nn

__all__ = ["DimeNetPlusPlus", "DividedNeighbors"]

_agg_edge_to_edge, _radial_basis, _sum = (
    FUNCTIONS[n] for n in ("agg_edge_to_edge", "radial_basis", "agg_weighted_n2n")
)


@keep_former_names(of_ends="add_ends")
class DividedNeighbors(NamedTuple):
    """Neighbours of the atoms of a structure that is divided among ranks.

    Attributes
    ----------
    edges : Partition
        Partition of the EdgeGraph.
    ends : Partition
        Graph from the rows ``cat([at_source, at_destination])`` of all atoms to edges, with two in-edges for each edge.
    into : Partition
        Graph from the edges to their destination atoms.
    offset : Tensor, shape (edges of this rank, 3)
        Periodic offset of the vector of each edge.
    """

    edges: Partition
    ends: Partition
    into: Partition
    offset: Tensor

    @classmethod
    def divide(cls, graph: EdgeGraph, offset: np.ndarray, comm: MPI.Comm, owner: Any = None) -> "DividedNeighbors":
        """Divide a structure that every rank has.

        Parameters
        ----------
        graph : EdgeGraph
        offset : array, shape (num_edges, 3)
            As returned by `EdgeGraph.from_positions`.
        comm : MPI.Comm
        owner : integer array, shape (num_nodes,), optional
            Rank that owns each atom.
        """
        edges = partition(graph, comm, owner)
        atoms, of_edge = edges.owners.blocks, edges.owners.blocks[graph.src]
        number = graph.num_edges
        both = np.stack([graph.src, graph.dst + graph.num_nodes], 1).ravel()
        ends = CSC(2 * np.arange(number + 1), both.astype(np.int64), 2 * graph.num_nodes)
        into = CSC(graph.dst_offsets, graph.dst_edge_index, number)
        return cls(
            edges,
            partition(ends, comm, of_edge, np.concatenate([atoms, atoms])),
            partition(into, comm, atoms, of_edge),
            torch.from_numpy(edges.take(offset, "num_edges")),
        )

    def add_ends(self, at_source: Tensor, at_destination: Tensor) -> Tensor:
        """Return, for each edge, the source's row of `at_source` plus the destination's row of `at_destination`."""
        return _sum(torch.cat([at_source, at_destination]), None, self.ends).output_embedding

    def into_atoms(self, values: Tensor) -> Tensor:
        """Return, for each atom, the sum of the rows of its in-edges."""
        return _sum(values, None, self.into).output_embedding


class DimeNetPlusPlus(nn.DimeNetPlusPlus):
    """`trigraph.torch.nn.DimeNetPlusPlus` for a structure that is divided among ranks, with the same parameters."""

    def forward(self, z: Tensor, pos: Tensor, neighbors: DividedNeighbors) -> Tensor:  # type: ignore[override]
        """Return the sum over all atoms, on every rank.

        Parameters
        ----------
        z : Tensor of int64, shape (atoms of this rank,)
            Atomic numbers.
        pos : Tensor, shape (atoms of this rank, 3)
        neighbors : DividedNeighbors

        Returns
        -------
        Tensor, shape (out_channels,)
        """
        edges, atoms = neighbors.edges.get_row_partition(), neighbors.into.get_row_partition("num_dst_nodes")
        vec = neighbors.add_ends(pos, -pos) + neighbors.offset.to(pos.dtype)
        x, y, z_part = vec.unbind(1)
        dist = (x * x + y * y + z_part * z_part).sqrt()
        basis = self.rbf
        rbf, sbf_rad = _radial_basis(
            dist / basis.cutoff, basis.freq, basis.num_spherical, basis.envelope_exponent, partition=edges
        )
        hidden = self._embed_edges(z, rbf, neighbors)
        of_atoms = self._compute_atom_outputs(0, hidden, rbf, neighbors)
        for number, block in enumerate(self.interaction_blocks, 1):
            hidden = self._apply_interaction_block(block, hidden, rbf, sbf_rad, vec, neighbors.edges)
            of_atoms = of_atoms + self._compute_atom_outputs(number, hidden, rbf, neighbors)
        return total(of_atoms, atoms)

    def energy_forces(
        self, z: Tensor, pos: Tensor, neighbors: DividedNeighbors, create_graph: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return, on every rank, the total energy and the forces on the rank's atoms.

        Parameters
        ----------
        z, pos, neighbors
            As for `forward`.
        create_graph : bool
            Whether the results can be differentiated, for example to train on forces.

        Returns
        -------
        energy : Tensor, shape ()
        forces : Tensor, shape (atoms of this rank, 3)
        """
        with torch.enable_grad():
            if not (create_graph and pos.requires_grad):
                pos = pos.detach().requires_grad_()
            energy = self(z, pos, neighbors)[0]
            (by_pos,) = torch.autograd.grad(energy, pos, create_graph=create_graph)
        forces = 0.0 - by_pos  # -by_pos would be -0.0 for atoms without neighbours
        return (energy, forces) if create_graph else (energy.detach(), forces)

    def _activate(self, x: Tensor) -> Tensor:
        return rowwise(self.emb.act, x)

    def _embed_edges(self, z: Tensor, rbf: Tensor, neighbors: DividedNeighbors) -> Tensor:
        """Return the embedding of each edge from its length and the elements of its two atoms."""
        emb, edges = self.emb, neighbors.edges.get_row_partition()
        atoms = neighbors.into.get_row_partition("num_dst_nodes")
        of_dst, of_src, of_rbf = emb.lin.weight.chunk(3, dim=1)
        elements = F.one_hot(z, emb.emb.num_embeddings).to(rbf.dtype)  # the table's gradient is then a sum over atoms
        embedded = linear(elements, emb.emb.weight.t(), None, atoms)
        ends = neighbors.add_ends(linear(embedded, of_src, None, atoms), linear(embedded, of_dst, None, atoms))
        by_length = self._activate(_apply_dense(emb.lin_rbf, rbf, edges))
        return self._activate(linear(by_length, of_rbf, emb.lin.bias, edges) + ends)

    def _apply_interaction_block(
        self, block: Any, x: Tensor, rbf: Tensor, sbf_rad: Tensor, vec: Tensor, graph: Partition
    ) -> Tensor:
        """Return the new embedding of each edge, like `trigraph.torch.nn.InteractionBlock`."""
        act, edges = self._activate, graph.get_row_partition()
        x_ji = act(_apply_dense(block.lin_ji, x, edges))
        by_length = linear(rbf, block.lin_rbf2.weight @ block.lin_rbf1.weight, None, edges)
        x_kj = act(_apply_dense(block.lin_down, act(_apply_dense(block.lin_kj, x, edges)) * by_length, edges))
        weights = torch.cat([block.lin_sbf1.weight.t(), block.lin_sbf2.weight])
        x_kj = _agg_edge_to_edge(
            vec, sbf_rad, x_kj, weights, graph, block.num_spherical, block.num_radial, exclude=block.exclude
        )
        h = x_ji + act(_apply_dense(block.lin_up, x_kj, edges))
        for layer in block.layers_before_skip:
            h = h + act(_apply_dense(layer.lin2, act(_apply_dense(layer.lin1, h, edges)), edges))
        h = act(_apply_dense(block.lin, h, edges)) + x
        for layer in block.layers_after_skip:
            h = h + act(_apply_dense(layer.lin2, act(_apply_dense(layer.lin1, h, edges)), edges))
        return h

    def _compute_atom_outputs(self, number: int, x: Tensor, rbf: Tensor, neighbors: DividedNeighbors) -> Tensor:
        """Return the contribution of the edge embeddings to their destination atoms."""
        block: Any = self.output_blocks[number]
        edges, atoms = neighbors.edges.get_row_partition(), neighbors.into.get_row_partition("num_dst_nodes")
        of_atoms = _apply_dense(block.lin_up, neighbors.into_atoms(_apply_dense(block.lin_rbf, rbf, edges) * x), atoms)
        for lin in block.lins:
            of_atoms = self._activate(_apply_dense(lin, of_atoms, atoms))
        return _apply_dense(block.lin, of_atoms, atoms)


def _apply_dense(layer: Linear, x: Tensor, rows: Partition) -> Tensor:
    return linear(x, layer.weight, layer.bias, rows)

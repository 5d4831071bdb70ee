"""DimeNet++ with PyTorch Geometric's constructors and parameters, in linear time and without a list of triplets.

J. Gasteiger, S. Giri, J. T. Margraf, S. Günnemann, "Fast and Uncertainty-Aware Directional Message Passing for
Non-Equilibrium Molecules", arXiv:2011.14115.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter
from torch.nn import functional as F

from trigraph.arrays import format_value, require_count, require_nonnegative_number
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.graphs import exclude_from_compilation
from trigraph.torch.layers.activations import Activation, find_activation
from trigraph.torch.layers.arguments import check_sizes, refuse_torchscript
from trigraph.torch.potentials.potential import Potential
from trigraph.torch.potentials.structures import Neighbors

NUM_ELEMENTS = 95  # rows of the embedding: atomic numbers 0 to 94
_radial_basis, _agg_edge_to_edge = FUNCTIONS["radial_basis"], FUNCTIONS["agg_edge_to_edge"]


@torch.no_grad()
def _init_glorot_orthogonal(linear: Linear) -> None:
    """Fill the weight with an orthogonal matrix of variance 2 / (fan in + fan out), and the bias with zeros."""
    weight = linear.weight
    torch.nn.init.orthogonal_(weight)
    if weight.numel() > 1:  # a single element, which has no variance, stays 1 or -1
        weight.mul_(torch.sqrt(2.0 / (sum(weight.shape) * weight.var())))
    if linear.bias is not None:
        linear.bias.zero_()


def _apply_linear_product(x: Tensor, first: Linear, second: Linear) -> Tensor:
    """Return ``second(first(x))`` for layers without bias, computed with the product of their small weights."""
    return F.linear(x, second.weight @ first.weight)


class RadialBasis(Module):
    """Radial basis of DimeNet++, and radial part of its spherical basis; `freq` as in PyG's ``BesselBasisLayer``.

    Parameters
    ----------
    num_radial, num_spherical : int
    cutoff : float
        Cutoff distance, in the unit of the distances.
    envelope_exponent : int
        Exponent of the smooth cutoff, at least 2.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range.

    Notes
    -----
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; PyTorch Geometric's layer.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import RadialBasis
    >>> basis = RadialBasis(num_radial=3, num_spherical=2, cutoff=4.0)
    >>> basis(torch.tensor([1.0, 1.5])).rbf.detach()
    tensor([[ 2.8165,  3.9831,  2.8165],
            [ 2.3749,  1.8177, -0.9837]])
    """

    def __init__(
        self, num_radial: int, num_spherical: int = 7, cutoff: float = 5.0, envelope_exponent: int = 5
    ) -> None:
        super().__init__()
        check_sizes(
            "RadialBasis", num_radial=num_radial, num_spherical=num_spherical, envelope_exponent=envelope_exponent
        )
        self.cutoff = require_nonnegative_number("RadialBasis", "cutoff", cutoff, positive=True)
        self.num_spherical, self.envelope_exponent = num_spherical, envelope_exponent
        self.freq = Parameter(torch.empty(num_radial))
        self.reset_parameters()

    __prepare_scriptable__ = refuse_torchscript

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the frequencies to multiples of pi."""
        self.freq.copy_(math.pi * torch.arange(1, len(self.freq) + 1, dtype=torch.float64))

    def forward(self, dist: Tensor) -> Any:
        """Evaluate the bases at the given distances.

        Parameters
        ----------
        dist : Tensor, shape (num_edges,)

        Returns
        -------
        NamedTuple
            `rbf` (num_edges, num_radial) and `sbf_rad` (num_edges, num_spherical * num_radial).

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `trigraph.torch.radial_basis`.
        """
        return _radial_basis(dist / self.cutoff, self.freq, self.num_spherical, self.envelope_exponent)


@exclude_from_compilation
def _check_atomic_numbers(z: Tensor) -> None:
    """Raise ValueError unless all atomic numbers are in range."""
    if len(z) and not 0 <= int(z.min()) <= int(z.max()) < NUM_ELEMENTS:
        raise ValueError(
            f"DimeNetPlusPlus: z goes from {int(z.min())} to {int(z.max())}; expected atomic numbers from 0 to "
            f"{NUM_ELEMENTS - 1}"
        )


class EmbeddingBlock(Module):
    """Embedding of edges, computed from edge lengths and the elements of both atoms."""

    def __init__(self, num_radial: int, hidden_channels: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.emb = Embedding(NUM_ELEMENTS, hidden_channels)
        self.lin_rbf = Linear(num_radial, hidden_channels)
        self.lin = Linear(3 * hidden_channels, hidden_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize all parameters."""
        torch.nn.init.uniform_(self.emb.weight, -math.sqrt(3), math.sqrt(3))
        self.lin_rbf.reset_parameters()
        self.lin.reset_parameters()

    def forward(self, z: Tensor, rbf: Tensor, neighbors: Neighbors) -> Tensor:
        """Return the embeddings of the edges; the parts of `lin` that act on atoms are applied once per atom."""
        dst_weight, src_weight, rbf_weight = self.lin.weight.chunk(3, dim=1)
        try:
            atoms = self.emb(z)
        except IndexError:  # raised on the CPU if `neighbors` was given, so that z was not checked
            _check_atomic_numbers(z)
            raise
        ends = neighbors.add_ends(F.linear(atoms, src_weight), F.linear(atoms, dst_weight))
        return self.act(F.linear(self.act(self.lin_rbf(rbf)), rbf_weight, self.lin.bias) + ends)


class ResidualBlock(Module):
    """Two linear layers with a skip connection."""

    def __init__(self, hidden_channels: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.lin1 = Linear(hidden_channels, hidden_channels)
        self.lin2 = Linear(hidden_channels, hidden_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the new embedding of each edge."""
        return x + self.act(self.lin2(self.act(self.lin1(x))))


class InteractionBlock(Module):
    """Interaction block of DimeNet++, with the parameters of PyG's ``InteractionPPBlock``.

    Parameters
    ----------
    hidden_channels, int_emb_size, basis_emb_size, num_spherical, num_radial, num_before_skip, num_after_skip : int
    act : str or callable
    exclude : {"node", "edge", None}
        Which in-edges of its source each edge excludes, as in `trigraph.torch.agg_edge_to_edge`.

    Raises
    ------
    TypeError, ValueError
        If `act` is neither a callable nor the name of an activation.

    Notes
    -----
    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; PyTorch Geometric's block.

    Examples
    --------
    >>> import torch
    >>> from trigraph import EdgeGraph
    >>> from trigraph.torch.nn import InteractionBlock
    >>> graph = EdgeGraph(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), 3)
    >>> block = InteractionBlock(8, 4, 4, 2, 3, 1, 1, "swish")
    >>> rbf, sbf_rad, vec = torch.ones(3, 3), torch.ones(3, 6), torch.eye(3)
    >>> block(torch.ones(3, 8), rbf, sbf_rad, vec, graph).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        hidden_channels: int,
        int_emb_size: int,
        basis_emb_size: int,
        num_spherical: int,
        num_radial: int,
        num_before_skip: int,
        num_after_skip: int,
        act: str | Activation,
        exclude: str | None = "node",
    ) -> None:
        super().__init__()
        self.act = act = find_activation("InteractionBlock", act)
        self.exclude = exclude
        self.num_spherical, self.num_radial = num_spherical, num_radial
        self.lin_rbf1 = Linear(num_radial, basis_emb_size, bias=False)
        self.lin_rbf2 = Linear(basis_emb_size, hidden_channels, bias=False)
        self.lin_sbf1 = Linear(num_spherical * num_radial, basis_emb_size, bias=False)
        self.lin_sbf2 = Linear(basis_emb_size, int_emb_size, bias=False)
        self.lin_kj = Linear(hidden_channels, hidden_channels)
        self.lin_ji = Linear(hidden_channels, hidden_channels)
        self.lin_down = Linear(hidden_channels, int_emb_size, bias=False)
        self.lin_up = Linear(int_emb_size, hidden_channels, bias=False)
        self.layers_before_skip = ModuleList(ResidualBlock(hidden_channels, act) for _ in range(num_before_skip))
        self.lin = Linear(hidden_channels, hidden_channels)
        self.layers_after_skip = ModuleList(ResidualBlock(hidden_channels, act) for _ in range(num_after_skip))
        self.reset_parameters()

    __prepare_scriptable__ = refuse_torchscript

    def reset_parameters(self) -> None:
        """Reinitialize all parameters."""
        for module in self.modules():
            if isinstance(module, Linear):
                _init_glorot_orthogonal(module)

    def forward(self, x: Tensor, rbf: Tensor, sbf_rad: Tensor, vec: Tensor, graph: EdgeGraph) -> Tensor:
        """Return the new embedding of each edge.

        Parameters
        ----------
        x : Tensor, shape (num_edges, hidden_channels)
        rbf, sbf_rad : Tensor
            Results of `RadialBasis`.
        vec : Tensor, shape (num_edges, 3)
            Vector from the destination of each edge to its source.
        graph : EdgeGraph

        Returns
        -------
        Tensor, shape (num_edges, hidden_channels)

        Raises
        ------
        TypeError, ValueError, MemoryError
            As for `trigraph.torch.agg_edge_to_edge`.
        """
        act = self.act
        x_ji = act(self.lin_ji(x))
        x_kj = act(self.lin_kj(x)) * _apply_linear_product(rbf, self.lin_rbf1, self.lin_rbf2)
        x_kj = act(self.lin_down(x_kj))
        weights = torch.cat([self.lin_sbf1.weight.t(), self.lin_sbf2.weight])
        x_kj = _agg_edge_to_edge(
            vec, sbf_rad, x_kj, weights, graph, self.num_spherical, self.num_radial, exclude=self.exclude
        )
        h = x_ji + act(self.lin_up(x_kj))
        for layer in self.layers_before_skip:
            h = layer(h)
        h = act(self.lin(h)) + x
        for layer in self.layers_after_skip:
            h = layer(h)
        return h


class OutputBlock(Module):
    """Contribution of edge embeddings to the destination atoms of the edges."""

    def __init__(
        self,
        num_radial: int,
        hidden_channels: int,
        out_emb_channels: int,
        out_channels: int,
        num_layers: int,
        act: Activation,
        output_initializer: str,
    ) -> None:
        super().__init__()
        self.act, self.output_initializer = act, output_initializer
        self.lin_rbf = Linear(num_radial, hidden_channels, bias=False)
        self.lin_up = Linear(hidden_channels, out_emb_channels, bias=False)
        self.lins = ModuleList(Linear(out_emb_channels, out_emb_channels) for _ in range(num_layers))
        self.lin = Linear(out_emb_channels, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize all parameters."""
        for module in self.modules():
            if isinstance(module, Linear):
                _init_glorot_orthogonal(module)
        if self.output_initializer == "zeros":
            torch.nn.init.zeros_(self.lin.weight)

    def forward(self, x: Tensor, rbf: Tensor, neighbors: Neighbors) -> Tensor:
        """Return the contribution to each atom, shape (num_atoms, out_channels)."""
        x = self.lin_up(neighbors.into_atoms(self.lin_rbf(rbf) * x))
        for lin in self.lins:
            x = self.act(lin(x))
        return self.lin(x)


class DimeNetPlusPlus(Potential):
    """DimeNet++ with the constructor and parameters of PyG's ``DimeNetPlusPlus``, whose checkpoints it can load.

    Time and memory are linear in the number of edges, because no triplet list is built. Structures may be periodic.

    Parameters
    ----------
    hidden_channels : int
    out_channels : int
        Number of outputs for each structure; `energy_forces_stress` requires 1.
    num_blocks, int_emb_size, basis_emb_size, out_emb_channels : int
    num_spherical : int
        Number of spherical basis functions, from 2 to 8.
    num_radial : int
        Number of radial basis functions, from 1 to 16.
    cutoff : float
        Cutoff distance, in the unit of the positions.
    max_num_neighbors : int, optional
        Keep at most this many edges into each atom, the shortest (default: all; PyG silently keeps 32). The energy is
        then discontinuous where two neighbours change ranks.
    envelope_exponent, num_before_skip, num_after_skip, num_output_layers : int
    act : str or callable
        Activation, the name of one in torch.nn, or "swish" for SiLU. Training on forces requires a twice
        differentiable activation.
    output_initializer : {"zeros", "glorot_orthogonal"}

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range.

    Notes
    -----
    For the edge j -> i, the sum over edges k -> j excludes only the reverse edge. PyG excludes every edge with k = i.
    The rules agree without periodic images; with them, PyG's rule would yield inconsistent energies for supercells.

    Source: Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115.

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> model = DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4)
    >>> pos = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> model.energy_forces_stress(torch.tensor([8, 1, 1]), pos).forces.shape
    torch.Size([3, 3])
    """

    def __init__(
        self,
        hidden_channels: int,
        out_channels: int,
        num_blocks: int,
        int_emb_size: int,
        basis_emb_size: int,
        out_emb_channels: int,
        num_spherical: int,
        num_radial: int,
        cutoff: float = 5.0,
        max_num_neighbors: int | None = None,
        envelope_exponent: int = 5,
        num_before_skip: int = 1,
        num_after_skip: int = 2,
        num_output_layers: int = 3,
        act: str | Activation = "swish",
        output_initializer: str = "zeros",
    ) -> None:
        super().__init__()
        check_sizes(
            "DimeNetPlusPlus",
            hidden_channels=hidden_channels,
            out_channels=out_channels,
            num_blocks=num_blocks,
            int_emb_size=int_emb_size,
            basis_emb_size=basis_emb_size,
            out_emb_channels=out_emb_channels,
            num_spherical=num_spherical,
            num_radial=num_radial,
            envelope_exponent=envelope_exponent,
            num_before_skip=num_before_skip,
            num_after_skip=num_after_skip,
            num_output_layers=num_output_layers,
        )
        require_count("DimeNetPlusPlus", "num_spherical", num_spherical, 2)
        if max_num_neighbors is not None:
            check_sizes("DimeNetPlusPlus", max_num_neighbors=max_num_neighbors)
        self.cutoff = require_nonnegative_number("DimeNetPlusPlus", "cutoff", cutoff, positive=True)
        if output_initializer not in ("zeros", "glorot_orthogonal"):
            raise ValueError(
                f"DimeNetPlusPlus: output_initializer is {format_value(output_initializer)}; expected 'zeros' or "
                "'glorot_orthogonal'"
            )
        act = find_activation("DimeNetPlusPlus", act)
        self.max_num_neighbors, self.out_channels = max_num_neighbors, out_channels
        self.rbf = RadialBasis(num_radial, num_spherical, self.cutoff, envelope_exponent)
        self.emb = EmbeddingBlock(num_radial, hidden_channels, act)
        self.output_blocks = ModuleList(
            OutputBlock(
                num_radial, hidden_channels, out_emb_channels, out_channels, num_output_layers, act, output_initializer
            )
            for _ in range(num_blocks + 1)
        )
        self.interaction_blocks = ModuleList(
            InteractionBlock(
                hidden_channels,
                int_emb_size,
                basis_emb_size,
                num_spherical,
                num_radial,
                num_before_skip,
                num_after_skip,
                act,
                exclude="edge",
            )
            for _ in range(num_blocks)
        )

    def reset_parameters(self) -> None:
        """Reinitialize all parameters."""
        for module in (self.rbf, self.emb, *self.output_blocks, *self.interaction_blocks):
            module.reset_parameters()

    def check_numbers(self, z: Tensor) -> None:
        """Raise ValueError unless all atomic numbers are from 0 to 94."""
        _check_atomic_numbers(z)

    def atoms_of_vectors(self, z: Tensor, vec: Tensor, neighbors: Neighbors) -> Tensor:
        """Return the outputs of the atoms, shape (num_atoms, out_channels)."""
        rbf, sbf_rad = self.rbf(vec.square().sum(dim=1).sqrt())
        x = self.emb(z, rbf, neighbors)
        atoms: Tensor = self.output_blocks[0](x, rbf, neighbors)
        for interaction, output in zip(self.interaction_blocks, self.output_blocks[1:], strict=True):
            x = interaction(x, rbf, sbf_rad, vec, neighbors.graph)
            atoms = atoms + output(x, rbf, neighbors)
        return atoms

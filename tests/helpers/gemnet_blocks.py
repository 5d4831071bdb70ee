"""Interaction blocks that `trigraph.torch.convert` converts: fairchem's GemNet-OC and MatterGen's GemNet.

    pip download --no-deps fairchem-core==1.10.0 mattergen==1.0.3 -d clients

Each block is combined with its model's basis layers; the lists of edges, triplets and quadruplets are generated.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import torch
from tensors import convert_to_tensors

from trigraph.benchmarks.gemnet import compute_indices_within_lists, load_fairchem_modules, scatter_sum
from trigraph.benchmarks.originals import WheelRelease, load_modules

MATTERGEN = WheelRelease("mattergen", "1.0.3", "mattergen/common/gemnet")

# Most sizes are different, so that swapped axes cause an error.
WIDTHS = {
    "num_radial": 6,
    "num_spherical": 3,
    "emb_size_atom": 10,
    "emb_size_edge": 12,
    "emb_size_trip": 8,
    "emb_size_bil_trip": 9,
    "emb_size_trip_in": 5,
    "emb_size_trip_out": 7,
    "emb_size_quad_in": 4,
    "emb_size_quad_out": 8,
    "emb_size_a2a_in": 9,
    "emb_size_a2a_out": 11,
    "emb_size_rbf": 2,
    "emb_size_cbf": 4,
    "emb_size_sbf": 5,
    "num_before_skip": 1,
    "num_after_skip": 1,
    "num_concat": 1,
    "num_atom": 1,
    "num_atom_emb_layers": 1,
}
RADIAL, SPHERICAL = WIDTHS["num_radial"], WIDTHS["num_spherical"]
RBF, CBF, SBF = (WIDTHS[f"emb_size_{name}"] for name in ("rbf", "cbf", "sbf"))


@cache
def load_mattergen_modules():
    """Return MatterGen's modules, like `load_fairchem_modules`; scale factors are 1, as their file is not loaded."""
    packages = ["mattergen", "mattergen.common", "mattergen.common.gemnet", "mattergen.common.utils"]
    layers = "mattergen.common.gemnet.layers"
    wanted = [f"{layers}.{name}" for name in ("efficient", "interaction_block", "base_layers")]
    stand_ins = {
        "torch_scatter": {"scatter": scatter_sum},
        "mattergen.common.utils.globals": {"MAX_ATOMIC_NUM": 100},
        "mattergen.common.gemnet.utils": {"read_value_json": lambda file, key: None, "update_json": None},
    }
    return load_modules(MATTERGEN.find_root(), [*packages, layers], wanted, stand_ins)


def select_block_widths(block):
    """Return the widths that a block's constructor accepts, by argument name."""
    return {n: WIDTHS[n] for n in inspect.signature(block).parameters if n in WIDTHS}


def _list_triplets(inputs, outputs, at):
    """Pair each input edge with the output edges that end (at=1) or begin (at=0) at the input edge's target."""
    adjacent = (inputs[1] == outputs[at][:, None]) & (inputs[0] != outputs[1 - at][:, None])
    out, into = np.nonzero(adjacent)
    return {"in": into, "out": out, "out_agg": compute_indices_within_lists(out)}


def _list_quadruplets(main, qint):
    """Return quadruplets d -> b -> a <- c, with d -> b and c -> a in the main graph and b -> a in the graph `qint`."""
    before, after = _list_triplets(main, qint, at=0), _list_triplets(qint, main, at=1)
    joined, first = np.nonzero(after["in"][:, None] == before["out"])
    out = after["out"][joined]
    distinct = main[0][out] != main[0][before["in"][first]]
    out, first = out[distinct], first[distinct]
    return {"out": out, "trip_in_to_quad": first, "out_agg": compute_indices_within_lists(out), "triplet_in": before}


@dataclass(frozen=True)
class NeighborPairs:
    """Pairs of neighbours for each graph of GemNet-OC, from which all index lists are derived as in the model.

    `pairs` maps ``main``, ``qint``, ``aeaint`` and ``aint`` to int64 arrays of shape (2, num_pairs), each pair once.
    """

    num_atoms: int
    pairs: Mapping[str, np.ndarray]

    def __add__(self, other):
        """Return the union of two structures; the atoms of `other` come last."""
        pairs = {n: np.concatenate([p, other.pairs[n] + self.num_atoms], axis=1) for n, p in self.pairs.items()}
        return NeighborPairs(self.num_atoms + other.num_atoms, pairs)

    def directed_edges(self, name):
        """Return edges in both directions: sorted by target, except that the main graph lists one direction first."""
        edges = np.concatenate([self.pairs[name], self.pairs[name][::-1]], axis=1)
        return edges if name == "main" else edges[:, np.lexsort(edges)]

    def index_lists(self):
        """Return the index arrays that are passed to interaction blocks."""
        main, qint, aeaint, aint = (self.directed_edges(name) for name in ("main", "qint", "aeaint", "aint"))
        half = self.pairs["main"].shape[1]
        return {
            "main": main,
            "qint": qint,
            "a2ee2a": {"edge_index": aeaint, "target_neighbor_idx": compute_indices_within_lists(aeaint[1])},
            "a2a": {"edge_index": aint, "target_neighbor_idx": compute_indices_within_lists(aint[1])},
            "id_swap": np.roll(np.arange(2 * half), -half),
            "e2e": _list_triplets(main, main, at=1),
            "a2e": _list_triplets(aeaint, main, at=1),
            "e2a": _list_triplets(main, aeaint, at=1),
            "quad": _list_quadruplets(main, qint),
        }


def draw_neighbor_pairs(num_atoms, neighbors):
    """Return random atoms; each graph connects the nearest pairs, on average `neighbors[graph]` per atom."""
    positions = np.random.default_rng(0).random((num_atoms, 3))
    all_pairs = np.array(list(combinations(range(num_atoms), 2)), np.int64).reshape(-1, 2).T
    nearest = all_pairs[
        :, np.argsort(np.linalg.norm(positions[all_pairs[0]] - positions[all_pairs[1]], axis=1), kind="stable")
    ]
    return NeighborPairs(num_atoms, {n: nearest[:, : num_atoms * k // 2] for n, k in neighbors.items()})


def _randomize_scale_factors(model):
    """Set the scale factors to random values other than 1 and 0 (fairchem's value for unfitted factors)."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith(".scale_factor"):
            parameter.data.copy_(0.75 + torch.rand((), generator=generator))


def list_input_atoms_and_widths(structure):
    """Map each input of a block to its width and the atom to which each row belongs."""
    lists = structure.index_lists()
    h, main, qint = np.arange(structure.num_atoms), lists["main"][1], lists["qint"][1]
    aeaint, aint = lists["a2ee2a"]["edge_index"][1], lists["a2a"]["edge_index"][1]
    radial = dict.fromkeys(("", "_sph", "_a2e", "_e2e"), main) | {"_qint": qint, "_aint": aint}
    radial |= dict.fromkeys(("_aeaint", "_e2a"), aeaint)
    circular = {"qint": qint[lists["quad"]["triplet_in"]["out"]], "a2e": main[lists["a2e"]["out"]]}
    circular |= {"e2a": aeaint[lists["e2a"]["out"]], "e2e": main[lists["e2e"]["out"]]}
    return {
        "h": (h, WIDTHS["emb_size_atom"]),
        "m": (main, WIDTHS["emb_size_edge"]),
        **{f"rad{name}": (atoms, RADIAL) for name, atoms in radial.items()},
        **{f"cir_{name}": (atoms, SPHERICAL) for name, atoms in circular.items()},
        "sph": (main[lists["quad"]["out"]], SPHERICAL**2),
    }


class FairchemBlock(torch.nn.Module):
    """An interaction block of GemNet-OC with all interactions enabled, and the basis layers of its model."""

    def __init__(self):
        super().__init__()
        efficient, block, dense = load_fairchem_modules()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            for name in ("qint", "aeint", "eaint", "tint", "h"):
                setattr(self, f"mlp_rbf_{name}", dense.Dense(RADIAL, RBF, activation=None, bias=False))
            for name in ("qint", "aeint", "eaint", "tint"):
                setattr(self, f"mlp_cbf_{name}", efficient.BasisEmbedding(RADIAL, CBF, SPHERICAL))
            self.mlp_sbf_qint = efficient.BasisEmbedding(RADIAL, SBF, SPHERICAL**2)
            self.mlp_rbf_aint = efficient.BasisEmbedding(RADIAL, RBF)
            every = {f"{name}_interaction": True for name in ("quad", "atom_edge", "edge_atom", "atom")}
            sizes = select_block_widths(block.InteractionBlock)
            self.block = block.InteractionBlock(**sizes, activation="silu", **every)
        _randomize_scale_factors(self)

    describe_inputs = staticmethod(list_input_atoms_and_widths)

    def forward(self, x, lists):
        """Return the updated embeddings of atoms and edges; the block is called as in GemNetOC.forward."""
        mlp = {name.removeprefix("mlp_"): layer for name, layer in self.named_children()}
        quad, num_atoms = lists["quad"], x["h"].shape[0]
        atom_lists = {
            name: {"idx_rad_outer": lists[name]["edge_index"][1], "idx_rad_inner": lists[name]["target_neighbor_idx"]}
            for name in ("a2a", "a2ee2a")
        }

        def select_spherical_indices(name):
            return {"idx_sph_outer": lists[name]["out"], "idx_sph_inner": lists[name]["out_agg"]}

        qint = {
            "rad": mlp["rbf_qint"](x["rad"]),
            "cir": mlp["cbf_qint"](x["rad_qint"], x["cir_qint"], idx_sph_outer=quad["triplet_in"]["out"]),
            "sph": mlp["sbf_qint"](x["rad_sph"], x["sph"], **select_spherical_indices("quad")),
        }
        a2e = {
            "rad": mlp["rbf_aeint"](x["rad_aeaint"]),
            "cir": mlp["cbf_aeint"](x["rad_a2e"], x["cir_a2e"], **select_spherical_indices("a2e")),
        }
        e2a = {
            "rad": mlp["rbf_eaint"](x["rad"]),
            "cir": mlp["cbf_eaint"](
                x["rad_e2a"],
                x["cir_e2a"],
                **atom_lists["a2ee2a"],
                **select_spherical_indices("e2a"),
                num_atoms=num_atoms,
            ),
        }
        e2e = {
            "rad": mlp["rbf_tint"](x["rad"]),
            "cir": mlp["cbf_tint"](x["rad_e2e"], x["cir_e2e"], **select_spherical_indices("e2e")),
        }
        h, m = self.block(
            h=x["h"],
            m=x["m"],
            bases_qint=qint,
            bases_e2e=e2e,
            bases_a2e=a2e,
            bases_e2a=e2a,
            basis_a2a_rad=mlp["rbf_aint"](x["rad_aint"], **atom_lists["a2a"], num_atoms=num_atoms),
            basis_atom_update=mlp["rbf_h"](x["rad"]),
            edge_index_main=lists["main"],
            a2ee2a_graph=lists["a2ee2a"],
            a2a_graph=lists["a2a"],
            id_swap=lists["id_swap"],
            trip_idx_e2e=lists["e2e"],
            trip_idx_a2e=lists["a2e"],
            trip_idx_e2a=lists["e2a"],
            quad_idx=quad,
        )
        return h, m


class MatterGenBlock(torch.nn.Module):
    """An interaction block of MatterGen's GemNetT, and the basis layers of its model."""

    def __init__(self):
        super().__init__()
        efficient, block, dense = load_mattergen_modules()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            self.mlp_rbf3 = dense.Dense(RADIAL, RBF, activation=None, bias=False)
            self.mlp_cbf3 = efficient.EfficientInteractionDownProjection(SPHERICAL, RADIAL, CBF)
            self.mlp_rbf_h = dense.Dense(RADIAL, RBF, activation=None, bias=False)
            make = block.InteractionBlockTripletsOnly
            self.block = make(**select_block_widths(make), activation="swish", scale_file="none.json")
        _randomize_scale_factors(self)

    @staticmethod
    def describe_inputs(structure):
        """Return the entries of `list_input_atoms_and_widths` that this block uses."""
        return {
            n: row
            for n, row in list_input_atoms_and_widths(structure).items()
            if n in ("h", "m", "rad", "rad_e2e", "cir_e2e")
        }

    def forward(self, x, lists):
        """Return the updated embeddings of atoms and edges; the block is called as in GemNetT.forward."""
        into, out, number = (lists["e2e"][name] for name in ("in", "out", "out_agg"))
        source, target = lists["main"]
        cbf3 = self.mlp_cbf3(x["rad_e2e"][None], x["cir_e2e"], out, number)
        h, m = self.block(
            h=x["h"],
            m=x["m"],
            rbf3=self.mlp_rbf3(x["rad"]),
            cbf3=cbf3,
            id3_ragged_idx=number,
            id_swap=lists["id_swap"],
            id3_ba=into,
            id3_ca=out,
            rbf_h=self.mlp_rbf_h(x["rad"]),
            idx_s=source,
            idx_t=target,
        )
        return h, m


BLOCKS = {"fairchem": FairchemBlock, "mattergen": MatterGenBlock}


def draw_inputs_and_index_lists(block, structure, dtype):
    """Return random inputs that require gradients, and the index lists as tensors."""
    rng = np.random.default_rng(0)
    x = {
        name: torch.from_numpy(rng.standard_normal((len(atoms), width)).astype(dtype)).requires_grad_()
        for name, (atoms, width) in block.describe_inputs(structure).items()
    }
    return x, convert_to_tensors(structure.index_lists())

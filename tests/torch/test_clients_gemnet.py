"""Tests that `convert` preserves the results of GemNet blocks in fairchem and MatterGen, loaded from their wheels.

Each block is combined with its model's basis layers; the lists of edges, triplets and quadruplets are random.
"""

import inspect
import re
from functools import cache, partial
from unittest import mock

import numpy as np
import pytest
from expect_error import expect_error

torch = pytest.importorskip("torch")

from trigraph.benchmarks import gemnet  # noqa: E402
from trigraph.benchmarks.originals import WheelRelease, load_modules  # noqa: E402
from trigraph.torch import convert, nn  # noqa: E402

MATTERGEN = WheelRelease("mattergen", "1.0.3", "mattergen/common/gemnet")

# Most sizes are different, so that swapped axes cause an error.
WIDTHS = {
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
    **dict.fromkeys(("num_before_skip", "num_after_skip", "num_concat", "num_atom", "num_atom_emb_layers"), 1),
}
RADIAL, SPHERICAL = 6, 3
RBF, CBF, SBF = (WIDTHS[f"emb_size_{name}"] for name in ("rbf", "cbf", "sbf"))

# The rows to which the two columns of each list refer: sources and targets of edges, inputs and outputs of triplets.
COLUMNS = {
    **dict.fromkeys(("main", "qint", "aeaint", "aint"), ("atoms", "atoms")),
    "e2e": ("main", "main"),
    "a2e": ("aeaint", "main"),
    "e2a": ("main", "aeaint"),
    "triplet_in": ("main", "qint"),
    "quad": ("triplet_in", "main"),
}
# The rows of each input of the blocks.
ROWS = {
    "h": "atoms",
    **dict.fromkeys(("m", "rad", "rad_sph", "rad_a2e", "rad_e2e"), "main"),
    **dict.fromkeys(("rad_aeaint", "rad_e2a"), "aeaint"),
    "rad_qint": "qint",
    "rad_aint": "aint",
    "cir_qint": "triplet_in",
    **{f"cir_{name}": name for name in ("a2e", "e2a", "e2e")},
    "sph": "quad",
}
INPUT_WIDTHS = {"h": WIDTHS["emb_size_atom"], "m": WIDTHS["emb_size_edge"], "rad": RADIAL, "cir": SPHERICAL}
INPUT_WIDTHS["sph"] = SPHERICAL**2


def draw_columns(numbers, starts=None):
    """Return both columns of each list for given numbers of atoms and members, counted from `starts` in a batch."""
    rng, starts = np.random.default_rng(0), starts or dict.fromkeys(numbers, 0)
    return {
        name: np.stack([starts[of] + rng.integers(0, max(numbers[of], 1), numbers[name]) for of in columns])
        for name, columns in COLUMNS.items()
    }


def make_index_lists(columns):
    """Return each list as the blocks take it, with the index of each member among the members of the same output."""
    lists = {}
    for name, ends in columns.items():
        number, ends = (torch.from_numpy(a) for a in (gemnet.compute_indices_within_lists(ends[1]), ends))
        lists[name] = {"in": ends[0], "out": ends[1], "out_agg": number}
        lists[name] |= {"edge_index": ends, "target_neighbor_idx": number}
    return lists


def draw_inputs(block, numbers, dtype="float64"):
    """Return random inputs that require gradients."""
    rng = np.random.default_rng(0)
    shapes = {name: (numbers[ROWS[name]], INPUT_WIDTHS[name.partition("_")[0]]) for name in block.inputs}
    return {n: torch.from_numpy(rng.standard_normal(s).astype(dtype)).requires_grad_() for n, s in shapes.items()}


def make_interaction_block(cls, **more):
    """Return an interaction block with the widths that its constructor accepts."""
    return cls(**{n: WIDTHS[n] for n in inspect.signature(cls).parameters if n in WIDTHS}, **more)


class FairchemBlock(torch.nn.Module):
    """An interaction block of GemNet-OC with all interactions enabled, and the basis layers of its model."""

    inputs = tuple(ROWS)

    def __init__(self):
        super().__init__()
        efficient, block, dense = gemnet.load_fairchem_modules()
        for name in ("qint", "aeint", "eaint", "tint", "h"):
            setattr(self, f"mlp_rbf_{name}", dense.Dense(RADIAL, RBF, activation=None, bias=False))
        for name in ("qint", "aeint", "eaint", "tint"):
            setattr(self, f"mlp_cbf_{name}", efficient.BasisEmbedding(RADIAL, CBF, SPHERICAL))
        self.mlp_sbf_qint = efficient.BasisEmbedding(RADIAL, SBF, SPHERICAL**2)
        self.mlp_rbf_aint = efficient.BasisEmbedding(RADIAL, RBF)
        every = {f"{name}_interaction": True for name in ("quad", "atom_edge", "edge_atom", "atom")}
        self.block = make_interaction_block(block.InteractionBlock, activation="silu", **every)

    def forward(self, x, lists):
        """Return the updated embeddings of atoms and edges; the block is called as in GemNetOC.forward."""

        def select_indices(name, rows):
            return {f"idx_{rows}_outer": lists[name]["out"], f"idx_{rows}_inner": lists[name]["out_agg"]}

        of_atoms, triplets = {"num_atoms": len(x["h"])}, lists["triplet_in"]
        qint = {
            "rad": self.mlp_rbf_qint(x["rad"]),
            "cir": self.mlp_cbf_qint(x["rad_qint"], x["cir_qint"], idx_sph_outer=triplets["out"]),
            "sph": self.mlp_sbf_qint(x["rad_sph"], x["sph"], **select_indices("quad", "sph")),
        }
        a2e = {
            "rad": self.mlp_rbf_aeint(x["rad_aeaint"]),
            "cir": self.mlp_cbf_aeint(x["rad_a2e"], x["cir_a2e"], **select_indices("a2e", "sph")),
        }
        e2a_indices = select_indices("aeaint", "rad") | select_indices("e2a", "sph") | of_atoms
        e2a = {
            "rad": self.mlp_rbf_eaint(x["rad"]),
            "cir": self.mlp_cbf_eaint(x["rad_e2a"], x["cir_e2a"], **e2a_indices),
        }
        e2e = {
            "rad": self.mlp_rbf_tint(x["rad"]),
            "cir": self.mlp_cbf_tint(x["rad_e2e"], x["cir_e2e"], **select_indices("e2e", "sph")),
        }
        return self.block(
            h=x["h"],
            m=x["m"],
            bases_qint=qint,
            bases_e2e=e2e,
            bases_a2e=a2e,
            bases_e2a=e2a,
            basis_a2a_rad=self.mlp_rbf_aint(x["rad_aint"], **select_indices("aint", "rad"), **of_atoms),
            basis_atom_update=self.mlp_rbf_h(x["rad"]),
            edge_index_main=lists["main"]["edge_index"],
            a2ee2a_graph=lists["aeaint"],
            a2a_graph=lists["aint"],
            id_swap=torch.arange(len(x["m"])) ^ 1,
            trip_idx_e2e=lists["e2e"],
            trip_idx_a2e=lists["a2e"],
            trip_idx_e2a=lists["e2a"],
            quad_idx={**lists["quad"], "trip_in_to_quad": lists["quad"]["in"], "triplet_in": triplets},
        )


@cache
def load_mattergen_modules():
    """Return MatterGen's modules, like `load_fairchem_modules`; scale factors are 1, as their file is not loaded."""
    packages = ["mattergen", "mattergen.common", "mattergen.common.gemnet", "mattergen.common.utils"]
    layers = "mattergen.common.gemnet.layers"
    wanted = [f"{layers}.{name}" for name in ("efficient", "interaction_block", "base_layers")]
    stand_ins = {
        "torch_scatter": {"scatter": gemnet.scatter_sum},
        "mattergen.common.utils.globals": {"MAX_ATOMIC_NUM": 100},
        "mattergen.common.gemnet.utils": {"read_value_json": lambda file, key: None, "update_json": None},
    }
    return load_modules(MATTERGEN.find_root(), [*packages, layers], wanted, stand_ins)


class MatterGenBlock(torch.nn.Module):
    """An interaction block of MatterGen's GemNetT, and the basis layers of its model."""

    inputs = ("h", "m", "rad", "rad_e2e", "cir_e2e")

    def __init__(self):
        super().__init__()
        efficient, block, dense = load_mattergen_modules()
        self.mlp_rbf3 = dense.Dense(RADIAL, RBF, activation=None, bias=False)
        self.mlp_cbf3 = efficient.EfficientInteractionDownProjection(SPHERICAL, RADIAL, CBF)
        self.mlp_rbf_h = dense.Dense(RADIAL, RBF, activation=None, bias=False)
        cls = block.InteractionBlockTripletsOnly
        self.block = make_interaction_block(cls, activation="swish", scale_file="none.json")

    def forward(self, x, lists):
        """Return the updated embeddings of atoms and edges; the block is called as in GemNetT.forward."""
        into, out, number = (lists["e2e"][name] for name in ("in", "out", "out_agg"))
        return self.block(
            h=x["h"],
            m=x["m"],
            rbf3=self.mlp_rbf3(x["rad"]),
            cbf3=self.mlp_cbf3(x["rad_e2e"][None], x["cir_e2e"], out, number),
            id3_ragged_idx=number,
            id_swap=torch.arange(len(x["m"])) ^ 1,
            id3_ba=into,
            id3_ca=out,
            rbf_h=self.mlp_rbf_h(x["rad"]),
            idx_s=lists["main"]["in"],
            idx_t=lists["main"]["out"],
        )


BLOCKS = {"fairchem": FairchemBlock, "mattergen": MatterGenBlock}
NUMBER_REPLACED = {"fairchem": 11, "mattergen": 1}
# Numbers of atoms and list members in a molecule, in atoms without edges, and in atoms with edges but no triplets.
MOLECULE = {"atoms": 12, "main": 60, "qint": 36, "aeaint": 48, "aint": 132}
MOLECULE |= {"e2e": 284, "a2e": 228, "e2a": 228, "triplet_in": 171, "quad": 722}
NO_EDGES = {**dict.fromkeys(MOLECULE, 0), "atoms": 3}
NO_TRIPLETS = {**NO_EDGES, "atoms": 4, **dict.fromkeys(("main", "qint", "aeaint", "aint"), 4)}


def make_block(name, dtype="float64"):
    """Return a small block with its basis layers; skip the test if the wheel is missing."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        try:
            model = BLOCKS[name]()
        except ModuleNotFoundError as error:
            pytest.skip(str(error))
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(".scale_factor"):  # 0 until fairchem fits it
                parameter.data.copy_(0.75 + torch.rand(()))
    return model.to(getattr(torch, dtype))


def draw_molecule(model, dtype="float64"):
    return draw_inputs(model, MOLECULE, dtype), make_index_lists(draw_columns(MOLECULE))


def collect_differentiable_tensors(model, x):
    return {**x, **{n: p for n, p in model.named_parameters() if p.requires_grad}}


def compute_outputs_and_gradients(model, x, lists, starts=(0, 0)):
    """Return the rows of a block's outputs from `starts`, and the gradients of their squares."""
    outputs = [o[start:] for o, start in zip(model(x, lists), starts, strict=True)]
    wanted = collect_differentiable_tensors(model, x)
    gradients = torch.autograd.grad(sum(o.square().sum() for o in outputs), wanted.values())
    names = ("h", "m", *(f"gradient of {n}" for n in wanted))
    return {n: t.detach() for n, t in zip(names, (*outputs, *gradients), strict=True)}


def estimate_tolerance(model, numbers=MOLECULE):
    """Return the allowed relative difference of two results in the norm, in machine epsilons.

    Original and converted blocks add the same terms in different orders. A sum of n terms has an error of about sqrt(n)
    eps, a random walk of n roundings. The passes through each dense layer (forward and backward) add independent errors
    of this size, so the squares of the errors add up. The factor 2 is for the two results.
    """
    terms = max(numbers[ROWS[name]] for name in model.inputs)
    layers = 2 * sum(type(layer).__name__ == "Dense" for layer in model.modules())
    return 2 * (layers * terms) ** 0.5


def assert_close(got, expected, eps):
    """Assert that each difference is at most `eps` machine epsilons of the expected value (in the norm)."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert (got[name].shape, got[name].dtype) == (value.shape, value.dtype), name
        error, norm = float((got[name] - value).norm()), float(value.norm())
        assert error <= eps * (norm or 1.0) * torch.finfo(value.dtype).eps, f"{name} differs by {error:.3g}"


def disable_padding(model):
    for layer in model.modules():
        if isinstance(layer, nn.BasisEmbedding):
            layer.padded = False


def compute_second_derivatives(model, x, lists):
    """Return gradients of a function of gradients, as in training on forces."""
    h, m = model(x, lists)
    first = torch.autograd.grad(h.square().sum() + m.square().sum(), list(x.values()), create_graph=True)
    wanted = collect_differentiable_tensors(model, x)
    return dict(zip(wanted, torch.autograd.grad(sum(g.square().sum() for g in first), wanted.values()), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "padded"), [("fairchem", True), ("fairchem", False), ("mattergen", True)])
def test_conversion_preserves_results_and_derivatives(name, padded, dtype):
    """Outputs, gradients and, in float64, second derivatives are the same before and after `convert`."""
    model = make_block(name, dtype)
    x, lists = draw_molecule(model, dtype)
    # Second derivatives have larger errors: they use twice as many layers, and squares of gradients.
    works = [(compute_outputs_and_gradients, 1)] + [(compute_second_derivatives, 2)] * (dtype == "float64")
    expected = [work(model, x, lists) for work, _ in works]
    assert all(value.norm() > 0 for value in expected[0].values())
    assert len(convert(model).replaced) == NUMBER_REPLACED[name]
    if not padded:
        disable_padding(model)
    for (work, factor), right in zip(works, expected, strict=True):
        assert_close(work(model, x, lists), right, factor * estimate_tolerance(model))


@pytest.mark.filterwarnings("ignore:Zero graph edges")
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("alone", [NO_EDGES, NO_TRIPLETS], ids=["no edges", "no triplets"])
@pytest.mark.parametrize("name", BLOCKS)
def test_converted_blocks_accept_structures_without_edges(name, alone, padded):
    """A converted block accepts structures without edges or triplets, which the original supports only in batches."""
    model = make_block(name)
    numbers = {n: MOLECULE[n] + alone[n] for n in MOLECULE}
    columns = draw_columns(MOLECULE), draw_columns(alone, MOLECULE)
    x, lists = draw_inputs(model, numbers), {n: np.concatenate([c[n] for c in columns], axis=1) for n in COLUMNS}
    starts = MOLECULE["atoms"], MOLECULE["main"]
    expected = compute_outputs_and_gradients(model, x, make_index_lists(lists), starts)
    expected |= {f"gradient of {n}": expected[f"gradient of {n}"][MOLECULE[ROWS[n]] :] for n in x}

    x = {n: value.detach()[MOLECULE[ROWS[n]] :].requires_grad_() for n, value in x.items()}
    convert(model)
    if not padded:
        disable_padding(model)
    got = compute_outputs_and_gradients(model, x, make_index_lists(draw_columns(alone)))
    assert_close(got, expected, estimate_tolerance(model, numbers))


def wrap_forward(layer):
    layer.forward = mock.Mock(wraps=layer.forward)


def replace_parameter_by_zeros(name, shape, layer):
    path, _, last = name.rpartition(".")
    setattr(layer.get_submodule(path), last, torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)))


TRIPLETS, ATOMS = "block.trip_interaction.mlp_cbf", "block.atom_interaction"
LAYERS = [("fairchem", "mlp_cbf_tint"), ("fairchem", ATOMS), ("mattergen", TRIPLETS)]
# Changes that the conversion would undo: hooks, an activation, an adapter.
STATES = [
    (lambda m: m.bilinear.linear.register_forward_hook(print), "its bilinear.linear has hooks"),
    (lambda m: setattr(m.bilinear, "_activation", torch.nn.SiLU()), "its bilinear._activation is a"),
    (lambda m: setattr(m, "bilinear", torch.nn.Sequential(m.bilinear)), "expected the Dense of fair"),
    (lambda m: m.bilinear.half(), "dtype torch.float16; expected all of torch.float32 or of torch"),
]
BILINEAR = "bilinear.linear.weight"
SHAPES = [
    ("fairchem", "mlp_cbf_tint", "weight", (6, 12), r"weight has shape \(6, 12\); expected \(6, 3, 4\)"),
    ("fairchem", TRIPLETS, BILINEAR, (7, 21), r"\(7, 21\); expected \(7, 20\)"),
    ("fairchem", TRIPLETS, "bilinear.linear.bias", (7,), f"linear.bias; expected {BILINEAR}"),
    ("fairchem", ATOMS, BILINEAR, (11, 19), r"\(11, 19\); expected \(11, 18\)"),
    ("mattergen", TRIPLETS, "weight", (9, 4, 8), r"\(9, 4, 8\); expected \(8, 4, 9\)"),
]
LEFT = [(*layer, wrap_forward, "its forward is replaced") for layer in LAYERS]
LEFT += [("fairchem", path, *state) for path in (TRIPLETS, ATOMS) for state in STATES]
LEFT += [(name, path, partial(replace_parameter_by_zeros, *change), reason) for name, path, *change, reason in SHAPES]


@pytest.mark.parametrize(("name", "path", "change", "reason"), LEFT)
def test_changed_layers_are_skipped(name, path, change, reason):
    """A layer that is not as its constructor makes it is left unchanged; the other layers are converted."""
    model = make_block(name)
    x, lists = draw_molecule(model)
    expected = compute_outputs_and_gradients(model, x, lists)
    layer = model.get_submodule(path)
    change(layer)
    kind = type(layer)
    conversion = convert(model)
    assert [left.path for left in conversion.skipped] == [path]
    assert re.search(reason, conversion.skipped[0].note), conversion.skipped[0].note
    assert type(layer) is kind
    assert len(conversion.replaced) == NUMBER_REPLACED[name] - 1
    if change is wrap_forward:
        assert_close(compute_outputs_and_gradients(model, x, lists), expected, estimate_tolerance(model))
        layer.forward.assert_called_once()


def test_hooks_of_called_sublayers_allow_conversion():
    model = make_block("fairchem")
    model.get_submodule(ATOMS).up_projection.register_forward_hook(lambda module, args, out: None)
    assert convert(model).skipped == []


def test_older_layers_are_converted_if_their_forward_is_known():
    """GemNet-dT's layer, which MatterGen adopted, is converted; the graph-parallel GemNet's is left unchanged."""
    make_block("fairchem")  # skips the test if the wheel is missing
    gp_note = (
        "its forward takes basis, m, id_reduce, id_ragged_idx, edge_offset, Kmax; expected basis, m, id_reduce, id_"
    )
    for folder, note in (("gemnet", "trigraph.torch.layers.gemnet.MatterGenBilinear"), ("gemnet_gp", gp_note)):
        packages = [*gemnet.PACKAGES[:3], *(f"fairchem.core.models.{folder}{name}" for name in ("", ".layers"))]
        (module,) = load_modules(gemnet.FAIRCHEM.find_root(), packages, [f"{packages[-1]}.efficient"])
        layer = module.EfficientInteractionBilinear(8, 4, 9).double()
        each = torch.arange(5).repeat_interleave(2)
        arguments = (torch.rand(5, 4, 3).double(), torch.rand(5, 3, 2).double()), torch.rand(10, 8).double(), each
        expected = layer(*arguments, torch.arange(2).repeat(5)) if folder == "gemnet" else None
        conversion = convert(layer)
        (examined,) = conversion.replaced if folder == "gemnet" else conversion.skipped
        assert examined.note.startswith(note)
        if folder == "gemnet":
            assert torch.allclose(layer(*arguments, torch.arange(2).repeat(5)), expected, rtol=1e-13)


BAD = [
    ({"rad_basis": torch.ones(3).double()}, "ValueError: PairInteraction: rad_basis has shape (3,); expected"),
    ({"rad_basis": torch.ones(2, 3).double()}, "ValueError: ...rad_W1 has shape (2, 3, 1); expected ... (2, 2, 1)"),
    ({"rad_basis": torch.ones(3, 2, 1).double()}, "ValueError: ...rad_basis has shape (3, 2, 1); expected ... (2, 2"),
    ({"edge_index": torch.tensor([[0, 1], [1, 5]])}, "ValueError: PairInteraction: edge_index[1]: ... is 5; expected"),
    ({"edge_index": torch.tensor([[0, 1], [1, 1]])}, "ValueError: ...target_neighbor_idx is equal for two members"),
    ({"target_neighbor_idx": torch.tensor([0, -1])}, "ValueError: ...target_neighbor_idx[1] is -1; expected 0 <="),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_pair_interaction_refuses_bad_input(changes, text):
    layer = make_block("fairchem").block.atom_interaction
    arguments = {
        "h": torch.ones(2, 10).double(),
        "rad_basis": torch.ones(2, 2, 1).double(),
        "edge_index": torch.tensor([[0, 1], [1, 0]]),
        "target_neighbor_idx": torch.tensor([0, 0]),
    }
    expected = layer(**arguments)
    convert(layer)
    assert torch.allclose(layer(**arguments), expected, rtol=1e-13)
    with expect_error(text):
        layer(**arguments | changes)

"""Tests that `convert` preserves the results of GemNet blocks in fairchem and MatterGen (from their wheels)."""

import re
from unittest import mock

import numpy as np
import pytest
from expect_error import expect_error

torch = pytest.importorskip("torch")

import gemnet_blocks as blocks  # noqa: E402
from tensors import convert_to_tensors  # noqa: E402

from trigraph.benchmarks.gemnet import FAIRCHEM, PACKAGES  # noqa: E402
from trigraph.benchmarks.originals import load_modules  # noqa: E402
from trigraph.torch import convert, nn  # noqa: E402
from trigraph.torch.layers import gemnet  # noqa: E402

MOLECULE = blocks.draw_neighbor_pairs(12, {"main": 5, "qint": 3, "aeaint": 4, "aint": 11})
ORIGINALS = {"fairchem": FAIRCHEM, "mattergen": blocks.MATTERGEN}
NUMBER_REPLACED = {"fairchem": 11, "mattergen": 1}
both_originals = pytest.mark.parametrize("name", ORIGINALS)


def make_block(name, dtype="float64"):
    """Return a small block with its basis layers; skip the test if the wheel is missing."""
    try:
        ORIGINALS[name].find_root()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    return blocks.BLOCKS[name]().to(getattr(torch, dtype))


def draw_inputs(model, structure=MOLECULE, dtype="float64"):
    return blocks.draw_inputs_and_index_lists(model, structure, dtype)


def collect_differentiable_tensors(model, x):
    return {**x, **{n: p for n, p in model.named_parameters() if p.requires_grad}}


def compute_outputs_and_gradients(model, x, lists, seeds=None):
    """Return a block's outputs, and the gradients of all inputs and parameters for the output cotangents `seeds`."""
    outputs = dict(zip(("h", "m"), model(x, lists), strict=True))
    if seeds is None:
        generator = torch.Generator().manual_seed(1)
        seeds = {n: torch.randn(o.shape, generator=generator, dtype=o.dtype) for n, o in outputs.items()}
    wanted = collect_differentiable_tensors(model, x)
    gradients = torch.autograd.grad(list(outputs.values()), list(wanted.values()), [seeds[n] for n in outputs])
    return {n: o.detach() for n, o in outputs.items()} | {
        f"gradient of {n}": g for n, g in zip(wanted, gradients, strict=True)
    }


def estimate_tolerance(model, structure=MOLECULE):
    """Return the allowed relative difference of two results in the norm, in machine epsilons.

    Original and converted blocks add the same terms in different orders. A sum of n terms has an error of about sqrt(n)
    eps, a random walk of n roundings. The passes through each dense layer (forward and backward) add independent errors
    of this size, so the squares of the errors add up. The factor 2 is for the two results.
    """
    terms = max(len(atoms) for atoms, _ in model.describe_inputs(structure).values())
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
    x, lists = draw_inputs(model, dtype=dtype)
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
@pytest.mark.parametrize(("num_atoms", "pairs"), [(3, np.zeros((2, 0), np.int64)), (4, np.array([[0, 2], [1, 3]]))])
@both_originals
def test_converted_blocks_accept_structures_without_edges(name, num_atoms, pairs, padded):
    """A converted block accepts structures without edges or triplets, which the original supports only in batches."""
    model = make_block(name)
    alone = blocks.NeighborPairs(num_atoms, dict.fromkeys(MOLECULE.pairs, pairs))
    beside = MOLECULE + alone
    x, lists = draw_inputs(model, beside)
    own = {n: torch.from_numpy(atoms >= MOLECULE.num_atoms) for n, (atoms, _) in model.describe_inputs(beside).items()}
    generator = torch.Generator().manual_seed(1)
    seeds = {n: torch.randn(x[n].shape, generator=generator, dtype=torch.float64) * own[n][:, None] for n in ("h", "m")}
    expected = compute_outputs_and_gradients(model, x, lists, seeds)
    for n, rows in own.items():
        expected[f"gradient of {n}"] = expected[f"gradient of {n}"][rows]
    expected |= {n: expected[n][own[n]] for n in ("h", "m")}

    x = {n: value.detach()[own[n]].requires_grad_() for n, value in x.items()}
    lists, seeds = convert_to_tensors(alone.index_lists()), {n: g[own[n]] for n, g in seeds.items()}
    convert(model)
    if not padded:
        disable_padding(model)
    assert_close(compute_outputs_and_gradients(model, x, lists, seeds), expected, estimate_tolerance(model, beside))


def assign_derived_class(layer):
    layer.__class__ = type("Mine", (type(layer),), {})


def wrap_forward(layer):
    layer.forward = mock.Mock(wraps=layer.forward)


def make_parameter_replacer(name, *shape):
    """Return a function that replaces a parameter of a layer by zeros of another shape."""

    def replace_parameter_by_zeros(layer):
        path, _, last = name.rpartition(".")
        setattr(layer.get_submodule(path), last, torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)))

    return replace_parameter_by_zeros


TRIPLETS, ATOMS = "block.trip_interaction.mlp_cbf", "block.atom_interaction"
LAYERS = [("fairchem", "mlp_cbf_tint"), ("fairchem", ATOMS), ("mattergen", TRIPLETS)]
# Changes that the conversion would undo: hooks, an activation, an adapter.
STATES = [
    (lambda m: m.bilinear.linear.register_forward_hook(print), "its bilinear.linear has hooks"),
    (lambda m: setattr(m.bilinear, "_activation", torch.nn.SiLU()), "its bilinear._activation is a"),
    (lambda m: setattr(m, "bilinear", torch.nn.Sequential(m.bilinear)), "expected the Dense of fair"),
    (lambda m: m.bilinear.half(), "dtype torch.float16; expected all of torch.float32 or of torch"),
]
WEIGHTS = [
    (
        "fairchem",
        "mlp_cbf_tint",
        make_parameter_replacer("weight", 6, 12),
        r"weight has shape \(6, 12\); expected \(6, 3, 4\)",
    ),
    ("fairchem", TRIPLETS, make_parameter_replacer("bilinear.linear.weight", 7, 21), r"\(7, 21\); expected \(7, 20\)"),
    (
        "fairchem",
        TRIPLETS,
        make_parameter_replacer("bilinear.linear.bias", 7),
        "linear.bias; expected bilinear.linear.weight",
    ),
    ("fairchem", ATOMS, make_parameter_replacer("bilinear.linear.weight", 11, 19), "is a multiple of 9"),
    ("mattergen", TRIPLETS, make_parameter_replacer("weight", 9, 4, 8), r"\(9, 4, 8\); expected \(8, 4, 9\)"),
]
CLASSES = "(BasisEmbedding|PairInteraction|EfficientInteractionBilinear)"
LEFT = [(*layer, assign_derived_class, f"is derived from {CLASSES} and may change its methods") for layer in LAYERS]
LEFT += [(*layer, wrap_forward, "its forward is replaced") for layer in LAYERS]
LEFT += [("fairchem", path, *state) for path in (TRIPLETS, ATOMS) for state in STATES] + WEIGHTS


@pytest.mark.parametrize(("name", "path", "change", "reason"), LEFT)
def test_changed_layers_stay_unconverted(name, path, change, reason):
    """A layer that is not as its constructor makes it is left unchanged; the other layers are converted."""
    model = make_block(name)
    x, lists = draw_inputs(model)
    expected = compute_outputs_and_gradients(model, x, lists)
    layer = model.get_submodule(path)
    change(layer)
    kind = type(layer)
    conversion = convert(model)
    assert [left.path for left in conversion.left] == [path]
    assert re.search(reason, conversion.left[0].note), conversion.left[0].note
    assert type(layer) is kind
    assert len(conversion.replaced) == NUMBER_REPLACED[name] - 1
    if change in (assign_derived_class, wrap_forward):
        assert_close(compute_outputs_and_gradients(model, x, lists), expected, estimate_tolerance(model))
    if change is wrap_forward:
        layer.forward.assert_called_once()


def test_hooks_of_called_sublayers_allow_conversion():
    model = make_block("fairchem")
    model.get_submodule(ATOMS).up_projection.register_forward_hook(lambda module, args, out: None)
    assert convert(model).left == []


def load_older_bilinear_layer(folder):
    """Return the bilinear layer of fairchem's older GemNets."""
    make_block("fairchem")  # skips the test if the wheel is missing
    packages = [*PACKAGES[:3], *(f"fairchem.core.models.{folder}{name}" for name in ("", ".layers"))]
    (module,) = load_modules(FAIRCHEM.find_root(), packages, [f"{packages[-1]}.efficient"])
    return module.EfficientInteractionBilinear(8, 4, 9).double()


def test_gemnet_dt_layer_is_converted_correctly():
    layer, triplets = load_older_bilinear_layer("gemnet"), MOLECULE.index_lists()["e2e"]
    edges = MOLECULE.directed_edges("main").shape[1]
    index = convert_to_tensors({"id_reduce": triplets["out"], "id_ragged_idx": triplets["out_agg"]})
    generator = torch.Generator().manual_seed(0)
    sizes = ((edges, 4, 3), (edges, 3, int(triplets["out_agg"].max()) + 1), (len(triplets["out"]), 8))
    x = [torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes]

    def compute_output_and_gradients():
        out = layer(tuple(x[:2]), x[2], **index)
        return {str(n): v.detach() for n, v in enumerate((out, *torch.autograd.grad(out.sum(), [*x, layer.weight])))}

    expected = compute_output_and_gradients()
    assert len(convert(layer).replaced) == 1
    assert_close(compute_output_and_gradients(), expected, 2 * sizes[2][0] ** 0.5)


def test_layer_with_another_forward_stays_unconverted():
    """The graph-parallel GemNet's layer, whose name and weights are the same but not its forward, is left unchanged."""
    (left,) = convert(load_older_bilinear_layer("gemnet_gp")).left
    arguments = "basis, m, id_reduce, id_ragged_idx"
    assert left.note.startswith(f"its forward takes {arguments}, edge_offset, Kmax; expected {arguments}")


BAD = [
    ({"rad_basis": torch.ones(3).double()}, "ValueError: PairInteraction: rad_basis has shape (3,); expected"),
    ({"edge_index": torch.tensor([[0, 1], [1, 5]])}, "IndexError: index 5 is out of bounds"),
    ({"rad_basis": torch.ones(2, 3).double()}, "ValueError: ...rad_W1 has shape (2, 3, 1); expected ... (2, 2, 1)"),
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
    assert type(layer) is gemnet.PairInteraction
    assert torch.allclose(layer(**arguments), expected, rtol=1e-13)
    with expect_error(text):
        layer(**arguments | changes)

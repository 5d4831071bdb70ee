"""Tests of GemNet-OC's layers, with and without padding: golden vectors from fairchem, sums, invalid input."""

import pickle

import numpy as np
import pytest
from expect_error import expect_error

torch = pytest.importorskip("torch")

from compiled_programs import compiled_whole  # noqa: E402
from tensors import convert_to_tensors  # noqa: E402

from trigraph import Segments, basis_embedding_fwd, interaction_bilinear_fwd  # noqa: E402
from trigraph.benchmarks.gemnet import compute_indices_within_lists  # noqa: E402
from trigraph.torch import nn  # noqa: E402
from trigraph.verification import golden  # noqa: E402

VECTORS = ("gemnet_triplet", "gemnet_quadruplet_49", "gemnet_edge_to_atom")
EDGES, ATOMS, RADIAL, SPHERICAL, INTERM, EMB_IN, EMB_OUT = 9, 5, 4, 3, 2, 6, 7
each_form = pytest.mark.parametrize("padded", [True, False])


def read_golden_vectors(name):
    if name not in golden.find_golden_files():
        assert not golden.list_missing_vector_failures()
        pytest.skip(f"golden vectors {name}.npz are not on this machine")
    with np.load(golden.find_golden_files()[name]) as archive:
        return dict(archive)


class UnsortedTripletCase:
    """Random arguments with unsorted triplets; some edges and atoms have no triplets."""

    def __init__(self, dtype=np.float64, index=np.int64):
        rng = np.random.default_rng(0)
        self.outer = rng.integers(1, EDGES, 23).astype(index)
        self.inner = compute_indices_within_lists(self.outer).astype(index)
        self.atom = rng.integers(0, ATOMS - 1, EDGES).astype(index)
        self.number = compute_indices_within_lists(self.atom).astype(index)
        shapes = {
            "weight": (RADIAL, SPHERICAL, INTERM),
            "radial": (INTERM, RADIAL),
            "rad_basis": (EDGES, RADIAL),
            "sph_basis": (23, SPHERICAL),
            "m": (23, EMB_IN),
            "dense": (EMB_OUT, INTERM * EMB_IN),
        }
        for name, shape in shapes.items():
            setattr(self, name, rng.standard_normal(shape).astype(dtype))
        self.lists = {"idx_sph_outer": self.outer, "idx_sph_inner": self.inner}
        self.atoms = {"idx_rad_outer": self.atom, "idx_rad_inner": self.number, "num_atoms": ATOMS}


def make_embedding_layer(weight, padded=True):
    """Return a layer with the given weight, loaded from a state_dict with fairchem's name for it."""
    interm, radial, *spherical = weight.shape if weight.ndim == 2 else (weight.shape[2], *weight.shape[:2])
    layer = nn.BasisEmbedding(radial, interm, *spherical, padded=padded).to(convert_to_tensors(weight).dtype)
    layer.load_state_dict({"weight": convert_to_tensors(weight)}, strict=True)
    return layer


def make_bilinear_layer(weight, emb_in=EMB_IN):
    layer = nn.EfficientInteractionBilinear(emb_in, weight.shape[1] // emb_in, len(weight))
    weight = convert_to_tensors(weight)
    layer.to(weight.dtype).load_state_dict({"bilinear.linear.weight": weight}, strict=True)
    return layer


def apply_embedding(padded, weight, *arrays, **lists):
    return make_embedding_layer(weight, padded)(*convert_to_tensors(arrays), **convert_to_tensors(lists))


def apply_bilinear(weight, basis, m, *lists, **more):
    interm = basis[0].shape[1] if isinstance(basis, tuple) else INTERM
    layer = make_bilinear_layer(weight, weight.shape[1] // interm)
    return layer(
        convert_to_tensors(basis), convert_to_tensors(m), *convert_to_tensors(lists), **convert_to_tensors(more)
    )


def assert_close(got, expected, eps=1e-12):
    got = got.detach().numpy()
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert np.allclose(got, expected, rtol=eps, atol=eps * abs(expected).max(initial=0))


@pytest.mark.parametrize("name", VECTORS)
@each_form
def test_layers_reproduce_fairchem_results(padded, name):
    """With fairchem's weights, the layers reproduce fairchem's results."""
    z = read_golden_vectors(name)
    lists = {"idx_sph_outer": z["in_idx_agg_outer"], "idx_sph_inner": z["in_idx_agg_inner"]}
    atoms, sums = {}, {}
    if "in_num_atoms" in z:
        outer, inner, number = z["in_idx_agg2_outer"], z["in_idx_agg2_inner"], int(z["in_num_atoms"])
        atoms = {"idx_rad_outer": outer, "idx_rad_inner": inner, "num_atoms": number}
        sums = {"idx_agg2_outer": outer, "idx_agg2_inner": inner, "agg2_out_size": number}
        if padded:
            radial = apply_embedding(padded, z["in_weight_radial_only"], z["in_rad_basis"], **atoms)
            assert_close(radial, z["out_radial_only_padded"])
    inputs = (z["in_basis_weight"], z["in_rad_basis"], z["in_sph_basis"])
    basis = apply_embedding(padded, *inputs, **lists, **atoms)
    if padded:
        assert_close(basis[0], z["out_rad_W1"])
        assert_close(basis[1], z["out_sph_padded"], 0)
    assert_close(apply_bilinear(z["in_bilinear_weight"], basis, z["in_m"], *lists.values(), **sums), z["out_m_ca"])
    assert_close(apply_embedding(padded, z["in_weight_radial_only"], z["in_rad_basis"]), z["out_radial_only"])
    if "out_sph_W1_per_triplet" in z:
        assert_close(apply_embedding(padded, *inputs, idx_sph_outer=z["in_idx_agg_outer"]), z["out_sph_W1_per_triplet"])


@pytest.mark.parametrize("edges", [0, 4])
@each_form
def test_empty_lists_give_zero_results(padded, edges):
    """Results for empty lists of edges, triplets or slots are zero; fairchem's layers fail for some of these lists."""
    none, each = np.zeros(0, np.int64), np.arange(edges)
    ones = np.ones((RADIAL, SPHERICAL, INTERM)), np.ones((edges, RADIAL)), np.ones((0, SPHERICAL))
    dense, m = np.ones((EMB_OUT, INTERM * EMB_IN)), np.ones((0, EMB_IN))
    assert apply_embedding(padded, *ones, idx_sph_outer=none).shape == (0, INTERM)
    basis = apply_embedding(padded, *ones, idx_sph_outer=none, idx_sph_inner=none)
    if padded:
        assert [b.shape for b in basis] == [(edges, INTERM, SPHERICAL), (edges, SPHERICAL, 0)]
    assert_close(apply_bilinear(dense, basis, m, none, none), np.zeros((edges, EMB_OUT)), 0)
    basis = apply_embedding(padded, *ones, 0 * each, each, none, none, 3)
    if padded:
        assert basis[0].shape == (3, INTERM, edges * SPHERICAL)
    assert_close(apply_bilinear(dense, basis, m, none, none, 0 * each, each, 3), np.zeros((3, EMB_OUT)), 0)


# Changed arguments and the expected errors.
BAD_BASIS = [
    ({"rad_basis": np.ndarray.tolist}, "TypeError: ...rad_basis is a list; expected a..."),
    ({"rad_basis": lambda x: x[:, 1:]}, "ValueError: ...has shape (...); expected ..."),
    ({"sph_basis": lambda x: x[:, 1:]}, "ValueError: ...sph_basis has shape (23, 2); expected ... = (23, 3)"),
    ({"sph_basis": lambda x: x.astype(np.float16)}, "TypeError: ...sph_basis has dtype ...float16; expected"),
    ({"sph_basis": None}, "ValueError: ...idx_sph_inner is given, but sph_basis is None; expected both or none"),
    ({"idx_sph_inner": None}, "ValueError: ...idx_rad_inner and sph_basis are given; expected idx_sph_inner, too"),
    (
        {"idx_sph_inner": None, "weight": UnsortedTripletCase().radial},
        "ValueError: ...for a sph_basis without idx_sph_inner",
    ),
    ({"idx_sph_outer": lambda i: i[1:]}, "ValueError: ...idx_sph_outer has ...22...; expected ...num_triplets"),
    ({"idx_sph_outer": lambda i: i + 1}, "ValueError: ...idx_sph_outer... is 9; expected 0 <= ... = 9"),
    ({"idx_sph_inner": lambda i: i - 1}, "ValueError: ...idx_sph_inner[...] is -1; expected 0 <= idx_sph_inner < "),
    (
        {"idx_sph_inner": lambda i: 0 * i},
        "ValueError: ...idx_sph_inner is equal for two members of a row; expected different",
    ),
    ({"idx_sph_inner": lambda i: i + 0.0}, "TypeError: ...idx_sph_inner ...float64; expected ..."),
    ({"idx_sph_inner": lambda i: i + 10**12}, "MemoryError: ...9 * (max(idx_sph_inner) + 1) is"),
    ({"idx_rad_inner": lambda i: 0 * i}, "ValueError: ...idx_rad_inner is equal for two members of a row; expected"),
    ({"num_atoms": None}, "TypeError: ...num_atoms is a NoneType; expected an int"),
]
BAD_BILINEAR = [
    ({"basis": np.ones(3)}, "TypeError: ...basis is a ...; expected a tuple of two ..."),
    ({"basis": lambda b: (b[0], b[1][:, :, 1:])}, "ValueError: ...sph has shape ...; expected ...Kmax"),
    ({"m": lambda m: m[1:]}, "ValueError: ...idx_agg_outer has ...23...; expected ...num_triplets... = ...22"),
    ({"m": lambda m: m[:, 1:]}, "ValueError: ...has shape (...); expected ..."),
    ({"basis": lambda b: (b[0], b[1][:, :2])}, "ValueError: ...rad_W1 has shape (9, 2, 3); expected ... = (9, 2, 2)"),
    ({"idx_agg_inner": lambda i: i - 1}, "ValueError: ...idx_agg_inner[...] is -1; expected 0 <= idx_agg_inner <"),
    ({"idx_agg_inner": lambda i: i + 1}, "ValueError: ...sph has shape (9, 3, ...); expected ...Kmax"),
    ({"idx_agg_inner": lambda i: 0 * i}, "ValueError: ...idx_agg_inner is equal for two members of a row"),
    ({"idx_agg2_outer": np.zeros(EDGES, int)}, "TypeError: ...is a NoneType; expected ..."),
    (
        {"idx_agg2_outer": np.zeros(EDGES, int), "idx_agg2_inner": np.arange(EDGES), "agg2_out_size": 2},
        "ValueError: ...rad_W1 has shape (9, 2, 3); expected (agg2_out_size, interm, Kmax2*num_spherical) = (2, 2, 27)",
    ),
]
BAD = [(apply_embedding, *bad) for bad in BAD_BASIS] + [(apply_bilinear, *bad) for bad in BAD_BILINEAR]
LAYER_NAMES = {apply_embedding: "BasisEmbedding", apply_bilinear: "EfficientInteractionBilinear"}


@pytest.mark.parametrize(("layer", "changes", "text"), BAD)
def test_gemnet_layers_refuse_bad_input(layer, changes, text):
    case = UnsortedTripletCase()
    given = {n: getattr(case, n) for n in ("weight", "rad_basis", "sph_basis")} | case.lists
    if layer is apply_embedding:
        given |= case.atoms | {"padded": True}
    else:
        given = {"weight": case.dense, "basis": apply_embedding(True, **given), "m": case.m}
        given |= {"idx_agg_outer": case.outer, "idx_agg_inner": case.inner}
    given |= {n: change(given[n]) if callable(change) else change for n, change in changes.items()}
    with expect_error(text.replace(": ", f": {LAYER_NAMES[layer]}", 1)):
        layer(**given)


@pytest.mark.parametrize("slot", [2**62, 2**63 - 1, 2**48])
def test_slots_beyond_memory_are_refused(slot):
    """Indices and atom counts that would need too much memory raise ValueError or MemoryError, never OverflowError."""
    weight, rad_basis, outer = np.ones((4, 2)), np.ones((2, 2)), np.array([0, 1])
    for slots, number, text in (
        (np.array([0, slot]), 2, f"ValueError: BasisEmbedding: idx_rad_inner[1] is {slot}; expected 0 <= idx_rad"),
        (outer, 2 * slot, f"ValueError: BasisEmbedding: ... is {2 * slot}; expected at most "),
        (np.array([0, 10**12]), 2, "MemoryError: ...2 * (max(idx_rad_inner) + 1) is 2000000000002, whose arr"),
        (outer, 10**12, "MemoryError: BasisEmbedding: ... is 1000000000000, whose arrays"),
    ):
        with expect_error(text):
            apply_embedding(True, weight, rad_basis, None, outer, slots, num_atoms=number)


@pytest.mark.parametrize("into_atoms", [False, True])
def test_padded_and_unpadded_layers_agree_with_operators(into_atoms):
    """Layers agree with the operators for padded lists, unpadded lists and Segments; the gradients agree, too."""
    case = UnsortedTripletCase(index=np.int32)
    atoms = case.atoms if into_atoms else {}
    triplets, by_atom = Segments(case.outer, EDGES), Segments(case.atom, ATOMS)
    rad_W1 = basis_embedding_fwd(case.rad_basis, case.weight)
    graphs = triplets, by_atom if into_atoms else None
    expected = interaction_bilinear_fwd(rad_W1, case.sph_basis, case.m, case.dense, *graphs)
    rad, sph, m = (convert_to_tensors(a).requires_grad_() for a in (case.rad_basis, case.sph_basis, case.m))
    layer, gradients = make_bilinear_layer(case.dense), []
    g = convert_to_tensors(np.random.default_rng(5).standard_normal(expected.shape))
    for padded, inner, number in ((True, case.inner, case.number), (False, None, None)):
        embed = make_embedding_layer(case.weight, padded)
        got = embed(rad, sph, **convert_to_tensors({**case.lists, **atoms}))
        by_atom_lists = (case.atom, number, ATOMS) if into_atoms else ()
        out = layer(got, m, *convert_to_tensors((case.outer, inner, *by_atom_lists)))
        assert_close(out, expected, 1e-13)
        gradients.append(torch.autograd.grad(out, [rad, sph, m, embed.weight, layer.weight], g))
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b.numpy(), 1e-13)
    assert_close(layer(got, m, triplets, None, *((by_atom, None, ATOMS) if into_atoms else ())), expected, 1e-13)


@compiled_whole
def test_compiled_layers_agree_and_pickles_keep_weights():
    case = UnsortedTripletCase()
    triplets, atoms = Segments(case.outer, EDGES), Segments(case.atom, ATOMS)
    inner = convert_to_tensors(case.inner)
    embed, interact = make_embedding_layer(case.weight, padded=False), make_bilinear_layer(case.dense)

    def embed_and_interact(rad, sph, m):
        basis = embed(rad, sph, idx_sph_outer=triplets, idx_sph_inner=inner)
        return interact(basis, m, triplets, None, atoms, None, ATOMS)

    inputs = [convert_to_tensors(a).requires_grad_() for a in (case.rad_basis, case.sph_basis, case.m)]
    expected = embed_and_interact(*inputs)
    got = torch.compile(embed_and_interact, fullgraph=True, backend="aot_eager")(*inputs)
    assert_close(got, expected.detach().numpy(), 1e-13)
    for a, b in zip(*(torch.autograd.grad(o.square().sum(), inputs) for o in (got, expected)), strict=True):
        assert_close(a, b.numpy(), 1e-13)
    for layer in (embed, interact):
        assert torch.equal(pickle.loads(pickle.dumps(layer)).weight, layer.weight)


def test_initial_weights_have_zero_mean_and_he_variance():
    """Initial weights have mean 0 over the summation axis, and the variance of He initialisation."""
    torch.manual_seed(0)
    for layer in (nn.BasisEmbedding(16, 8, 7), nn.BasisEmbedding(16, 8), nn.EfficientInteractionBilinear(6, 4, 9)):
        weight = layer.weight
        summed = weight.flatten(0, 1).T if weight.dim() == 3 else weight
        assert torch.allclose(summed.mean(1), torch.zeros(len(summed)), atol=1e-6)
        assert torch.allclose(summed.var(1) * summed.shape[1], torch.ones(len(summed)), atol=1e-2)
    assert torch.isfinite(nn.BasisEmbedding(1, 8).weight).all()


@pytest.mark.parametrize("padded", [True, False])
def test_autocast_takes_bases_of_two_dtypes(padded):
    """Under autocast, one basis may be bfloat16 and the other float32; the results are float32."""
    layer, edge, number = nn.BasisEmbedding(4, 2, 3, padded), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    rad_basis, sph_basis = torch.rand(2, 4).bfloat16(), torch.rand(3, 3)
    for numbers in ({"idx_sph_inner": number}, {}):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = layer(rad_basis, sph_basis, idx_sph_outer=edge, **numbers)
        expected = layer(rad_basis.float(), sph_basis, idx_sph_outer=edge, **numbers)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))

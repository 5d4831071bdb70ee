"""GemNet-OC's layers in torch: golden vectors of fairchem, the same sums as in NumPy, derivatives, bad input."""

import pickle

import numpy as np
import pytest
from padded_gemnet import ATOMS, EDGES, EMB_IN, EMB_OUT, INTERM, RADIAL, SPHERICAL, VECTORS, Padded, vectors
from raising import raising

torch = pytest.importorskip("torch")

from compiled_programs import compiled_whole  # noqa: E402

from trigraph import Segments  # noqa: E402
from trigraph.compat.gemnet import basis_embedding, interaction_bilinear  # noqa: E402
from trigraph.torch import nn  # noqa: E402


def close(got, expected, eps=1e-13):
    expected = np.asarray(expected)
    assert tuple(got.shape) == expected.shape
    assert np.allclose(got.detach(), expected, rtol=eps, atol=eps * abs(expected).max(initial=0))


def embedding(weight, padded=True):
    """Return a layer with this weight, under fairchem's name in the state_dict."""
    interm, radial, *spherical = weight.shape if weight.ndim == 2 else (weight.shape[2], *weight.shape[:2])
    layer = nn.BasisEmbedding(radial, interm, *spherical, padded=padded)
    layer = layer.to(torch.from_numpy(weight).dtype)
    layer.load_state_dict({"weight": torch.from_numpy(weight)}, strict=True)
    return layer


def bilinear(weight, emb_in):
    layer = nn.EfficientInteractionBilinear(emb_in, weight.shape[1] // emb_in, len(weight))
    layer = layer.to(torch.from_numpy(weight).dtype)
    layer.load_state_dict({"bilinear.linear.weight": torch.from_numpy(weight)}, strict=True)
    return layer


def tensors(mapping):
    return {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in mapping.items()}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", VECTORS)
def test_golden(name, padded):
    """fairchem's weights give fairchem's results."""
    z = tensors(vectors(name))
    lists = {"idx_sph_outer": z["in_idx_agg_outer"], "idx_sph_inner": z["in_idx_agg_inner"]}
    atoms, sums = {}, {}
    if "in_num_atoms" in z:
        outer, inner, number = z["in_idx_agg2_outer"], z["in_idx_agg2_inner"], int(z["in_num_atoms"])
        atoms = {"idx_rad_outer": outer, "idx_rad_inner": inner, "num_atoms": number}
        sums = {"idx_agg2_outer": outer, "idx_agg2_inner": inner, "agg2_out_size": number}
    layer = embedding(z["in_basis_weight"].numpy(), padded)
    basis = layer(z["in_rad_basis"], z["in_sph_basis"], **lists, **atoms)
    interact = bilinear(z["in_bilinear_weight"].numpy(), z["in_m"].shape[1])
    close(interact(basis, z["in_m"], *lists.values(), **sums), z["out_m_ca"], 1e-12)
    close(embedding(z["in_weight_radial_only"].numpy())(z["in_rad_basis"]), z["out_radial_only"], 1e-12)
    if "out_sph_W1_per_triplet" in z:
        got = layer(z["in_rad_basis"], z["in_sph_basis"], idx_sph_outer=z["in_idx_agg_outer"])
        close(got, z["out_sph_W1_per_triplet"], 1e-12)
    if padded:
        close(basis[0], z["out_rad_W1"], 1e-12)
        close(basis[1], z["out_sph_padded"], 0)
        if atoms:
            radial = embedding(z["in_weight_radial_only"].numpy())
            close(radial(z["in_rad_basis"], **atoms), z["out_radial_only_padded"], 1e-12)


@pytest.mark.parametrize("into_atoms", [False, True])
def test_sums_of_either_kind(into_atoms):
    """Padded lists, lists without padding and Segments give the same sums and gradients."""
    case = Padded(index=np.int32)
    atoms = case.atoms if into_atoms else {}
    basis = basis_embedding(case.weight, case.rad_basis, case.sph_basis, **case.lists, **atoms)
    sums = (case.atom, case.number, ATOMS) if into_atoms else ()
    expected = interaction_bilinear(case.dense, basis, case.m, case.outer, case.inner, *sums)
    rad, sph, m = (torch.from_numpy(a).requires_grad_() for a in (case.rad_basis, case.sph_basis, case.m))
    interact, gradients = bilinear(case.dense, EMB_IN), []
    g = torch.from_numpy(np.random.default_rng(5).standard_normal(expected.shape))
    for padded, inner, number in ((True, case.inner, case.number), (False, None, None)):
        embed = embedding(case.weight, padded)
        got = embed(rad, sph, **tensors({**case.lists, **atoms}))
        numbers = (case.outer, inner, *((case.atom, number, ATOMS) if into_atoms else ()))
        out = interact(got, m, *(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in numbers))
        close(out, expected)
        gradients.append(torch.autograd.grad(out, [rad, sph, m, embed.weight, interact.weight], g))
    for a, b in zip(*gradients, strict=True):
        close(a, b)
    triplets, by_atom = Segments(case.outer, EDGES), Segments(case.atom, ATOMS)
    close(interact(got, m, triplets, None, *((by_atom, None, ATOMS) if into_atoms else ())), expected)


@compiled_whole
def test_compiled_and_copied():
    case = Padded()
    triplets, atoms = Segments(case.outer, EDGES), Segments(case.atom, ATOMS)
    inner = torch.from_numpy(case.inner)
    embed, interact = embedding(case.weight, padded=False), bilinear(case.dense, EMB_IN)

    def model(rad, sph, m):
        basis = embed(rad, sph, idx_sph_outer=triplets, idx_sph_inner=inner)
        return interact(basis, m, triplets, None, atoms, None, ATOMS)

    inputs = [torch.from_numpy(a).requires_grad_() for a in (case.rad_basis, case.sph_basis, case.m)]
    expected = model(*inputs)
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(*inputs)
    close(got, expected.detach())
    pairs = zip(*(torch.autograd.grad(o.square().sum(), inputs) for o in (got, expected)), strict=True)
    for a, b in pairs:
        close(a, b)
    for layer in (embed, interact):
        assert torch.equal(pickle.loads(pickle.dumps(layer)).weight, layer.weight)


@pytest.mark.parametrize("num_edges", [0, 4])
@pytest.mark.parametrize("padded", [True, False])
def test_empty_lists(padded, num_edges):
    """Lists without edges, triplets or slots give zeros; the original fails for some of them."""
    none, each = torch.zeros(0, dtype=torch.int64), torch.arange(num_edges)
    embed = nn.BasisEmbedding(RADIAL, INTERM, SPHERICAL, padded=padded)
    interact = nn.EfficientInteractionBilinear(EMB_IN, INTERM, EMB_OUT)
    rad, sph, m = torch.ones(num_edges, RADIAL), torch.ones(0, SPHERICAL), torch.ones(0, EMB_IN)
    assert embed(rad, sph, idx_sph_outer=none).shape == (0, INTERM)
    basis = embed(rad, sph, None, None, none, none)
    assert torch.equal(interact(basis, m, none, none), torch.zeros(num_edges, EMB_OUT))
    basis = embed(rad, sph, 0 * each, each, none, none, 3)
    got = interact(basis, m, none, none, 0 * each, each, 3)
    assert torch.equal(got, torch.zeros(3, EMB_OUT))


def test_initial_weights():
    """Initial weights have mean 0 over the summands and the variance of He's rule."""
    torch.manual_seed(0)
    for layer in (nn.BasisEmbedding(16, 8, 7), nn.BasisEmbedding(16, 8), nn.EfficientInteractionBilinear(6, 4, 9)):
        weight = layer.weight
        summed = weight.flatten(0, 1).T if weight.dim() == 3 else weight
        assert torch.allclose(summed.mean(1), torch.zeros(len(summed)), atol=1e-6)
        assert torch.allclose(summed.var(1) * summed.shape[1], torch.ones(len(summed)), atol=1e-2)
    assert torch.isfinite(nn.BasisEmbedding(1, 8).weight).all()


BAD = [
    ({"rad_basis": [1.0]}, "TypeError: BasisEmbedding: rad_basis is a list; expected a torch.Tensor of float32"),
    ({"rad_basis": torch.ones(9, 5)}, "ValueError: ...rad_basis has shape (9, 5); expected ... = (9, 4)"),
    ({"sph_basis": lambda sph: sph.half()}, "TypeError: BasisEmbedding: sph_basis has dtype torch.float16; expected"),
    ({"sph_basis": None}, "ValueError: ...idx_sph_inner is given, but sph_basis is None; expected both or none"),
    ({"idx_sph_inner": None}, "ValueError: ...idx_rad_inner and sph_basis are given; expected idx_sph_inner, too"),
    ({"idx_sph_outer": lambda i: i[1:]}, "ValueError: ...idx_sph_outer has 22 values below 9; expected num_triplets"),
    ({"idx_sph_inner": lambda i: i - 1}, "ValueError: ...idx_sph_inner[...] is -1; expected 0 <= idx_sph_inner < Kmax"),
    ({"idx_sph_inner": lambda i: 0 * i}, "ValueError: ...a slot that an earlier member has; expected one of its own"),
    ({"idx_sph_inner": lambda i: i.double()}, "TypeError: ...idx_sph_inner is of torch.float64; expected a torch.T"),
    ({"num_atoms": None}, "TypeError: BasisEmbedding: num_atoms is a NoneType; expected an int"),
    ({"idx_sph_inner": lambda i: i + 10**12}, "MemoryError: BasisEmbedding: num_edges * (max(idx_sph_inner) + 1) is"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_basis(changes, text):
    case = Padded()
    arguments = {"rad_basis": case.rad_basis, "sph_basis": case.sph_basis, **case.lists, **case.atoms}
    arguments = tensors(arguments)
    arguments |= {n: c(arguments[n]) if callable(c) else c for n, c in changes.items()}
    arguments |= {
        n: v.double() for n, v in arguments.items() if isinstance(v, torch.Tensor) and v.dtype == torch.float32
    }
    with raising(text):
        embedding(case.weight)(**arguments)


@pytest.mark.parametrize("padded", [True, False])
def test_autocast_takes_bases_of_two_dtypes(padded):
    """Under autocast one basis may be bfloat16 and the other float32; results are float32."""
    layer, edge, number = nn.BasisEmbedding(4, 2, 3, padded), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    rad_basis, sph_basis = torch.rand(2, 4).bfloat16(), torch.rand(3, 3)
    for numbers in ({"idx_sph_inner": number}, {}):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = layer(rad_basis, sph_basis, idx_sph_outer=edge, **numbers)
        expected = layer(rad_basis.float(), sph_basis, idx_sph_outer=edge, **numbers)
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)


BAD_SUMS = [
    ({"basis": torch.ones(3)}, "TypeError: ...basis is a Tensor; expected a tuple of two tensors"),
    ({"basis": lambda b: (b[0], b[1][:, :, 1:])}, "ValueError: ...sph has shape ...; expected ...Kmax"),
    ({"m": lambda m: m[:, 1:]}, "ValueError: ...m has shape (23, 5); expected ... = (23, 6)"),
    ({"m": lambda m: m[1:]}, "ValueError: ...idx_agg_outer has 23 values below 9; expected num_triplets = 22 below 9"),
    ({"idx_agg2_outer": torch.zeros(9).long()}, "TypeError: ...agg2_out_size is a NoneType; expected an int"),
]


@pytest.mark.parametrize(("changes", "text"), BAD_SUMS)
def test_bad_sums(changes, text):
    case = Padded()
    basis = embedding(case.weight)(*map(torch.from_numpy, (case.rad_basis, case.sph_basis)), **tensors(case.lists))
    arguments = tensors({"basis": basis, "m": case.m, "idx_agg_outer": case.outer, "idx_agg_inner": case.inner})
    arguments |= {n: c(arguments[n]) if callable(c) else c for n, c in changes.items()}
    with raising(text.replace(": ", ": EfficientInteractionBilinear: ", 1)):
        bilinear(case.dense, EMB_IN)(**arguments)

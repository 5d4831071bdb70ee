"""Tests that trigraph's sums preserve the results and derivatives of neuraloperator 2.0's IntegralTransform."""

import itertools
import sys
from types import SimpleNamespace

import pytest
from expect_error import expect_error

torch = pytest.importorskip("torch")

from trigraph.benchmarks.originals import WheelRelease, load_modules  # noqa: E402
from trigraph.compat import neuralop  # noqa: E402

ORIGINAL = WheelRelease("neuraloperator", "2.0.0", "neuralop")
MODULES = ("segment_csr", "integral_transform", "neighbor_search")
TRANSFORMS = ("linear_kernelonly", "linear", "nonlinear_kernelonly", "nonlinear")
CHANNELS, POINTS, QUERIES = 4, 20, 12
ROUNDINGS = 20  # neuralop and trigraph add the same terms (at most 20 per node) in different orders


@pytest.fixture
def neuralop_modules(monkeypatch):
    """Load neuraloperator's modules where `install` finds them, without parent packages, which import wandb."""
    try:
        modules = load_modules(ORIGINAL.find_root(), ["neuralop"], [f"neuralop.layers.{name}" for name in MODULES])
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield SimpleNamespace(**dict(zip(MODULES, modules, strict=True)))
    torch.set_default_dtype(torch.float32)  # neuralop's sums have the default dtype, so tests change it


def assert_close_or_none(got, expected, roundings=ROUNDINGS):
    """Assert that tensors agree up to rounding, or are both None (gradients of unused inputs)."""
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            error = roundings * torch.finfo(b.dtype).eps * b.detach().abs().amax()
            torch.testing.assert_close(a, b, rtol=0, atol=float(error))


def compute_result_and_derivatives(theirs, transform, functions, dtype, reduction, default=torch.float32):
    """Return a layer's result, its gradients and second derivatives; query 3 has no neighbours."""
    torch.manual_seed(0)
    y, x = torch.rand(POINTS, 3, dtype=dtype), torch.rand(QUERIES, 3, dtype=dtype)
    x[3] = 9.0
    near = theirs.neighbor_search.NeighborSearch(use_open3d=False)(y, x, 0.5)
    f_y = None if functions is None else torch.rand(*functions, POINTS, CHANNELS, dtype=dtype)
    weights = torch.rand(len(near["neighbors_index"]), dtype=dtype) if functions == (3,) else None
    width = 6 + (CHANNELS if f_y is not None and transform.startswith("nonlinear") else 0)
    layer = theirs.integral_transform.IntegralTransform(
        channel_mlp_layers=[width, 8, CHANNELS], transform_type=transform, reduction=reduction, use_torch_scatter=False
    ).to(dtype)
    inputs = [*(t.requires_grad_() for t in (y, x, f_y, weights) if t is not None), *layer.parameters()]
    torch.set_default_dtype(default)
    value = layer(y, near, x=x, f_y=f_y, weights=weights)
    first = torch.autograd.grad(
        (value.square() * torch.rand_like(value)).sum(), inputs, create_graph=True, allow_unused=True
    )
    total = sum((g * torch.rand_like(g)).sum() for g in first if g is not None)
    return [value, *first, *torch.autograd.grad(total, inputs, allow_unused=True)]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("transform", "functions"), [*itertools.product(TRANSFORMS, (None, (), (2,), (3,)))])
def test_install_preserves_results_and_derivatives(neuralop_modules, transform, functions, dtype, reduction):
    expected = compute_result_and_derivatives(neuralop_modules, transform, functions, dtype, reduction, default=dtype)
    torch.set_default_dtype(torch.float32)
    neuralop.install()
    neuralop.install()
    for module in (neuralop_modules.integral_transform, neuralop_modules.segment_csr):
        assert module.segment_csr is neuralop.segment_csr
    got = compute_result_and_derivatives(neuralop_modules, transform, functions, dtype, reduction)
    assert (got[0][..., 3, :] == 0).all()
    assert all(float(t.detach().abs().max()) > 0 for t in got[:3] if t is not None)
    assert_close_or_none(got, expected)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("splits", [[0, 3, 3, 9], [2, 3, 7, 7], [0], [4, 4], [[0, 3, 9], [1, 5, 5]]])
def test_segment_csr_sums_and_derivatives_are_correct(splits, index, reduction):
    """Sums and derivatives are correct, even if the splits skip rows or differ between batch entries."""
    indptr = torch.tensor(splits, dtype=index)
    src = torch.rand(*indptr.shape[:-1], 18, 4, dtype=torch.float64)[..., ::2, 1:].requires_grad_()
    pairs = zip(src, indptr, strict=True) if indptr.dim() == 2 else [(src, indptr)]
    runs = [s[a:b] for s, p in pairs for a, b in itertools.pairwise(p.tolist())]
    expected = [r.sum(0) / (max(len(r), 1) if reduction == "mean" else 1) for r in runs]
    got = neuralop.segment_csr(src, indptr, reduction)
    assert torch.allclose(got, torch.stack([*expected, src.new_empty(3)])[:-1].reshape(got.shape), rtol=1e-14)
    assert torch.autograd.gradgradcheck(lambda s: neuralop.segment_csr(s, indptr, reduction) ** 2, src, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_are_rounded_once(dtype):
    """Half-precision sums are computed in float32 and rounded once: the mean of 400 terms 1 + eps is within one eps."""
    value = torch.tensor(1.0, dtype=dtype) + torch.finfo(dtype).eps
    src, indptr = value.repeat(400, 1), torch.tensor([0, 400])
    assert_close_or_none([neuralop.segment_csr(src, indptr, "mean")], [value.reshape(1, 1)], 1)
    assert neuralop.segment_csr(torch.empty(0, 4, 3), torch.zeros(0, 2, dtype=torch.long), "sum").shape == (0, 1, 3)


BATCH, LATE = torch.ones(2, 5, 1), torch.tensor([[0, 5, 5], [0, 5, 4]])
BAD = [
    ({"reduction": "max"}, "ValueError: segment_csr: reduction is 'max'; expected 'sum' or 'mean'"),
    ({"src": [1.0]}, "TypeError: segment_csr: src is a list; expected a tensor of floating point"),
    ({"src": torch.ones(5, 2).long()}, "TypeError: segment_csr: src is a torch.int64; expected"),
    ({"src": torch.ones(5)}, "ValueError: segment_csr: src and indptr have shapes (5,) and (3,); expected (num_rows"),
    ({"src": BATCH, "indptr": torch.zeros(3, 2).long()}, "ValueError: ...(2, 5, 1) and (3, 2); expected (num_rows"),
    (
        {"indptr": torch.ones(2).long().to("meta")},
        "ValueError: segment_csr: src has 2 channels on cpu, indptr 2 splits",
    ),
    ({"indptr": torch.zeros(0).long()}, "ValueError: ...indptr 0 splits on cpu; expected at least one of each"),
    ({"indptr": torch.tensor([0, 6])}, "ValueError: segment_csr: indptr[1] is 6; expected splits from 0 to 5, the"),
    ({"indptr": torch.tensor([-1, 5])}, "ValueError: segment_csr: indptr[0] is -1; expected splits from 0"),
    ({"src": BATCH, "indptr": LATE}, "ValueError: segment_csr: indptr[1, 2] is 4; expected splits from 0 to 5, the"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_segment_csr_refuses_bad_input(changes, text):
    arguments = {"src": torch.ones(5, 2), "indptr": torch.tensor([0, 2, 5]), "reduction": "sum"}
    with expect_error(text):
        neuralop.segment_csr(**arguments | changes)

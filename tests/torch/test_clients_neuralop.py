"""Tests that trigraph's sums preserve the results and derivatives of neuraloperator 2.0's IntegralTransform."""

import sys

import pytest

torch = pytest.importorskip("torch")

from trigraph.benchmarks.originals import WheelRelease, load_modules  # noqa: E402
from trigraph.compat import neuralop  # noqa: E402

MODULES = [f"neuralop.layers.{name}" for name in ("segment_csr", "integral_transform", "neighbor_search")]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("functions", [None, (), (2,)])
@pytest.mark.parametrize("transform", ["linear_kernelonly", "linear", "nonlinear_kernelonly", "nonlinear"])
def test_install_preserves_results_and_derivatives(monkeypatch, transform, functions, reduction):
    try:  # without parent packages, which import wandb
        modules = load_modules(WheelRelease("neuraloperator", "2.0.0", "neuralop").find_root(), ["neuralop"], MODULES)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    torch.manual_seed(0)
    y, x = torch.rand(20, 3), torch.rand(12, 3)
    x[3] = 9.0  # without neighbours
    near = modules[2].NeighborSearch(use_open3d=False)(y, x, 0.5)
    f_y = None if functions is None else torch.rand(*functions, 20, 4)
    widths = [10 if f_y is not None and transform.startswith("nonlinear") else 6, 8, 4]
    options = {"transform_type": transform, "reduction": reduction, "use_torch_scatter": False}
    layer = modules[1].IntegralTransform(channel_mlp_layers=widths, **options)
    inputs = [*(t.requires_grad_() for t in (y, x, f_y) if t is not None), *layer.parameters()]
    results, unused = [], {"allow_unused": True, "materialize_grads": True}
    for install in (lambda: None, neuralop.install, neuralop.install):
        install()
        value = layer(y, near, x=x, f_y=f_y)
        first = torch.autograd.grad(value.pow(3).sum(), inputs, create_graph=True, **unused)
        results.append([value, *first, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs, **unused)])
    assert all(module.segment_csr is neuralop.segment_csr for module in modules[:2])
    assert all(float(t.detach().abs().max()) > 0 for t in results[0][:2])
    for expected, *got in zip(*results, strict=True):
        # neuralop and trigraph add the same terms (at most 20 per node) in different orders.
        error = 20 * torch.finfo(torch.float32).eps * float(expected.detach().abs().amax())
        torch.testing.assert_close(got, [expected, expected], rtol=0, atol=error)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("splits", [[0, 3, 3, 9], [2, 3, 7, 7], [0], [4, 4], [[0, 3, 9], [1, 5, 5]]])
def test_segment_csr_sums_and_derivatives_are_correct(splits, index, reduction):
    """Sums and derivatives are correct, even if the splits skip rows or differ between batch entries."""
    indptr = torch.tensor(splits, dtype=index)
    src = torch.rand(*indptr.shape[:-1], 18, 4, dtype=torch.float64)[..., ::2, 1:].requires_grad_()
    expected = torch.segment_reduce(src.contiguous(), reduction, offsets=indptr, axis=src.dim() - 2, initial=0)
    torch.testing.assert_close(neuralop.segment_csr(src, indptr, reduction), expected, rtol=1e-14, atol=1e-14)
    assert torch.autograd.gradgradcheck(lambda s: neuralop.segment_csr(s, indptr, reduction) ** 2, src, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_are_rounded_once(dtype):
    """Half-precision sums are computed in float32 and rounded once: the mean of 400 terms 1 + eps is within one eps."""
    value = torch.tensor(1.0, dtype=dtype) + torch.finfo(dtype).eps
    got = neuralop.segment_csr(value.repeat(400, 1), torch.tensor([0, 400]), "mean")
    torch.testing.assert_close(got, value.reshape(1, 1), rtol=0, atol=torch.finfo(dtype).eps * float(value))


@pytest.mark.parametrize(
    ("splits", "reduction"), [([0, 5], "max"), ([0, 6], "sum"), ([-1, 5], "sum"), ([0, 5, 4], "sum")]
)
def test_segment_csr_refuses_bad_input(splits, reduction):
    with pytest.raises(ValueError, match=r"reduction is 'max'; expected 'sum' or 'mean'|CSC: offsets"):
        neuralop.segment_csr(torch.ones(5, 2), torch.tensor(splits), reduction)

"""neuraloperator 2.0's IntegralTransform has the same results and derivatives with trigraph's sums as with its own.

# modules imported after `install` get trigraph's function too

The modules are loaded from an installed neuraloperator, or from the wheel whose folder TRIGRAPH_CLIENTS names,
without the packages above them, which import wandb, h5py and more.
"""

import itertools
import sys
from types import ModuleType, SimpleNamespace

import pytest
from raising import raising

torch = pytest.importorskip("torch")

from trigraph.benchmarks.calls import Unavailable  # noqa: E402
from trigraph.benchmarks.originals import Original, load  # noqa: E402
from trigraph.compat import neuralop  # noqa: E402

ORIGINAL = Original("neuraloperator", "2.0.0", "neuralop", "TRIGRAPH_CLIENTS")
MODULES = ("segment_csr", "integral_transform", "neighbor_search")
TRANSFORMS = ("linear_kernelonly", "linear", "nonlinear_kernelonly", "nonlinear")
CHANNELS, POINTS, QUERIES = 4, 20, 12
# Both add the same terms, at most 20 for a node, in another order. The largest difference seen was 2 roundings.
ROUNDINGS = 20


@pytest.fixture(scope="module")
def theirs():
    """neuraloperator's modules, where `install` looks for them; the package above them is empty."""
    try:
        modules = load(ORIGINAL.root(), ["neuralop"], [f"neuralop.layers.{name}" for name in MODULES])
    except Unavailable as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in modules:
            monkeypatch.setitem(sys.modules, module.__name__, module)
        yield SimpleNamespace(**dict(zip(MODULES, modules, strict=True)))


@pytest.fixture
def installed(theirs):
    handle = neuralop.install()
    yield handle
    handle.revert()


@pytest.fixture
def default_dtype():
    """The original adds into zeros of the default dtype."""
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_same(got, expected, roundings=ROUNDINGS):
    """Compare tensors of equal dtypes and shapes; None, where nothing depends on an input, equals None."""
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        tolerance = roundings * torch.finfo(b.dtype).eps * max([float(b.detach().abs().max())] if b.numel() else [0])
        assert ((a - b).abs() <= tolerance).all()


class Problem:
    """A layer, its points and functions; query 3 has no neighbour."""

    def __init__(self, theirs, transform, functions, weighted=False, dtype=torch.float64, reduction="sum", radius=0.5):
        self.y, self.x = drawn(POINTS, 3, dtype=dtype), drawn(QUERIES, 3, dtype=dtype, seed=1)
        self.x[3] = 9.0
        search = theirs.neighbor_search.NeighborSearch(use_open3d=False)
        self.neighbors = search(self.y, self.x, radius)
        number = len(self.neighbors["neighbors_index"])
        shape = {"none": None, "one": (POINTS, CHANNELS), "batch": (3, POINTS, CHANNELS)}[functions]
        self.f_y = None if shape is None else drawn(*shape, dtype=dtype, seed=2)
        self.weights = drawn(number, dtype=dtype, seed=3) if weighted else None
        width = 6 + (CHANNELS if shape and transform.startswith("nonlinear") else 0)
        torch.manual_seed(0)
        self.layer = theirs.integral_transform.IntegralTransform(
            channel_mlp_layers=[width, 8, CHANNELS],
            transform_type=transform,
            reduction=reduction,
            use_torch_scatter=False,
        ).to(dtype)
        tensors = [self.y, self.x, self.f_y, self.weights]
        self.inputs = [*(t.requires_grad_() for t in tensors if t is not None), *self.layer.parameters()]

    def value(self):
        return self.layer(self.y, self.neighbors, x=self.x, f_y=self.f_y, weights=self.weights)

    def derivatives(self):
        """Return the result, gradients of a weighted sum of it, and of a weighted sum of these; all not zero."""
        value = self.value()
        first = torch.autograd.grad(
            (value.square() * drawn(*value.shape, dtype=value.dtype, seed=4)).sum(),
            self.inputs,
            create_graph=True,
            allow_unused=True,
        )
        total = sum((g * drawn(*g.shape, dtype=g.dtype, seed=5)).sum() for g in first if g is not None)
        return [value, *first, *torch.autograd.grad(total, self.inputs, allow_unused=True)]


CASES = [
    *itertools.product(TRANSFORMS, ("none", "one", "batch"), (False,)),
    *itertools.product(TRANSFORMS, ("batch",), (True,)),
]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("transform", "functions", "weighted"), CASES)
def test_before_and_after(theirs, default_dtype, transform, functions, weighted, dtype, reduction):
    problem = Problem(theirs, transform, functions, weighted, dtype, reduction)
    default_dtype(dtype)
    expected = problem.derivatives()
    default_dtype(torch.float32)
    handle = neuralop.install()
    try:
        got = problem.derivatives()
    finally:
        handle.revert()
    assert expected[0].dtype is dtype
    assert (got[0][..., 3, :] == 0).all()
    assert all(float(t.detach().abs().max()) > 0 for t in got[:3] if t is not None)
    assert_same(got, expected)


@pytest.mark.parametrize("functions", ["none", "one", "batch"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_no_neighbours_at_all(theirs, installed, transform, functions):
    problem = Problem(theirs, transform, functions, radius=1e-6)
    assert problem.neighbors["neighbors_index"].numel() == 0
    value, *gradients = problem.derivatives()
    assert value.shape == ((3,) if functions == "batch" else ()) + (QUERIES, CHANNELS)
    assert all((t == 0).all() for t in (value, *gradients) if t is not None)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("splits", [[0, 3, 3, 9], [2, 3, 7, 7], [0], [4, 4], [0, 9]])
def test_sums(theirs, default_dtype, splits, index, batched, reduction):
    """The original's, where splits leave out rows, too; derivatives against differences."""
    src, indptr = drawn(18, 4)[::2, 1:], torch.tensor(splits, dtype=index)
    if batched:
        src, indptr = torch.stack([src, -2 * src]), indptr.repeat(2, 1)
    default_dtype(torch.float64)
    expected = theirs.segment_csr.segment_csr(src, indptr, reduction, use_scatter=False)
    default_dtype(torch.float32)
    assert_same([neuralop.segment_csr(src, indptr, reduction)], [expected], 10)
    src.requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda s: neuralop.segment_csr(s, indptr, reduction).square(), src, fast_mode=True
    )


def test_batch_with_splits_of_its_own():
    """Each entry's splits are its own, as in torch_scatter."""
    src, indptr = drawn(2, 6, 3, dtype=torch.float32), torch.tensor([[0, 2, 6], [1, 5, 5]])
    sums = neuralop.segment_csr(src, indptr, "sum")
    one_by_one = torch.stack([neuralop.segment_csr(s, p, "sum") for s, p in zip(src, indptr, strict=True)])
    assert_same([sums], [one_by_one], 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Added in float32 and rounded once, so that 400 terms of 1 + eps lose less than one rounding."""
    value = torch.tensor(1.0, dtype=dtype) + torch.finfo(dtype).eps
    src, indptr = value.repeat(400, 1), torch.tensor([0, 400])
    assert_same([neuralop.segment_csr(src, indptr, "mean")], [value.reshape(1, 1)], 1)


def test_empty_shapes():
    for shape, splits in [((0, 3), [0]), ((0, 3), [0, 0]), ((4, 3), [0])]:
        sums = neuralop.segment_csr(torch.empty(shape), torch.tensor(splits), "mean")
        assert sums.shape == (len(splits) - 1, shape[1])
        assert (sums == 0).all()
    assert neuralop.segment_csr(torch.empty(0, 4, 3), torch.zeros(0, 2, dtype=torch.long), "sum").shape == (0, 1, 3)


BATCH, LATE = torch.ones(2, 5, 1), torch.tensor([[0, 5, 5], [0, 5, 4]])
BAD = [
    ({"reduction": "max"}, "ValueError: ...reduction is 'max'; expected one of sum, mean"),
    ({"src": [1.0]}, "TypeError: ...src is a list; expected a torch.Tensor"),
    ({"src": torch.ones(5, 2).long()}, "TypeError: ...src has dtype torch.int64; expected one of torch.f"),
    ({"src": torch.ones(5)}, "ValueError: ...src has shape (5,); expected (num_rows, channels) or (batch, num_rows"),
    ({"indptr": torch.tensor([0, 5]).to("meta")}, "ValueError: ...indptr is on meta; expected cpu, where src is"),
    ({"indptr": torch.zeros(0).long()}, "ValueError: ...indptr has shape (0,); expected (num_out + 1,)"),
    (
        {"src": BATCH, "indptr": torch.zeros(3, 2).long()},
        "ValueError: ...indptr has shape (3, 2); expected (batch, num_out + 1) with batch = 2, as src, or 1",
    ),
    ({"indptr": torch.tensor([0, 6])}, "ValueError: ...indptr[1] is 6; expected 0 to 5, the number of rows of src"),
    ({"indptr": torch.tensor([-1, 5])}, "ValueError: ...indptr[0] is -1; expected 0 to 5, the number of rows of src"),
    ({"src": BATCH, "indptr": LATE}, "ValueError: ...indptr[1, 2] is 4, below indptr[1, 1] = 5; expected splits that"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_input(changes, text):
    arguments = {"src": torch.ones(5, 2), "indptr": torch.tensor([0, 2, 5]), "reduction": "sum"}
    with raising(text.replace("...", "segment_csr: ")):
        neuralop.segment_csr(**arguments | changes)


def test_install_and_revert(theirs, monkeypatch):
    original = theirs.segment_csr.segment_csr
    handle = neuralop.install()
    try:
        assert handle.original is original
        assert handle.places == (
            "neuralop.layers.integral_transform.segment_csr",
            "neuralop.layers.segment_csr.segment_csr",
        )
        again = neuralop.install()
        assert again.places == ()
        again.revert()
        assert theirs.integral_transform.segment_csr is neuralop.segment_csr
        later = ModuleType("neuralop.later")  # what is imported after the call has ours, too
        later.segment_csr = theirs.segment_csr.segment_csr
        monkeypatch.setitem(sys.modules, "neuralop.later", later)
    finally:
        handle.revert()
    assert {m.segment_csr for m in (theirs.integral_transform, theirs.segment_csr, later)} == {original}
    handle.revert()
    assert theirs.segment_csr.segment_csr is original

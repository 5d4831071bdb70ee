"""neuraloperator's sums over neighbours, by trigraph's weighted aggregation: dtypes stay, nothing loops over nodes.

`segment_csr` has the arguments of the function of that name in ``neuralop.layers.segment_csr``. After :func:`install`
neuraloperator's layers call it: IntegralTransform, and with it GNOBlock, GINO and FNOGNO.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch

from trigraph.graphs import CSC
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.graphs import uncompiled
from trigraph.torch.nn.arguments import check_device

__all__ = ["Installed", "install", "segment_csr"]

REDUCTIONS = ("sum", "mean")
PACKAGE = "neuralop"


def _check_tensors(src: Any, indptr: Any) -> None:
    """Raise unless both are dense tensors on one device, of dtypes and shapes that go together."""
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    for name, value, dtypes in (("src", src, floats), ("indptr", indptr, (torch.int64, torch.int32))):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"segment_csr: {name} is a {type(value).__name__}; expected a torch.Tensor")
        if value.layout is not torch.strided:
            raise TypeError(f"segment_csr: {name} is a tensor of layout {value.layout}; expected torch.strided")
        if value.dtype not in dtypes:
            expected = ", ".join(map(str, dtypes))
            raise TypeError(f"segment_csr: {name} has dtype {value.dtype}; expected one of {expected}")
    check_device("segment_csr", "src", src)
    if indptr.device != src.device:
        raise ValueError(f"segment_csr: indptr is on {indptr.device}; expected {src.device}, where src is")
    if src.dim() not in (2, 3) or src.shape[-1] == 0:
        raise ValueError(
            f"segment_csr: src has shape {tuple(src.shape)}; expected (num_rows, channels) or "
            "(batch, num_rows, channels) with at least one channel"
        )
    symbols = "(num_out + 1,)" if src.dim() == 2 else f"(batch, num_out + 1) with batch = {len(src)}, as src, or 1"
    batches = () if src.dim() == 2 else (1, len(src))
    if indptr.dim() != src.dim() - 1 or (batches and indptr.shape[0] not in batches) or indptr.shape[-1] == 0:
        raise ValueError(f"segment_csr: indptr has shape {tuple(indptr.shape)}; expected {symbols}")


def _check_splits(indptr: torch.Tensor, num_rows: int) -> None:
    """Raise unless splits lie within the rows and never decrease."""

    def first(wrong: torch.Tensor, later: int = 0) -> tuple[str, int]:
        """Return name and value of the first element that is wrong, or of the one so many places later."""
        *batch, at = wrong.nonzero()[0].tolist()
        place = (*batch, at + later)
        return f"indptr[{', '.join(map(str, place))}]", int(indptr[place])

    outside = (indptr < 0) | (indptr > num_rows)
    if outside.any():
        name, value = first(outside)
        raise ValueError(f"segment_csr: {name} is {value}; expected 0 to {num_rows}, the number of rows of src")
    falls = indptr.diff(dim=-1) < 0
    if falls.any():
        (name, value), (next_name, next_value) = first(falls), first(falls, 1)
        raise ValueError(
            f"segment_csr: {next_name} is {next_value}, below {name} = {value}; expected splits that never decrease"
        )


@uncompiled
def _graph(indptr: torch.Tensor, batch: int, num_rows: int) -> CSC:
    """Return one graph for all entries of a batch; row `i` of entry `k` is the source ``k*num_rows + i``."""
    _check_splits(indptr, num_rows)
    splits = indptr.long().expand(batch, -1) if indptr.dim() == 2 else indptr.long()[None]
    offsets = torch.nn.functional.pad(splits.diff(dim=1).flatten().cumsum(0), (1, 0))
    # The splits of an entry may leave out rows at both ends of it.
    ranges = [
        torch.arange(k * num_rows + start, k * num_rows + stop, device=indptr.device)
        for k, (start, stop) in enumerate(splits[:, [0, -1]].tolist())
    ]
    return CSC(offsets, torch.cat([offsets.new_empty(0), *ranges]), batch * num_rows)


def segment_csr(
    src: torch.Tensor, indptr: torch.Tensor, reduction: Literal["mean", "sum"], use_scatter: bool = True
) -> torch.Tensor:
    """Return the sum or the mean of each run of consecutive rows: row i is that of ``src[indptr[i]:indptr[i + 1]]``.

    Parameters
    ----------
    src : tensor of floating point, shape (num_rows, channels) or (batch, num_rows, channels)
    indptr : tensor of int32 or int64, shape (num_out + 1,), or (batch, num_out + 1) with a batch
        Splits between the runs, which never decrease. Rows before the first and after the last are left out.
        One row of splits, (1, num_out + 1), is for all entries of the batch.
    reduction : {"mean", "sum"}
    use_scatter : bool, optional
        Taken for the original's sake: torch_scatter is not called.

    Returns
    -------
    tensor, shape (num_out, channels) or (batch, num_out, channels)
        Of the dtype and on the device of `src`; 0 where a run has no rows. Differentiable twice.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype, shape or device, `reduction` is another word, or a split lies outside
        the rows or below the one before it.

    Notes
    -----
    The original without torch_scatter returns float32 whatever `src` is, takes the first entry's splits for the whole
    batch, and cuts splits outside the rows short. CPU tensors of 16 bits are added in float32 here, and rounded once.

    Examples
    --------
    >>> import torch
    >>> from trigraph.compat.neuralop import segment_csr
    >>> segment_csr(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 2, 3]), "sum")
    tensor([[3.],
            [0.],
            [4.]])
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"segment_csr: reduction is {reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    _check_tensors(src, indptr)
    *batch, num_rows, channels = src.shape
    graph = _graph(indptr, batch[0] if batch else 1, num_rows)
    rows = src.flatten(0, -2)
    if src.is_cpu and src.dtype.itemsize == 2:  # the CPU's operators take float32 and float64
        rows = rows.float()
    sums: torch.Tensor = FUNCTIONS["agg_weighted_n2n"](rows, None, graph, reduction, "count").output_embedding
    return sums.to(src.dtype).reshape(*batch, indptr.shape[-1] - 1, channels)


def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> tuple[str, ...]:
    """Put a function in the place of another wherever a module of neuraloperator has it; return where that was."""
    places = []
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] == PACKAGE and isinstance(module, ModuleType):
            names = [name for name, value in vars(module).items() if value is old]
            for name in names:
                setattr(module, name, new)
                places.append(f"{module_name}.{name}")
    return tuple(places)


@dataclass(frozen=True)
class Installed:
    """What `install` has replaced.

    Attributes
    ----------
    places : tuple of str
        Names that were another function's, ``module.name``.
    original : function
        What they named.
    """

    places: tuple[str, ...]
    original: Callable[..., Any]

    def revert(self) -> None:
        """Give neuraloperator its own function back, in modules that it has imported since then, too."""
        _replace(segment_csr, self.original)


def install() -> Installed:
    """Let neuraloperator's layers call this module's `segment_csr`, those of models that exist, too.

    A second call changes nothing. Results of layers are of the dtype of their inputs afterwards.

    Returns
    -------
    Installed
        Its `revert` undoes this.

    Raises
    ------
    ImportError
        If neuraloperator is not there.
    RuntimeError
        If its function has other arguments than that of neuraloperator 2.0.
    """
    try:
        module = importlib.import_module(f"{PACKAGE}.layers.segment_csr")
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise ImportError("install: there is no neuralop to import; expected neuraloperator 2.0 or later") from error
    original = module.segment_csr
    theirs, ours = (", ".join(inspect.signature(f).parameters) for f in (original, segment_csr))
    if theirs != ours:
        raise RuntimeError(f"install: neuralop's segment_csr takes ({theirs}); expected ({ours}), as in version 2.0")
    if original is segment_csr:
        return Installed((), original)
    return Installed(_replace(original, segment_csr), original)

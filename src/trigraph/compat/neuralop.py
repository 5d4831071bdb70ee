"""neuraloperator's sums over neighbours, computed by trigraph's weighted aggregation without a loop over nodes."""

import importlib
import sys
from typing import Literal

import torch

from trigraph.graphs import CSC
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.graphs import exclude_from_compilation
from trigraph.torch.layers.arguments import widen_half_precision

__all__ = ["install", "segment_csr"]


_build_graph = exclude_from_compilation(CSC)


def segment_csr(
    src: torch.Tensor, indptr: torch.Tensor, reduction: Literal["mean", "sum"], use_scatter: bool = True
) -> torch.Tensor:
    """Return sums or means of consecutive rows: row i of the result reduces ``src[indptr[i]:indptr[i + 1]]``.

    Parameters
    ----------
    src : tensor of floating point, shape (num_rows, channels) or (batch, num_rows, channels)
    indptr : tensor of int32 or int64, shape (num_out + 1,), or (batch or 1, num_out + 1) with a batch
        Boundaries of the row ranges, in ascending order. Rows before the first and after the last boundary are ignored.
    reduction : {"mean", "sum"}
    use_scatter : bool, optional
        Ignored: torch_scatter is not called.

    Returns
    -------
    tensor, shape (num_out, channels) or (batch, num_out, channels)
        Zero for an empty range. Differentiable to any order. 16-bit floats on the CPU are added in float32.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If an argument has the wrong type, dtype, shape or device, or splits decrease or lie outside the rows.

    Examples
    --------
    >>> import torch
    >>> from trigraph.compat.neuralop import segment_csr
    >>> segment_csr(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 2, 3]), "sum")
    tensor([[3.],
            [0.],
            [4.]])
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f"segment_csr: reduction is {reduction!r}; expected 'sum' or 'mean'")
    if src.dim() == 3 and len(src) == 0:
        return src.new_zeros(0, indptr.shape[-1] - 1, src.shape[2])
    if src.dim() == 3:
        splits = indptr.expand(len(src), -1)
        return torch.stack([segment_csr(rows, ends, reduction) for rows, ends in zip(src, splits, strict=True)])
    ends = torch.cat([indptr.new_zeros(1), indptr, indptr.new_full((1,), len(src))])
    graph = _build_graph(ends, torch.arange(len(src), dtype=indptr.dtype, device=src.device), len(src))
    (rows,) = widen_half_precision(src)
    sums: torch.Tensor = FUNCTIONS["agg_weighted_n2n"](rows, None, graph, reduction, "count").output_embedding
    return sums[1:-1].to(src.dtype)  # without the rows before the first and after the last split


def install() -> None:
    """Make neuraloperator's IntegralTransform, which GNOBlock, GINO and FNOGNO use, call this module's `segment_csr`.

    This includes existing layers. A second call has no effect. Raise ImportError if neuraloperator is not installed.
    """
    original = importlib.import_module("neuralop.layers.segment_csr").segment_csr
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "neuralop" and getattr(module, "segment_csr", None) is original:
            module.segment_csr = segment_csr  # type: ignore[attr-defined]

"""neuraloperator's sums over neighbours, computed by trigraph's weighted aggregation without a loop over nodes.

`segment_csr` has the arguments of the function of the same name in ``neuralop.layers.segment_csr`` and keeps the dtype.
After :func:`install`, neuraloperator's IntegralTransform, which GNOBlock, GINO and FNOGNO use, calls `segment_csr`.
"""

import importlib
import sys
from typing import Literal

import torch

from trigraph.graphs import CSC
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.graphs import exclude_from_compilation

__all__ = ["install", "segment_csr"]


@exclude_from_compilation
def _build_batched_graph(indptr: torch.Tensor, batch: int, num_rows: int) -> CSC:
    """Return one graph for all entries of a batch; row `i` of entry `k` is the source ``k*num_rows + i``."""
    wrong = (indptr < 0) | (indptr > num_rows)
    wrong[..., 1:] |= indptr.diff(dim=-1) < 0
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"segment_csr: indptr[{', '.join(map(str, at))}] is {int(indptr[at])}; expected splits from 0 to "
            f"{num_rows}, the number of rows of src, that never decrease"
        )
    splits = indptr.long().reshape(-1, indptr.shape[-1]).expand(batch, -1)
    offsets = torch.nn.functional.pad(splits.diff(dim=1).flatten().cumsum(0), (1, 0))
    # `indptr` need not cover the first and last rows of a batch entry.
    rows = torch.arange(batch * num_rows, device=indptr.device).reshape(batch, num_rows)
    source_rows = [row[start:stop] for row, (start, stop) in zip(rows, splits[:, [0, -1]].tolist(), strict=True)]
    return CSC(offsets, torch.cat([offsets[:0], *source_rows]), batch * num_rows)


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
    TypeError, ValueError
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
    for name, value, floating in (("src", src, True), ("indptr", indptr, False)):
        kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        if not isinstance(kind, torch.dtype) or value.is_floating_point() != floating or value.is_complex():
            expected = "floating point" if floating else "int32 or int64"
            raise TypeError(f"segment_csr: {name} is a {kind}; expected a tensor of {expected}")
    batch = src.shape[:-2]
    if src.dim() not in (2, 3) or indptr.shape[:-1] not in (batch, (1,) * len(batch)) or not indptr.dim():
        raise ValueError(
            f"segment_csr: src and indptr have shapes {tuple(src.shape)} and {tuple(indptr.shape)}; expected "
            "(num_rows, channels) and (num_out + 1,), or (batch, num_rows, channels) and (batch or 1, num_out + 1)"
        )
    if src.device != indptr.device or 0 in (src.shape[-1], indptr.shape[-1]):
        raise ValueError(
            f"segment_csr: src has {src.shape[-1]} channels on {src.device}, indptr {indptr.shape[-1]} splits on "
            f"{indptr.device}; expected at least one of each, on one device"
        )
    graph = _build_batched_graph(indptr, batch[0] if batch else 1, src.shape[-2])
    rows = src.flatten(0, -2)
    if src.is_cpu and src.dtype.itemsize == 2:  # operators on the CPU take float32 and float64 only
        rows = rows.float()
    sums: torch.Tensor = FUNCTIONS["agg_weighted_n2n"](rows, None, graph, reduction, "count").output_embedding
    return sums.to(src.dtype).reshape(*batch, indptr.shape[-1] - 1, src.shape[-1])


def install() -> None:
    """Make neuraloperator's layers, including existing ones, call this module's `segment_csr`.

    A second call has no effect. Raise ImportError if neuraloperator is not installed.
    """
    original = importlib.import_module("neuralop.layers.segment_csr").segment_csr
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "neuralop" and getattr(module, "segment_csr", None) is original:
            module.segment_csr = segment_csr  # type: ignore[attr-defined]

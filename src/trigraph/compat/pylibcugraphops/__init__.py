"""A drop-in for NVIDIA's pylibcugraphops 24.12, which is retired, over trigraph's operators.

`operators` and `dimenet` have functions that write into their first arguments, for arrays of NumPy and CuPy and for
tensors; `pytorch` has the graphs and the differentiable operators that PyTorch Geometric's layers call. Results are the
same in every run, whatever the arguments on determinism and precision say, and of the arrays' own precision.
"""

from trigraph.compat.pylibcugraphops import dimenet, operators
from trigraph.compat.pylibcugraphops.dimenet import MMAOp
from trigraph.compat.pylibcugraphops.graphs import make_bipartite_csc, make_csc

__all__ = ["MMAOp", "dimenet", "make_bipartite_csc", "make_csc", "operators"]
__version__ = "24.12.0"

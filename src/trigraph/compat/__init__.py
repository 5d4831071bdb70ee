"""Other packages' interfaces over trigraph's operators.

`gemnet` has the padded interface of GemNet-OC's layers, `pylibcugraphops` and `cugraph_ops_binding` those of NVIDIA's
retired packages. After :func:`install`, ``import pylibcugraphops`` finds the latter; ``python -m trigraph.compat
SCRIPT [ARGS]`` runs a program that way. `neuralop`, which needs PyTorch and is not imported here, has neuraloperator's
sums over neighbours.
"""

from trigraph.compat import gemnet
from trigraph.compat.aliases import install

__all__ = ["gemnet", "install"]

"""The production panel: CUDA kernels launched through CuPy, or gpu-host on the CPU for NumPy arrays."""

from typing import Any

from trigraph.gpu.dimenet import *  # noqa: F403
from trigraph.gpu.gat import *  # noqa: F403
from trigraph.gpu.gemnet import *  # noqa: F403
from trigraph.gpu.gno import *  # noqa: F403
from trigraph.gpu.weighted import *  # noqa: F403
from trigraph.table import Operator


def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any, kept: Any) -> Any:
    """Run a call that has passed the checks."""
    return globals()[op.name](**values, **({"wrt": wanted} if op.selective else {}), out=out)

"""The production panel: CUDA kernels launched through CuPy, or gpu-host on the CPU for NumPy arrays."""

from trigraph.gpu.dimenet import *  # noqa: F403
from trigraph.gpu.gat import *  # noqa: F403
from trigraph.gpu.gemnet import *  # noqa: F403
from trigraph.gpu.gno import *  # noqa: F403
from trigraph.gpu.weighted import *  # noqa: F403

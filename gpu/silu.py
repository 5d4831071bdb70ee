"""Second and third derivatives of SiLU on the device, for the activations of torch layers."""

from typing import Any

from trigraph.gpu.sums import KernelLauncher


def fill_silu_derivatives(order: int, *arrays: Any) -> None:
    """Compute derivatives of x sigmoid(x), as `trigraph.fortran.silu.fill_silu_derivatives` does on the CPU."""
    names = ["gg", "grad", "x", "out_grad", "out_x"]
    if order == 3:
        names = ["ggg_grad", "ggg_x", *names[:3], "out_gg", *names[3:]]
    arguments = dict(zip(names, arrays, strict=True))
    x = arguments["x"]
    kernels = KernelLauncher("dimenet", x)  # the kernel family of the potentials, which use SiLU
    kernels.launch_elementwise(f"silu_bwd{order}", (kernels.dtype,), x.size, **arguments, size=x.size)

"""torch-sim model for models of `trigraph.torch.nn`."""

from trigraph.calculators.torch_sim import Model

__all__ = ["Model"]

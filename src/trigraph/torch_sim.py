"""Models of `trigraph.torch.nn` as models of torch-sim, for its batched relaxations and dynamics."""

from trigraph.calculators.torch_sim import Model

__all__ = ["Model"]

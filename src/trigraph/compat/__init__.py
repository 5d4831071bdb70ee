"""Other packages' interfaces over trigraph's operators: one module for each family."""

from trigraph.compat import gemnet

__all__ = ["gemnet"]

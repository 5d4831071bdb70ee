"""Graph classes and differentiable operators of ``pylibcugraphops.pytorch``."""

from trigraph.compat.pylibcugraphops.pytorch import graphs, operators
from trigraph.compat.pylibcugraphops.pytorch.graphs import *  # noqa: F403

__all__ = [*graphs.__all__, "operators"]

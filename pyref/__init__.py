"""The readable panel: one file for each family, each function a page of NumPy that reads like the formula."""

from trigraph.pyref.dimenet import *  # noqa: F403
from trigraph.pyref.gat import *  # noqa: F403
from trigraph.pyref.gemnet import *  # noqa: F403
from trigraph.pyref.gno import *  # noqa: F403
from trigraph.pyref.weighted import *  # noqa: F403

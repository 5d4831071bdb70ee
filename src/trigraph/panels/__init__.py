"""The front door: one checked function for each operator, and the panels that compute."""

from trigraph.panels.choice import PANELS, choose_panel, panel_function, unavailable
from trigraph.panels.docstrings import wrapped
from trigraph.panels.front_door import FUNCTIONS, execute, public_signature, raise_named

__all__ = [
    "FUNCTIONS",
    "PANELS",
    "choose_panel",
    "execute",
    "panel_function",
    "public_signature",
    "raise_named",
    "unavailable",
    "wrapped",
]

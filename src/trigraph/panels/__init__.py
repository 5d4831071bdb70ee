"""The front door: one checked function for each operator, and the panels that compute."""

from trigraph.panels.choice import PANELS, choose_panel, panel_function, unavailable
from trigraph.panels.front_door import FUNCTIONS, execute, raise_named

__all__ = [
    "FUNCTIONS",
    "PANELS",
    "choose_panel",
    "execute",
    "panel_function",
    "raise_named",
    "unavailable",
]

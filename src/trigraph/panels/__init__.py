"""The public functions, which check their arguments (the front door), and the panels that compute."""

from trigraph.panels.choice import choose_panel, panel_function, unavailable
from trigraph.panels.front_door import FUNCTIONS, execute, raise_named
from trigraph.table.public import PANELS

__all__ = ["FUNCTIONS", "PANELS", "choose_panel", "execute", "panel_function", "raise_named", "unavailable"]

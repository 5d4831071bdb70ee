"""The Fortran reference: the textbook formula in the textbook order, serial."""

import importlib

from trigraph.fortran.binding import functions

globals().update(functions("reference", lambda: importlib.import_module("trigraph.fortran._reference")))

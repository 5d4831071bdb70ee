"""The fast path of the Fortran backend (OpenMP); the submodules `reference` and `judge` contain the direct formulas.

Functions have the names and signatures of the operator table. They do not check arguments; `trigraph.X` does.
"""

from trigraph.fortran.binding import make_backend_functions
from trigraph.fortran.levels import fast_module

globals().update(make_backend_functions("fast", fast_module))

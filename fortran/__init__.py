"""The fast path of the Fortran backend (OpenMP). The submodule `reference` has the direct formula, `judge` the judge.

Functions have the names and signatures of the operator table. They trust their arguments; `trigraph.X` checks them.
"""

from trigraph.fortran.binding import functions
from trigraph.fortran.levels import fast_module

globals().update(functions("fast", fast_module))

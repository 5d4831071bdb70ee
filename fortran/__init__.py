"""The Fortran backend: the fast path (OpenMP). The direct formula is `trigraph.fortran.reference`, the judge `.judge`.

Functions have the names and signatures of the operator table and trust their arguments; `trigraph.X` checks them.
"""

from trigraph.fortran.binding import functions
from trigraph.fortran.levels import fast_module

globals().update(functions("fast", fast_module))

"""The Fortran panel: the fast path (OpenMP). The direct formula is `trigraph.fortran.reference`, the judge `.judge`.

Functions have the names and signatures of the operator table and trust their arguments; `trigraph.X` checks them.
"""

from functools import cache

from trigraph.fortran.binding import fast_module, functions

globals().update(functions("fast", cache(fast_module)))

"""Write the zeros of the spherical Bessel functions and the norms of the radial basis, in the precision of real128.

z_lk is the k-th positive zero of j_l and N_lk = (j_(l+1)(z_lk)^2 / 2)^(-1/2), for l = 0..7 and k = 1..16: all that the
operators allow. Needs mpmath; ``python tools/make_bessel_zeros.py`` writes fortran/common/bessel_zeros.inc and
gpu/kernels/bessel_zeros.cuh.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath as mp

ROOT = Path(__file__).resolve().parent.parent
ORDERS = 8
ZEROS = 16


def spherical_bessel(order: int, x: Any) -> Any:
    """Return j_l(x), l = order."""
    return mp.sqrt(mp.pi / (2 * x)) * mp.besselj(order + mp.mpf(1) / 2, x)


def zeros() -> list[list[Any]]:
    """Return the zeros of each order: each lies between two neighbouring ones of the order below."""
    below = [mp.pi * k for k in range(1, ZEROS + ORDERS + 1)]
    table = [below[:ZEROS]]
    for order in range(1, ORDERS):
        below = [
            mp.findroot(partial(spherical_bessel, order), ends, solver="anderson", tol=1e-45, verify=True)
            for ends in pairwise(below)
        ]
        table.append(below[:ZEROS])
    return table


def fortran(name: str, table: list[list[Any]]) -> str:
    """Return the table as a constant of kind qp, one column for each order."""
    lines = [f"    real(qp), parameter :: {name}({ZEROS}, 0:{ORDERS - 1}) = reshape([ &"]
    values = [mp.nstr(v, 36, strip_zeros=False) + "_qp" for row in table for v in row]
    for i in range(0, len(values), 2):
        end = ", &" if i + 2 < len(values) else f"], [{ZEROS}, {ORDERS}])"
        lines.append("        & " + ", ".join(values[i : i + 2]) + end)
    return "\n".join(lines) + "\n"


def cuda(name: str, table: list[list[Any]], kind: str, digits: int, suffix: str) -> str:
    """Return the table as constant memory, one row for each order."""
    lines = [f"__constant__ {kind} {name}_{kind}[{ORDERS}][{ZEROS}] = {{"]
    for row in table:
        values = [mp.nstr(v, digits, strip_zeros=False) + suffix for v in row]
        pieces = [", ".join(values[i : i + 4]) for i in range(0, ZEROS, 4)]
        lines.append("    {" + ",\n     ".join(pieces) + "},")
    return "\n".join(lines) + "\n};\n"


def main() -> None:
    """Write both files."""
    mp.mp.dps = 60
    roots = zeros()
    norms = [[mp.sqrt(2) / abs(spherical_bessel(order + 1, z)) for z in row] for order, row in enumerate(roots)]
    tables = {"bessel_zeros": roots, "bessel_norms": norms}
    note = "Written by tools/make_bessel_zeros.py"
    text = "".join(fortran(name, table) for name, table in tables.items())
    (ROOT / "fortran/common/bessel_zeros.inc").write_text(f"! {note}: column l, row k.\n" + text, encoding="utf-8")
    kinds = (("float", 9, "f"), ("double", 17, ""))
    text = "".join(cuda(name, table, *kind) for kind in kinds for name, table in tables.items())
    head = f"// {note}: row l, column k. Zeros of the spherical Bessel functions j_l, and norms.\n#pragma once\n\n"
    (ROOT / "gpu/kernels/bessel_zeros.cuh").write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write the zeros of the spherical Bessel functions and the norms of the radial basis as Fortran or CUDA constants.

z_lk is the k-th positive zero of j_l, and N_lk = (j_(l+1)(z_lk)^2 / 2)^(-1/2), for l = 0..7 and k = 1..16, the range
that the operators support. The build runs ``make_bessel_zeros.py {fortran,cuda} OUT``.
"""

import math
import sys
from decimal import Decimal, localcontext
from itertools import pairwise
from pathlib import Path

ORDERS = 8
ZEROS = 16

Table = list[list[Decimal]]


def spherical_bessel(order: int, x: Decimal) -> Decimal:
    """Return j_l(x) for l = order, from its power series; the decimal precision is enough for its cancellation."""
    term = Decimal(1)
    for i in range(1, order + 1):
        term *= x / (2 * i + 1)
    total, before, k = term, None, 0
    while total != before:
        k += 1
        term *= -x * x / (2 * k * (2 * (order + k) + 1))
        total, before = total + term, total
    return total


def find_zero_between(order: int, low: Decimal, high: Decimal) -> Decimal:
    """Return the only zero of j_l in an interval, found by bisection and then by Newton's method."""
    sign = spherical_bessel(order, low) > 0
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if (spherical_bessel(order, middle) > 0) == sign else (low, middle)
    x = (low + high) / 2
    for _ in range(6):
        j = spherical_bessel(order, x)
        x -= j / (order / x * j - spherical_bessel(order + 1, x))
    return x


def compute_zeros_and_norms() -> dict[str, Table]:
    """Return zeros and norms by order; each zero lies between two consecutive zeros of the next lower order."""
    with localcontext() as context:
        context.prec = 110  # terms of the series reach 1e33, which leaves 77 digits
        below = [Decimal(math.pi) * (2 * k - 1) / 2 for k in range(1, ZEROS + ORDERS + 1)]  # zeros of cos(x)/x
        zeros, norms = [], []
        for order in range(ORDERS):
            below = [find_zero_between(order, *ends) for ends in pairwise(below)]
            zeros.append(below[:ZEROS])
            norms.append([Decimal(2).sqrt() / abs(spherical_bessel(order + 1, z)) for z in zeros[-1]])
    return {"bessel_zeros": zeros, "bessel_norms": norms}


def format_decimal(value: Decimal, digits: int) -> str:
    """Format a number above 1 with the given number of significant digits."""
    return f"{value:.{digits - 1 - value.adjusted()}f}"


def format_fortran_table(name: str, table: Table) -> str:
    """Return the table as a Fortran constant of kind qp, with one column for each order."""
    values = ", &\n        & ".join(format_decimal(v, 36) + "_qp" for row in table for v in row)
    shape = f"[{ZEROS}, {ORDERS}]"
    return f"    real(qp), parameter :: {name}({ZEROS}, 0:{ORDERS - 1}) = reshape([ &\n        & {values}], {shape})\n"


def format_cuda_table(name: str, table: Table, kind: str, digits: int, suffix: str) -> str:
    """Return the table as an array in CUDA constant memory, with one row for each order."""
    rows = ["    {" + ",\n     ".join(format_decimal(v, digits) + suffix for v in row) + "}" for row in table]
    return f"__constant__ {kind} {name}_{kind}[{ORDERS}][{ZEROS}] = {{\n" + ",\n".join(rows) + "};\n"


def main() -> None:
    """Write the constants in the language given on the command line."""
    language, out = sys.argv[1:]
    text = "! {}: column l, row k.\n" if language == "fortran" else "// {}: row l, column k.\n#pragma once\n"
    text = text.format("Written by tools/make_bessel_zeros.py")
    for name, table in compute_zeros_and_norms().items():
        if language == "fortran":
            text += format_fortran_table(name, table)
        else:
            text += format_cuda_table(name, table, "float", 9, "f") + format_cuda_table(name, table, "double", 17, "")
    Path(out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

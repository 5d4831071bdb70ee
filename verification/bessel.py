"""Check of radial functions over three decades of x, because closed forms of j_l suffer cancellation at small x."""

import math
from dataclasses import replace

import numpy as np
from scipy.special import spherical_jn

from slopecheck.record import Check
from trigraph.pyref.dimenet import bessel_zeros
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification import tolerances
from trigraph.verification.case import Case, make_read_only
from trigraph.verification.cases import POINT_STEP, draw_arrays, use_normal_distribution
from trigraph.verification.judged import JudgedCase
from trigraph.verification.subjects import Subject, call_subject

CASE = "x = 0.001 to 1"
POINTS, DEGREES, RADIAL, EXPONENT = 61, 8, 6, 5


def make_radial_basis_case(dtype: str, seed: int) -> JudgedCase:
    """Return a case of radial_basis with logarithmically spaced distances and all degrees l."""
    definition = next(d for d in DEFINITIONS if d.name == "radial_basis")
    sizes = {"num_edges": POINTS, "num_radial": RADIAL, "num_spherical": DEGREES, "envelope_exponent": EXPONENT}
    x = make_read_only(np.geomspace(1e-3, 1, POINTS, endpoint=False).astype(dtype))
    freq = make_read_only((np.pi * np.arange(1, RADIAL + 1)).astype(dtype))
    rng = np.random.default_rng([seed, POINTS])
    inputs = {a.name: use_normal_distribution(a) for a in definition.inputs}
    grads = draw_arrays({f"grad_{a.name}": a for a in definition.outputs}, sizes, dtype, rng)
    ggs = draw_arrays({f"gg_{n}": a for n, a in inputs.items()}, sizes, dtype, rng)
    values = {"dist": x, "freq": freq, "num_spherical": DEGREES, "envelope_exponent": EXPONENT}
    return JudgedCase(
        Case(CASE, definition, sizes, values, grads, ggs, draw_arrays(inputs, sizes, dtype, rng), POINT_STEP)
    )


def _compute_radial_basis_with_scipy(x: np.ndarray) -> np.ndarray:
    """Return the envelope times scipy's normalised spherical Bessel functions, float64 (num_edges, degrees, radial)."""
    x = x.astype(np.float64)[:, None, None]
    q = EXPONENT + 1
    # To avoid cancellation at the cutoff, factor the envelope: env = (1 - x)^3 sum_n (n+1)(n+2)/2 x^n / x, n < q.
    env = (1 - x) ** 3 / x * sum((n + 1) * (n + 2) / 2 * x**n for n in range(q))
    degrees = np.arange(DEGREES)[:, None]
    zeros = bessel_zeros(DEGREES, RADIAL)
    norm = np.sqrt(2) / abs(spherical_jn(degrees + 1, zeros))
    return np.asarray(env * norm * spherical_jn(degrees, zeros * x))


def check_sbf_rad_against_scipy(subject: Subject, judged: JudgedCase) -> list[Check]:
    """Compare sbf_rad with scipy, with one check for each degree.

    Errors are in units of eps times the judge's scale; `curve` lists the largest error at each x.
    """
    case, op = judged.case, OPERATORS["radial_basis_fwd"]
    outcome = call_subject(subject, op, case.arguments(op))
    got = outcome.fields.get("sbf_rad")
    shape = (POINTS, DEGREES, RADIAL)
    fits = isinstance(got, np.ndarray) and got.size == math.prod(shape)
    problem = outcome.problem or ("" if fits else "sbf_rad has the wrong shape")
    x = case.values["dist"]
    errors = np.full(shape[:2], math.inf)
    if not problem:
        scale = judged.get_judge_triples(op)["sbf_rad"][2].reshape(shape)
        unit = tolerances.eps(case.dtype) * scale + tolerances.tiny(case.dtype)
        errors = (abs(np.asarray(got, np.float64).reshape(shape) - _compute_radial_basis_with_scipy(x)) / unit).max(
            axis=2
        )
    tolerance, checks = judged.tolerance(subject) + tolerances.CHUNKED_TOLERANCE, []
    for degree, own in enumerate(errors.T):
        calls = [outcome] if degree == 0 else []
        check = judged.make_check(
            subject, op.name, "bessel", f"sbf_rad, l = {degree}", float(own.max()), tolerance, calls, problem
        )
        checks.append(replace(check, curve=() if problem else tuple(zip(map(float, x), map(float, own), strict=True))))
    return checks

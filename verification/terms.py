"""Names and texts that `slopecheck` uses in tables, pages, pictures and comparisons of verification."""

from collections.abc import Sequence

from slopecheck.terms import PROPERTIES, ReportTerms
from trigraph.backends import BACKENDS
from trigraph.environment import collect_environment
from trigraph.table import NAMED
from trigraph.verification.kinds import CASE_KINDS, find_case_kind

# Kinds of check, and what they compare.
CHECK_KINDS = {
    "accuracy": "a backend against the real128 judge, elementwise",
    "differences": "central finite differences of one order against the next order",
    "golden": "a backend against vectors computed by other programs",
    "adjoint": "<bwd(g), v> against <g, jvp(v)> from the grad_ field of bwd2",
    "symmetry": "second derivatives before and after directions are exchanged",
    "permutation": "results before and after edges are renumbered, up to rounding",
    "threads": "results for several numbers of threads, bitwise",
    "levels": "results of the fast path's builds for x86-64-v3 and -v4, bitwise",
    "repeat": "results of repeated calls, bitwise",
    "batch": "results for a graph in a batch against results for the graph alone, bitwise (pyref and a user's "
    "function are compared with the judge's results for the graph alone)",
    "half": "results for embeddings in float16 and, with ml_dtypes, bfloat16, each element rounded once, against the "
    "judge (gpu, gpu-host)",
    "layout": "returned arrays against the requirements: C-contiguous, writable, of the correct dtype, sharing no "
    "memory",
    "out": "results written to the caller's arrays, at any address, against newly allocated results, bitwise",
    "nan": "the elements that a NaN or infinity in an argument reaches against those that depend on it",
    "forces": "forces from a chain of operators against differences of the energy",
    "force training": "parameter gradients of a loss on forces against differences",
    "invariance": "energy and forces before and after atoms are rotated, mirrored, translated and renumbered",
    "bessel": "radial functions from x = 0.001 to 1, degree by degree, against scipy",
    "empty": "empty sums (no edges, no nodes, isolated nodes) against zero",
    "complete": "checks that ran against the planned checks; appears only if it fails",
    "not offered": "nothing, because the function under test does not support these checks; they neither pass nor fail",
}


# Conventions at kinks; the cases with integers test these conventions.
CONVENTIONS = {
    "gno_kernel": "values before relu are exactly 0 here; convention: relu'(0) = 0",
    "gno_message": "values before relu are exactly 0 here; convention: relu'(0) = 0",
    "mha_gat_n2n": "scores are exactly 0 here; convention: the derivative of the negative side",
    "agg_weighted_n2n": "messages of an extremum are equal here; convention: the lowest CSC position",
}

# Entries of a report that affect the bits of results, with the path of each entry.
INFLUENCES = {
    "seed": ("seed",),
    "trigraph": ("environment", "trigraph", "version"),
    "commit": ("environment", "trigraph", "commit"),
    "NumPy": ("environment", "packages", "numpy"),
    "Fortran compiler": ("environment", "build", "fortran_version"),
    "C++ compiler": ("environment", "build", "cpp_version"),
    "instruction set": ("environment", "cpu", "level"),
    "device": ("environment", "device", "name"),
    "CuPy": ("environment", "packages", "cupy"),
}

LEGEND = """\
error and tolerance: in units of eps × scale, at the element where error/tolerance is largest
order: of convergence of central differences; exact if they have rounding errors only
other: golden vectors, symmetries, bitwise reproducibility and so on, as passed/all
"""


def find_special_case_remark(case: str, operator: str) -> str:
    """Return a remark about a special case, or "" for an ordinary case."""
    name = case.partition(",")[0]
    if name == "integers" and operator in NAMED:
        return CONVENTIONS.get(NAMED[operator].definition.name, find_case_kind(name).remark)
    if name.startswith("hub of "):
        return f"sums of {name.removeprefix('hub of ')} terms in one row"
    return find_case_kind(name).remark


def list_failed_case_remarks(cases: Sequence[str], operator: str) -> list[str]:
    """Return remarks about an operator's failed cases, or no remarks if ordinary cases also fail."""
    names = dict.fromkeys(case.partition(",")[0] for case in cases)
    if any(name in CASE_KINDS and not CASE_KINDS[name].remark for name in names):
        return []
    texts = {name: find_special_case_remark(name, operator) for name in names}
    return [f"{name}: {text}" for name, text in texts.items() if text]


TERMS = ReportTerms(
    environment=collect_environment,
    kinds=CHECK_KINDS,
    properties={
        **PROPERTIES,
        "levels": "instruction sets",
        "batch": "batches",
        "permutation": "order of edges",
        "out": "the caller's arrays",
        "empty": "nothing to sum",
    },
    curves=("differences", "forces", "force training"),
    influences=INFLUENCES,
    definitions={name: op.definition.name for name, op in NAMED.items()},
    remarks=list_failed_case_remarks,
    # Okabe and Ito's colours, which are distinguishable with any type of colour vision.
    colours=dict(
        zip((*BACKENDS, "judge"), ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#8a919c"), strict=True)
    ),
    legend=LEGEND,
)

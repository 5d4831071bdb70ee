"""GemNet-OC at its extremes: hubs with equal terms, builds for other processors, memory that the system refuses."""

import os
import subprocess
import sys

import numpy as np
import pytest

import trigraph
from trigraph import Segments
from trigraph.checks import shape_of
from trigraph.fortran import levels
from trigraph.table import OPERATORS

OPS = [op for op in OPERATORS.values() if op.family == "gemnet"]
DIMS = {"num_radial": 2, "num_spherical": 3, "interm": 2, "emb_in": 3, "emb_out": 2}
RADIALS, FUNCTIONS, INTERM, IN, OUT = DIMS.values()
# The value (None) and the gradient in each factor of a multilinear operator whose arguments are constants; T triplets,
# of which `edge` belong to one edge, `output` to one output and `row` to one row of m.
RADIAL = {
    None: lambda n, rad_basis, weight: RADIALS * rad_basis * weight,
    "rad_basis": lambda n, g, weight: INTERM * g * weight,
    "weight": lambda n, g, rad_basis: n["edges"] * g * rad_basis,
}
SPHERICAL = RADIAL | {"rad_basis": lambda n, g, weight: FUNCTIONS * INTERM * g * weight}
TRIPLETS = {
    None: lambda n, rad_basis, weight, sph_basis: RADIALS * FUNCTIONS * rad_basis * weight * sph_basis,
    "rad_basis": lambda n, g, weight, sph_basis: n["edge"] * FUNCTIONS * INTERM * g * weight * sph_basis,
    "weight": lambda n, g, rad_basis, sph_basis: n["T"] * g * rad_basis * sph_basis,
    "sph_basis": lambda n, g, rad_basis, weight: RADIALS * INTERM * g * rad_basis * weight,
}
BILINEAR = {
    None: lambda n, rad_W1, sph, m, weight: n["output"] * FUNCTIONS * INTERM * IN * rad_W1 * sph * m * weight,
    "rad_W1": lambda n, g, sph, m, weight: n["edge"] * IN * OUT * g * sph * m * weight,
    "sph": lambda n, g, rad_W1, m, weight: INTERM * IN * OUT * g * rad_W1 * m * weight,
    "m": lambda n, g, rad_W1, sph, weight: n["row"] * FUNCTIONS * INTERM * OUT * g * rad_W1 * sph * weight,
    "weight": lambda n, g, rad_W1, sph, m: n["T"] * FUNCTIONS * g * rad_W1 * sph * m,
}
FORMULAS = {
    "basis_embedding_radial": RADIAL,
    "basis_embedding_spherical": SPHERICAL,
    "basis_embedding_triplets": TRIPLETS,
    "interaction_bilinear": BILINEAR,
}


def everything(name, constants, sizes):
    """All fields of the three orders, by name of operator and field; bwd2 by polarisation."""
    formulas, output = FORMULAS[name], OPERATORS[f"{name}_fwd"].fields[0].name
    factors = {k: constants[k] for k in formulas if k is not None}

    def at(field, given):
        others = {k: v for k, v in given.items() if k != field}
        return formulas[field](sizes, **others, **({} if field is None else {"g": constants["g"]}))

    expected = {f"{name}_fwd.{output}": at(None, factors)}
    expected |= {f"{name}_bwd.{k}": at(k, factors) for k in factors}
    for k in formulas:
        terms = [at(k, factors | {n: constants[f"gg_{n}"]}) for n in factors if n != k]
        expected[f"{name}_bwd2.{f'grad_{output}' if k is None else k}"] = sum(terms)
    return expected


def fields(op, result):
    return {op.fields[0].name: result} if op.single else result._asdict()


def hub(name, where, terms):
    """Sizes, graphs and how many triplets come together, for a hub of that many equal terms."""
    if name.endswith(("radial", "spherical")):
        return {"num_edges": terms}, {}, {"edges": terms}
    edges = {"edge": 1, "edges": terms, "atom": terms, "row": terms, "atom of edges": terms // 50}[where]
    per_edge = 50 if where == "atom of edges" else terms // edges
    T = edges * per_edge
    together = {"T": T, "edge": per_edge, "output": per_edge, "row": 1}
    sizes = {"num_edges": edges, "num_triplets": T, "num_inputs": T, "num_outputs": edges}
    graphs = {"triplets": Segments(np.repeat(np.arange(edges), per_edge), edges)}
    if name == "interaction_bilinear" and where.startswith("atom"):
        graphs["atoms"], together["output"], sizes["num_outputs"] = Segments(np.zeros(edges, int), 1), T, 1
    if name == "interaction_bilinear" and where == "row":
        graphs["idx_in"], together["row"], sizes["num_inputs"] = Segments(np.zeros(T, int), 1), T, 1
    return sizes, graphs, together


HUBS = [
    ("basis_embedding_radial", "edges"),
    ("basis_embedding_spherical", "edges"),
    ("basis_embedding_triplets", "edge"),
    ("basis_embedding_triplets", "edges"),
    *(("interaction_bilinear", where) for where in ("edge", "edges", "atom", "row", "atom of edges")),
]


# A million in float64 takes longest, and adds nothing to a million in float32 and a hundred thousand in float64.
@pytest.mark.parametrize(
    ("terms", "dtype"),
    [
        (100_000, np.float32),
        (100_000, np.float64),
        (1_000_000, np.float32),
        pytest.param(1_000_000, np.float64, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("name", "where"), HUBS)
def test_hubs_of_equal_terms(name, where, dtype, terms):
    """8 eps, the rule for sums in chunks, where the roundings of equal terms all go the same way."""
    sizes, graphs, together = hub(name, where, terms)
    rng, names = np.random.default_rng(terms), [k for k in FORMULAS[name] if k is not None]
    constants = {k: dtype(rng.uniform(0.5, 2)) for k in ["g", *names, *(f"gg_{k}" for k in names)]}
    exact = everything(name, {k: np.longdouble(v) for k, v in constants.items()}, together)
    for order in ("fwd", "bwd", "bwd2"):
        op = OPERATORS[f"{name}_{order}"]
        values = {
            a.name: np.full(shape_of(a, DIMS | sizes), constants["g" if a.name.startswith("grad_") else a.name], dtype)
            for a in op.arguments
        }
        result = getattr(trigraph, op.name)(**values, **graphs, panel="fortran")
        for field, got in fields(op, result).items():
            expected = exact[f"{op.name}.{field}"]
            error = float(np.max(np.abs(got.astype(np.longdouble) - expected)) / expected / np.finfo(dtype).eps)
            assert error <= 8, (op.name, field)


AVAILABLE = levels.available()


@pytest.mark.skipif(not {"v3", "v4"} <= {*AVAILABLE}, reason="the processor has not both levels")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_same_bits_at_both_levels(name, dtype, seed):
    """Sizes that fill no vector, which decided in what order an edge's products were made, and where chunks began."""
    rng = np.random.default_rng(seed)
    edges, triplets, rows, outputs = 200, 3000, 90, int(rng.integers(1, 30))
    sizes = {s: int(rng.integers(1, 70)) for s in DIMS}
    sizes |= {"num_edges": edges, "num_triplets": triplets, "num_inputs": rows, "num_outputs": outputs}
    graphs = {
        "triplets": Segments(rng.choice(edges, triplets, p=rng.dirichlet(np.full(edges, 0.3))), edges),
        "atoms": Segments(rng.integers(0, outputs, edges), outputs),
        "idx_in": Segments(rng.integers(0, rows, triplets), rows),
    }
    before = trigraph.get_cpu_level()
    try:
        for order in ("fwd", "bwd", "bwd2"):
            op = OPERATORS[f"{name}_{order}"]
            values = {a.name: rng.standard_normal(shape_of(a, sizes)).astype(dtype) for a in op.arguments}
            values |= {k: v for k, v in graphs.items() if k in op.parameters}
            found = []
            for level in ("v3", "v4"):
                trigraph.set_cpu_level(level)
                found.append(fields(op, getattr(trigraph, op.name)(**values, panel="fortran")))
            for field in found[0]:
                assert found[0][field].tobytes() == found[1][field].tobytes(), (op.name, field)
    finally:
        trigraph.set_cpu_level(before)


REFUSED = """
import resource, sys
import numpy as np
import trigraph
from trigraph.checks import shape_of

panel, names = sys.argv[1], sys.argv[2:]
rng = np.random.default_rng(0)
sizes = dict(num_radial=32, num_spherical=7, interm=16, emb_in=32, emb_out=32)
sizes |= dict(num_edges=150, num_triplets=900, num_inputs=150, num_outputs=30)
graphs = dict(
    triplets=trigraph.Segments(np.r_[np.zeros(600, int), rng.integers(0, 150, 300)], 150),
    atoms=trigraph.Segments(rng.integers(0, 30, 150), 30),
    idx_in=trigraph.Segments(rng.integers(0, 150, 900), 150),
)
soft, hard = resource.getrlimit(resource.RLIMIT_AS)

for name in names:
    op = trigraph.table.OPERATORS[name]
    values = {a.name: rng.standard_normal(shape_of(a, sizes)) for a in op.arguments}
    values |= {k: v for k, v in graphs.items() if k in op.parameters}
    out = {f.name: np.empty(shape_of(f, sizes)) for f in op.fields}

    def call(**more):
        for a in out.values():
            a[...] = np.nan
        try:
            resource.setrlimit(resource.RLIMIT_AS, (more.get("limit", soft), hard))
            getattr(trigraph, name)(**values, panel=panel, out=out[op.fields[0].name] if op.single else out)
        except MemoryError as error:
            return str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        return ""

    assert not call()
    expected, refused, made = {k: a.copy() for k, a in out.items()}, 0, 0
    for step in range(60):
        pages = int(open("/proc/self/statm").read().split()[0])
        error = call(limit=pages*resource.getpagesize() + int(2**12*1.15**step))
        refused += error.startswith(name + ": the system refused")
        made += not error
        for k, a in out.items():
            assert np.isnan(a).all() if error else np.array_equal(a, expected[k]), (name, error)
    print(name, refused, made)
"""


@pytest.mark.parametrize("panel", ["fortran", "fortran-reference"])
def test_refused_memory(panel):
    """A MemoryError with nothing written, or the result: the smaller the address space that is left, the sooner."""
    # What is freed goes back at once, and no more is asked for than is needed: every call asks for its work space.
    allocator = {"MALLOC_MMAP_THRESHOLD_": "1024", "MALLOC_ARENA_MAX": "1"}
    allocator |= {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
    command = [sys.executable, "-c", REFUSED, panel, *(op.name for op in OPS)]
    found = subprocess.run(command, env=os.environ | allocator, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == len(OPS)
    for line in found.stdout.splitlines():
        name, refused, made = line.split()
        # The reference needs next to nothing for the others.
        has_work_space = panel == "fortran" or "triplets_bwd" in name or "bilinear" in name
        assert (int(refused) > 0) == has_work_space, line
        assert int(made) > 0, line

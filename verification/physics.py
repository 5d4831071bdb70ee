"""Checks of forces, training on forces, and invariance under rotations, for molecules, slabs and crystals.

One interaction block of DimeNet++ defines an energy of the atoms' positions R, with r_e = R_src - R_dst + offset:

    x = |r| / cutoff;  rbf, sbf_rad = radial_basis_fwd(x, freq);  m = embedding * (rbf @ projection);
    out = agg_edge_to_edge_fwd(r, sbf_rad, m, weights, graph);  E = sum(readout * out);  F = -dE/dR

Forces are computed by agg_edge_to_edge_bwd and radial_basis_bwd; the gradient of a loss of the forces with respect to
the parameters is computed by both bwd2. The results are compared with central differences of E and of the loss.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from slopecheck.record import Check
from trigraph.fortran import judge
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.table import OPERATORS, evaluate_expression
from trigraph.verification import tolerances
from trigraph.verification.differences import add_curve_verdict, compute_rounded_gap, sum_inner_products
from trigraph.verification.graphs.edges import renumber_graph
from trigraph.verification.judged import compute_with_judge
from trigraph.verification.structures import (
    BASIS,
    MID_WIDTH,
    SUM,
    WHOLE_TRIPLETS,
    WIDTH,
    AtomicStructure,
    InteractionModel,
    draw_normal_numbers,
    make_interaction_model,
)
from trigraph.verification.subjects import Subject, compute_subject_fields, make_backend_subject

# Operators that each check calls; the check is recorded under the name of the first operator.
CHAIN = ("agg_edge_to_edge_bwd", "agg_edge_to_edge_fwd", "radial_basis_fwd", "radial_basis_bwd")
INVOLVED = {
    "forces": CHAIN,
    "force training": ("agg_edge_to_edge_bwd2", *CHAIN, "radial_basis_bwd2"),
    "invariance": CHAIN,
}
STEPS = tuple(2.0**-k for k in (*range(6, 20, 2), *range(21, 31, 3)))
TRAINED = ("weights", "freq")
SUM_ROUNDING = 2.0**-100  # rounding error of real128 sums, relative to the sum of absolute terms
TRANSLATION = np.array([3.7, -11.3, 5.9])
Call = Callable[..., Mapping[str, np.ndarray]]
Products = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class PhysicalSystem:
    """Atoms, graph and model; `target`, shape (num_nodes, 3), contains the target forces of the loss."""

    name: str
    positions: np.ndarray
    offset: np.ndarray
    cutoff: float
    graph: EdgeGraph
    model: InteractionModel
    target: np.ndarray
    note: str = ""

    # Cached properties depend only on fields, which never change.

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes of both operators."""
        widths = {
            "num_spherical": SUM["num_spherical"],
            "num_radial": SUM["num_radial"],
            "n_emb": WIDTH,
            "n_mid": MID_WIDTH,
        }
        return {"num_edges": self.graph.num_edges, "num_nodes": self.graph.num_nodes, **widths}

    @cached_property
    def rounding_scales(self) -> tuple[float, float]:
        """Scales of the rounding errors of energy and forces; see `_compute_rounding_scales`."""
        return _compute_rounding_scales(self)


def make_physical_system(structure: AtomicStructure) -> PhysicalSystem:
    """Return the system for a structure, or for a part if pyref would need too much memory."""
    some = structure.limit_triplets(WHOLE_TRIPLETS)
    target = draw_normal_numbers(f"{structure.name} forces", len(some.positions), 3)
    return PhysicalSystem(
        some.name, some.positions, some.offset, some.cutoff, some.graph, make_interaction_model(some), target, some.note
    )


# ---- the chain -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnergyIntermediates:
    """Intermediate results of the energy that its derivatives need."""

    vec: np.ndarray
    unit: np.ndarray
    dist: np.ndarray
    rbf: np.ndarray
    sbf_rad: np.ndarray
    message: np.ndarray
    out: np.ndarray

    def make_radial_basis_arguments(self, s: PhysicalSystem) -> dict[str, Any]:
        """Return the arguments of radial_basis_fwd."""
        return {"dist": self.dist, "freq": s.model.freq, **BASIS}

    def make_triplet_sum_arguments(self, s: PhysicalSystem) -> dict[str, Any]:
        """Return the arguments of agg_edge_to_edge_fwd."""
        arrays = {"vec": self.vec, "sbf_rad": self.sbf_rad, "embedding": self.message, "weights": s.model.weights}
        return {**arrays, "graph": s.graph, **SUM}


@dataclass(frozen=True)
class ForceResults:
    """Forces, intermediate results, and `edge`, the gradient of the energy with respect to the edge vectors."""

    sum: Mapping[str, np.ndarray]
    grad_rbf: np.ndarray
    grad_dist: np.ndarray
    edge: np.ndarray
    forces: np.ndarray


def compute_energy_terms(call: Call, s: PhysicalSystem) -> EnergyIntermediates:
    """Compute the terms of the energy."""
    vec = s.positions[s.graph.src] - s.positions[s.graph.dst] + s.offset
    length = np.linalg.norm(vec, axis=1)
    dist = length / s.cutoff
    basis = call("radial_basis_fwd", dist=dist, freq=s.model.freq, **BASIS)
    message = s.model.embedding * (basis["rbf"] @ s.model.projection)
    part = EnergyIntermediates(vec, vec / length[:, None], dist, basis["rbf"], basis["sbf_rad"], message, np.empty(0))
    return replace(part, out=call("agg_edge_to_edge_fwd", **part.make_triplet_sum_arguments(s))["out"])


def compute_forces(call: Call, s: PhysicalSystem, f: EnergyIntermediates) -> ForceResults:
    """Compute the forces from the gradient of sum(readout * out) through both operators."""
    of_sum = call("agg_edge_to_edge_bwd", grad_out=s.model.readout, **f.make_triplet_sum_arguments(s))
    grad_rbf = (of_sum["embedding"] * s.model.embedding) @ s.model.projection.T
    of_basis = call(
        "radial_basis_bwd", grad_rbf=grad_rbf, grad_sbf_rad=of_sum["sbf_rad"], **f.make_radial_basis_arguments(s)
    )
    edge = of_sum["vec"] + of_basis["dist"][:, None] * f.unit / s.cutoff
    forces = np.zeros_like(s.positions)
    other = s.graph.src != s.graph.dst  # vectors to an atom's own images are independent of its position
    np.subtract.at(forces, s.graph.src[other], edge[other])
    np.add.at(forces, s.graph.dst[other], edge[other])
    return ForceResults(of_sum, grad_rbf, of_basis["dist"], edge, forces)


@dataclass(frozen=True)
class ForceGradients:
    """Gradient of sum(t * forces) with respect to the parameters, and cotangents of every step of the computation."""

    parameters: dict[str, np.ndarray]
    edge: np.ndarray
    along: np.ndarray
    of_basis: Mapping[str, np.ndarray]
    of_sum: Mapping[str, np.ndarray]
    gg_message: np.ndarray
    grad_rbf: np.ndarray
    vec: np.ndarray


def differentiate_forces(
    call: Call, s: PhysicalSystem, f: EnergyIntermediates, b: ForceResults, t: np.ndarray
) -> ForceGradients:
    """Differentiate sum(t * forces) with respect to parameters and edge vectors, by bwd2 of both operators."""
    m = s.model
    edge = t[s.graph.dst] - t[s.graph.src]
    along = (edge * f.unit).sum(1) / s.cutoff
    of_basis = call(
        "radial_basis_bwd2",
        gg_dist=along,
        gg_freq=np.zeros_like(m.freq),
        grad_rbf=b.grad_rbf,
        grad_sbf_rad=b.sum["sbf_rad"],
        **f.make_radial_basis_arguments(s),
    )
    gg_message = (of_basis["grad_rbf"] @ m.projection) * m.embedding
    of_sum = call(
        "agg_edge_to_edge_bwd2",
        gg_vec=edge,
        gg_sbf_rad=of_basis["grad_sbf_rad"],
        gg_embedding=gg_message,
        gg_weights=np.zeros_like(m.weights),
        grad_out=m.readout,
        **f.make_triplet_sum_arguments(s),
    )
    grad_rbf = (of_sum["embedding"] * m.embedding) @ m.projection.T
    first = call(
        "radial_basis_bwd", grad_rbf=grad_rbf, grad_sbf_rad=of_sum["sbf_rad"], **f.make_radial_basis_arguments(s)
    )
    parameters = {
        "weights": of_sum["weights"],
        "freq": of_basis["freq"] + first["freq"],
    }
    length = f.dist[:, None] * s.cutoff
    direction_term = (edge - f.unit * (edge * f.unit).sum(1, keepdims=True)) / length * b.grad_dist[:, None] / s.cutoff
    vec = of_sum["vec"] + (of_basis["dist"] + first["dist"])[:, None] * f.unit / s.cutoff + direction_term
    return ForceGradients(parameters, edge, along, of_basis, of_sum, gg_message, grad_rbf, vec)


def _make_operator_caller(subject: Subject) -> Call:
    """Return a function that calls the subject's operators by name; it raises `SubjectCallError` if a call fails."""

    def compute_fields(name: str, **values: Any) -> Mapping[str, np.ndarray]:
        op = OPERATORS[name]
        return compute_subject_fields(subject, op, values, [field.name for field in op.fields])

    return compute_fields


# ---- differences -----------------------------------------------------------------------------------------------------


def _list_energy_factors(call: Call, s: PhysicalSystem) -> Products:
    return [(judge.make_exact_pair(s.model.readout), judge.make_exact_pair(compute_energy_terms(call, s).out))]


def _list_loss_factors(call: Call, s: PhysicalSystem) -> Products:
    """Return half the sum of squared force errors, as the factors of products."""
    missing = judge.make_exact_pair(compute_forces(call, s, compute_energy_terms(call, s)).forces - s.target)
    return [(0.5 * missing, missing)]


def _replace_system_value(s: PhysicalSystem, name: str, value: np.ndarray) -> PhysicalSystem:
    if name == "positions":
        return replace(s, positions=value)
    return replace(s, model=replace(s.model, **{name: value}))


def _compute_difference_errors(
    call: Call,
    s: PhysicalSystem,
    name: str,
    gradient: np.ndarray,
    function: Callable[[Call, PhysicalSystem], Products],
    direction: np.ndarray,
) -> list[float]:
    """Return |f(x+) - f(x-) - <gradient, x+ - x->| / sum |gradient_i (x+ - x-)_i| by step, as in differences.py."""
    x = s.positions if name == "positions" else getattr(s.model, name)
    errors = []
    for step in STEPS:
        plus = function(call, _replace_system_value(s, name, x + step * direction))
        minus = function(call, _replace_system_value(s, name, x - step * direction))
        products = [(judge.make_exact_pair(gradient), compute_rounded_gap(x, step, direction))]
        _, size = sum_inner_products(products)
        residual, terms = sum_inner_products([*plus, *((-a, b) for a, b in minus), *((-a, b) for a, b in products)])
        # If all neighbours are images of the same atom, nothing depends on x, and the residual is pure rounding error.
        equal = abs(residual) <= SUM_ROUNDING * terms
        errors.append(0.0 if equal else abs(residual) / (size + tolerances.tiny("float64")))
    return errors


def _make_curve_check(
    subject: Subject, s: PhysicalSystem, operator: str, kind: str, field: str, curve: Callable[[], list[float]]
) -> Check:
    """Return a check with the verdict on the curve of errors at `STEPS`."""
    tolerance = tolerances.difference_tolerance("float64")
    check = Check(operator, subject.name, "float64", kind, s.name, field, math.inf, tolerance, note=s.note)
    # Rounding floors are set to 0: energy and loss are not polynomials, so the curve must show the order of the error.
    return add_curve_verdict(check, STEPS, None, lambda: (curve(), [0.0] * len(STEPS)))


def check_forces(subject: Subject, s: PhysicalSystem, operator: str = INVOLVED["forces"][0]) -> list[Check]:
    """Compare forces with differences of the energy along a random direction in which all positions change."""
    call = _make_operator_caller(subject)

    def compute_force_errors() -> list[float]:
        forces = compute_forces(call, s, compute_energy_terms(call, s)).forces
        direction = draw_normal_numbers(f"{s.name} displacement", *s.positions.shape)
        return _compute_difference_errors(call, s, "positions", -forces, _list_energy_factors, direction)

    return [_make_curve_check(subject, s, operator, "forces", "positions", compute_force_errors)]


def check_force_loss_gradient(
    subject: Subject, s: PhysicalSystem, operator: str = INVOLVED["force training"][0]
) -> list[Check]:
    """Compare the parameter gradient of a loss of forces with differences of the loss."""
    call = _make_operator_caller(subject)

    def compute_gradient_errors(name: str) -> list[float]:
        f = compute_energy_terms(call, s)
        b = compute_forces(call, s, f)
        gradient = differentiate_forces(call, s, f, b, b.forces - s.target).parameters[name]
        x = getattr(s.model, name)
        return _compute_difference_errors(
            call,
            s,
            name,
            gradient,
            _list_loss_factors,
            x * draw_normal_numbers(f"{s.name} {name} direction", *x.shape),
        )

    return [
        _make_curve_check(subject, s, operator, "force training", name, partial(compute_gradient_errors, name))
        for name in TRAINED
    ]


# ---- invariance ------------------------------------------------------------------------------------------------------


def _sum_absolute_products(*pairs: tuple[np.ndarray, np.ndarray]) -> float:
    return float(sum(np.sum(abs(a) * abs(b)) for a, b in pairs))


def _compute_rounding_scales(s: PhysicalSystem) -> tuple[float, float]:
    """Return the scales of the rounding errors of E and sum(target * F): weighted sums of the scales of all steps.

    The steps are the two operators and their derivatives (with the judge's scales), the products with the projection,
    and the edge vectors, whose rounding errors stem from positions and offsets after any of the motions.
    """
    call = _make_operator_caller(make_backend_subject("pyref"))
    f = compute_energy_terms(call, s)
    b = compute_forces(call, s, f)
    d = differentiate_forces(call, s, f, b, s.target)
    m = s.model

    def compute_judge_scales(name: str, **values: Any) -> dict[str, np.ndarray]:
        return {field: triple[2] for field, triple in compute_with_judge(OPERATORS[name], values).items()}

    basis, out = (
        compute_judge_scales("radial_basis_fwd", **f.make_radial_basis_arguments(s)),
        compute_judge_scales("agg_edge_to_edge_fwd", **f.make_triplet_sum_arguments(s))["out"],
    )
    of_sum = compute_judge_scales("agg_edge_to_edge_bwd", grad_out=m.readout, **f.make_triplet_sum_arguments(s))
    dist = compute_judge_scales(
        "radial_basis_bwd", grad_rbf=b.grad_rbf, grad_sbf_rad=b.sum["sbf_rad"], **f.make_radial_basis_arguments(s)
    )["dist"]
    message = abs(m.embedding) * (abs(f.rbf) @ abs(m.projection))
    back_rbf = (abs(b.sum["embedding"]) * abs(m.embedding)) @ abs(m.projection).T
    ends = abs(s.positions[s.graph.src]) + abs(s.positions[s.graph.dst]) + abs(s.offset)
    reach = (ends + 2 * abs(TRANSLATION)).sum(1, keepdims=True)
    energy = _sum_absolute_products(
        (m.readout, out), (b.sum["sbf_rad"], basis["sbf_rad"]), (b.grad_rbf, basis["rbf"]),
        (b.sum["embedding"], message), (b.edge, reach),
    )  # fmt: skip
    forces = _sum_absolute_products(
        (d.edge, of_sum["vec"]), (d.of_basis["grad_sbf_rad"], of_sum["sbf_rad"]), (d.gg_message, of_sum["embedding"]),
        (d.along, dist), (d.of_basis["grad_rbf"], back_rbf), (d.of_sum["sbf_rad"], basis["sbf_rad"]),
        (d.grad_rbf, basis["rbf"]), (d.of_sum["embedding"], message), (d.edge, b.edge), (d.vec, reach),
    )  # fmt: skip
    return energy, forces


def _rotate_system(matrix: np.ndarray, s: PhysicalSystem) -> PhysicalSystem:
    return replace(s, positions=s.positions @ matrix, offset=s.offset @ matrix, target=s.target @ matrix)


def _renumber_atoms(s: PhysicalSystem) -> PhysicalSystem:
    """Renumber the atoms; sort edges by new source, with random order for each source."""
    rng = np.random.default_rng(len(s.positions))
    order = rng.permutation(len(s.positions))
    vec = s.positions[s.graph.src] - s.positions[s.graph.dst] + s.offset
    graph, edges = renumber_graph(s.graph, vec, order, rng.permutation(s.graph.num_edges))
    rows = {name: getattr(s.model, name)[edges] for name in ("embedding", "readout")}
    return replace(
        s,
        positions=s.positions[order],
        target=s.target[order],
        offset=s.offset[edges],
        graph=graph,
        model=replace(s.model, **rows),
    )


# A rotation that is not a symmetry of any structure.
ROTATION = Rotation.from_quat([0.1, -0.5, 0.3, 0.8]).as_matrix()
MOTIONS: dict[str, Callable[[PhysicalSystem], PhysicalSystem]] = {
    "rotated": partial(_rotate_system, ROTATION),
    "mirrored": partial(_rotate_system, -np.eye(3)),
    "translated": lambda s: replace(s, positions=s.positions + TRANSLATION),
    "renumbered": _renumber_atoms,
}


def check_invariance(subject: Subject, s: PhysicalSystem, operator: str = INVOLVED["invariance"][0]) -> list[Check]:
    """Compare the energy, and the forces along `target`, before and after each of `MOTIONS`, which also moves `target`.

    Errors are in units of eps times the scale of rounding errors. The tolerance is twice the accuracy tolerance,
    because both values contain rounding errors.
    """
    call = _make_operator_caller(subject)
    terms = sum(
        evaluate_expression(OPERATORS[n].definition.terms, s.sizes)
        for n in ("radial_basis_fwd", "agg_edge_to_edge_fwd")
    )

    def compute_energy_and_projected_force(system: PhysicalSystem) -> tuple[np.ndarray, np.ndarray]:
        f = compute_energy_terms(call, system)
        forces = compute_forces(call, system, f).forces
        pairs = (system.model.readout, f.out), (system.target, forces)
        first, other = (
            np.array(judge.compute_dot_and_scale(judge.make_exact_pair(a), judge.make_exact_pair(b))[:2])
            for a, b in pairs
        )
        return first, other

    rounding: tuple[float, float] = s.rounding_scales  # computed before the timed loop, which thus excludes the judge
    checks, before = [], None
    for name, motion in MOTIONS.items():
        start, moved = time.perf_counter(), motion(s)
        errors, problem = [math.inf, math.inf], ""
        try:
            before = before or compute_energy_and_projected_force(s)
            for i, (one, two) in enumerate(zip(before, compute_energy_and_projected_force(moved), strict=True)):
                unit = tolerances.eps("float64") * rounding[i] + tolerances.tiny("float64")
                errors[i] = float(abs((one[0] - two[0]) + (one[1] - two[1])) / unit)
        except ValueError as failure:  # a call failed, or a shape is wrong
            problem = str(failure)
        seconds = (time.perf_counter() - start) / 2
        tolerance = 2 * tolerances.accuracy_tolerance(subject.chunked, terms)
        for field, error in zip(("energy", "forces"), errors, strict=True):
            case = f"{s.name}, {name}"
            check = Check(operator, subject.name, "float64", "invariance", case, field, error, tolerance)
            checks.append(replace(check, seconds=seconds, note=problem or s.note))
    return checks


CHECKS: dict[str, Callable[[Subject, PhysicalSystem, str], list[Check]]] = {
    "forces": check_forces,
    "force training": check_force_loss_gradient,
    "invariance": check_invariance,
}
# Number of checks by kind.
COUNTS = {"forces": 1, "force training": len(TRAINED), "invariance": 2 * len(MOTIONS)}

"""Real inputs: small data files shipped with the package, made by scripts beside them, and structures the user names.

Real coordinates are not drawn again when they come near a kink: such edges are left out, and the case says how many.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.checks import bind_sizes
from trigraph.graphs import CSC
from trigraph.panels import panel_function
from trigraph.table import Definition
from trigraph.verification import networks
from trigraph.verification.cases import POINT_STEP, Case, draw, frozen, kink_violations, plain
from trigraph.verification.judged import operators_of
from trigraph.verification.structures import Structure, shipped
from trigraph.verification.triplets import sums_over

__all__ = ["RealInput", "build_real", "real_inputs"]

AIRFOIL = Path(__file__).parent / "data" / "airfoil.npz"
SLAB = "copper slab with CO"
WIDTH = 8  # features in and out, as the weights have them
NEAR = 8  # destinations of the patch
# Steps of differences on the full input; directions are relative (v_i = x_i times a normal number). Pieces of GNO are
# polynomials of degree 2 at most, GemNet-OC is linear in each input; DimeNet++ needs steps enough to show the order.
POLYNOMIAL_STEPS = tuple(2.0**-k for k in range(10, 36, 8))
STRUCTURE_STEPS = tuple(2.0**-k for k in (*range(6, 20, 2), *range(22, 36, 4)))
NETWORK_STEPS = tuple(2.0**-k for k in (*range(3, 20, 2), *range(22, 36, 4)))


@cache
def _airfoil() -> dict[str, np.ndarray]:
    with np.load(AIRFOIL) as archive:
        return dict(archive)


def _mesh(patch: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of the nodes, and source and destination of every edge; a patch is the in-edges of `NEAR` nodes."""
    z = _airfoil()
    positions, offsets, src = z["positions"], z["offsets"], z["indices"]
    dst = np.repeat(np.arange(len(positions), dtype=src.dtype), np.diff(offsets))
    if patch:
        near = np.argsort(np.linalg.norm(positions, axis=1), kind="stable")[:NEAR]
        inside = np.isin(dst, near)
        src, dst = src[inside], dst[inside]
        nodes, numbers = np.unique(np.concatenate([src, dst]), return_inverse=True)
        src, dst = numbers.astype(src.dtype).reshape(2, -1)
        positions = positions[nodes]
    return positions, src, dst


def _airfoil_values(definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
    """GNO on pyamg's airfoil mesh: dx between nodes, smooth fields as features, athena's weights."""
    positions, src, dst = _mesh(patch)
    if keep is not None:
        src, dst = src[keep], dst[keep]
    waves = positions @ np.array([[0.3, 0.7, 0.2, 0.5], [0.6, -0.1, 0.4, -0.8]])
    sizes = {"f_in": WIDTH, "f_out": WIDTH}
    coords, params = positions[src] - positions[dst], _airfoil()["params"].astype(np.float64)
    known = {
        "coords": coords,
        "params": params,
        "features": np.concatenate([np.sin(waves), np.cos(waves)], axis=1),
        "kernel": panel_function("pyref", "gno_kernel_fwd")(coords, params, **sizes),
        "graph": CSC.from_coo(src, dst, len(positions), len(positions)),
        **sizes,
    }
    return {name: known[name] for name in operators_of(definition)[0].parameters}


@dataclass(frozen=True)
class RealInput:
    """A real input of a family.

    `values(definition, patch, keep)` returns the arguments of fwd in float64, on a patch within the judge's budget or
    on the whole input, with the rows of the resampled input for which `keep` is True (all for None). `steps` are those
    of differences on the whole; `remark(patch)` says what is left out. The whole is for `panels`, where it is large.
    """

    name: str
    values: Callable[[Definition, bool, np.ndarray | None], dict[str, Any]]
    steps: tuple[float, ...]
    remark: Callable[[bool], str] = lambda patch: ""
    panels: tuple[str, ...] = ()


def real_inputs(family: str, structures: Iterable[Structure] = ()) -> tuple[RealInput, ...]:
    """Return the real inputs of a family: those shipped or made, and structures of the user's for DimeNet++."""
    if family in ("gat", "weighted"):
        return (
            RealInput("airfoil", networks.mesh_values(_mesh), NETWORK_STEPS),
            RealInput("karate club", networks.club_values, NETWORK_STEPS),
            RealInput("power law", networks.power_law_values, (), panels=("fortran",)),
        )
    if family == "gno":
        return (RealInput("airfoil", _airfoil_values, POLYNOMIAL_STEPS),)
    if family == "dimenet":
        return tuple(RealInput(s.name, s.values, STRUCTURE_STEPS, s.remark) for s in (*shipped(), *structures))
    if family == "gemnet":
        (slab,) = (s for s in shipped() if s.name == SLAB)
        return tuple(RealInput(n, s.values, POLYNOMIAL_STEPS, s.remark) for n, s in sums_over(slab).items())
    return ()


def build_real(real: RealInput, definition: Definition, dtype: str, seed: int, patch: bool) -> Case:
    """Build the case of a real input.

    Parameters
    ----------
    real : RealInput
        One of `real_inputs(definition.family)`.
    definition : Definition
    dtype : {"float32", "float64"}
    seed : int
        Of cotangents and directions.
    patch : bool
        A patch for comparison with the judge, or the whole input for differences and adjoints.

    Returns
    -------
    Case
        Its note says how many edges were left out.
    """

    def typed(keep: np.ndarray | None) -> dict[str, Any]:
        given = real.values(definition, patch, keep)
        return {n: frozen(v.astype(dtype)) if isinstance(v, np.ndarray) else v for n, v in given.items()}

    rng = np.random.default_rng([seed, zlib.crc32(f"{definition.name}/{real.name}".encode())])
    step, values, notes = POINT_STEP if patch or not real.steps else real.steps[0], typed(None), [real.remark(patch)]
    inputs = {a.name: a for a in definition.inputs if values[a.name] is not None}
    grads = {f"grad_{a.name}": a for a in definition.outputs}
    directions = {n: frozen((values[n] * rng.standard_normal(values[n].shape)).astype(dtype)) for n in inputs}
    for name, bad in kink_violations(definition, values, directions, step).items():
        notes.append(f"{np.count_nonzero(bad)} of {bad.size} edges left out: within 2 steps of {step:.1e} of a kink")
        values = typed(~bad)
        directions[name] = frozen(directions[name][~bad])
    sizes = bind_sizes(operators_of(definition)[0], values, {n: values[n].shape for n in inputs})
    cotangents = [draw(s, sizes, dtype, rng) for s in (grads, {f"gg_{n}": plain(a) for n, a in inputs.items()}, grads)]
    label = f"{real.name} patch" if patch else real.name
    directions |= cotangents[2]
    return Case(
        label, definition, sizes, values, cotangents[0], cotangents[1], directions, step, "; ".join(filter(None, notes))
    )

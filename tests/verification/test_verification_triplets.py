"""Triplets and quadruplets of a structure against loops over its vectors."""

from dataclasses import replace

import numpy as np
import pytest

from trigraph.verification import structures, triplets

SHIPPED = {s.name: s for s in structures.shipped()}


def near(name, reach):
    """A structure with a few short edges, images among them."""
    s = SHIPPED[name]
    keep = np.linalg.norm(s.vec, axis=1) < reach
    return replace(s, src=s.src[keep], dst=s.dst[keep], shifts=s.shifts[keep]).within(100)


FEW = [near("copper slab with CO", 3.0), near("rock salt", 4.1), near("benzene", 2.0)]


@pytest.mark.parametrize("structure", FEW, ids=lambda s: s.name)
def test_triplets_are_those_of_loops(structure):
    v, src, dst = structure.vec, structure.src, structure.dst
    expected = {}
    for e in range(len(src)):
        for f in np.flatnonzero(dst == src[e]):
            if np.linalg.norm(v[e] + v[f]) > 1e-8:  # k is not the very atom i
                expected[e, f] = -v[e] @ v[f] / np.linalg.norm(v[e]) / np.linalg.norm(v[f])
    found = triplets.triplets(structure)
    pairs = list(zip(found.outer.tolist(), found.inner.tolist(), strict=True))
    assert sorted(pairs) == sorted(expected)
    assert np.allclose(found.angle, [expected[pair] for pair in pairs], atol=1e-14)
    assert len(pairs) > 20


@pytest.mark.parametrize("structure", FEW, ids=lambda s: s.name)
def test_quadruplets_are_those_of_loops(structure):
    v, src, dst = structure.vec, structure.src, structure.dst
    expected = []
    for e in range(len(src)):
        for f in np.flatnonzero(dst == dst[e]):
            for g in np.flatnonzero(dst == src[f]):
                c, b, d = v[e], v[f], v[f] + v[g]  # with a at the origin
                apart = (np.linalg.norm(x) > 1e-8 for x in (c - b, d, d - c))
                if not all(apart):
                    continue
                across = [x - (x @ b) / (b @ b) * b for x in (c, d)]
                lengths = [np.linalg.norm(x) for x in across]
                planes = across[0] @ across[1] / (lengths[0] * lengths[1]) if min(lengths) > 1e-5 else 1.0
                expected.append((e, g, c @ b / np.linalg.norm(c) / np.linalg.norm(b), planes))
    found = triplets.quadruplets(structure)
    got = np.column_stack([found.outer, found.inner, found.angle, np.cos(found.dihedral)])

    def ordered(rows):
        rows = np.asarray(rows)
        return rows[np.lexsort(rows.T.round(6)[::-1])]

    assert len(got) == len(expected) > 20
    assert np.allclose(ordered(got), ordered(expected), atol=1e-7)


def test_sums_say_how_many_triplets_they_have():
    for sums in triplets.sums_over(SHIPPED["copper slab with CO"]).values():
        for patch in (True, False):
            lists = sums.within(patch)
            assert sums.remark(patch).startswith(f"{len(lists.outer)} triplets or quadruplets")
            assert len(lists.outer) > 200
            assert set(lists.outer) <= set(range(len(lists.structure.src)))

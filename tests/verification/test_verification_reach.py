"""What `trigraph verify` reaches: boundaries of pieces, many blocks, `out`, NaN and infinity in every setting."""

from functools import partial

import numpy as np
import pytest

from trigraph import pyref
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification import cases, nonfinite, subjects
from trigraph.verification.judged import Judged
from trigraph.verification.nonfinite import SPOILERS, check_nonfinite, spoilers
from trigraph.verification.properties import check_out
from trigraph.verification.subjects import panel

BY_NAME = {d.name: d for d in DEFINITIONS}
LENGTHS = {256, 257, 512}


def judged(name, variant_name, dtype="float64", **setting):
    definition = BY_NAME[name]
    found = [v for v in cases.variants(definition) if v.name == variant_name and setting.items() <= v.setting.items()]
    return Judged(cases.build(definition, found[0], dtype, 0))


def lengths(index, count):
    return np.bincount(index, minlength=count)


def with_ends(counts):
    """Whether rows of every length that matters are there, long ones first or last."""
    return set(counts) >= LENGTHS and max(counts[0], counts[-1]) > 256


def test_rows_end_where_pieces_end():
    graph = judged("mha_gat_n2n", "boundaries").case.values["graph"]
    for counts in (np.diff(graph.offsets), lengths(graph.indices, graph.num_src_nodes), lengths(graph.edge_ids, 0)):
        assert with_ends(counts)
    graph = judged("agg_edge_to_edge", "boundaries").case.values["graph"]
    for ends in (graph.src, graph.dst):
        assert set(lengths(ends, graph.num_nodes)) >= LENGTHS
    assert lengths(graph.dst, graph.num_nodes)[[0, -1]].tolist() == [257, 512]
    definition = BY_NAME["interaction_bilinear"]
    for variant in (v for v in cases.variants(definition) if v.name == "boundaries"):
        values = cases.build(definition, variant, "float64", 0).values
        for segments in filter(None, (values[n] for n in ("triplets", "atoms", "idx_in"))):
            assert with_ends(np.diff(segments.prepare().offsets))


@pytest.mark.parametrize("definition", [d for d in DEFINITIONS if d.settings], ids=lambda d: d.name)
def test_every_setting_meets_long_rows_and_spoilt_numbers(definition):
    for name in ("skewed", "boundaries", "regular"):
        found = [v.setting for v in cases.variants(definition) if v.name == name]
        assert all(setting in found for setting in definition.settings)


@pytest.mark.parametrize("name", ["gno_kernel", "interaction_bilinear"])
def test_small_blocks_are_several(name):
    """Sums over several blocks at a time are added in another order than one by one: other bits, as right as before."""
    (*_, variant) = cases.hubs(BY_NAME[name], 20_000, "positive")
    case, op, fast = cases.build(BY_NAME[name], variant, "float32", 0), OPERATORS[f"{name}_bwd"], panel("fortran")
    usual = fast.call(op, case.arguments(op), None)
    with fast.small_blocks():
        small = fast.call(op, case.arguments(op), None)
    again = fast.call(op, case.arguments(op), None)
    assert any(usual[f].tobytes() != small[f].tobytes() for f in usual)
    assert all(usual[f].tobytes() == again[f].tobytes() for f in usual)


def test_small_blocks_of_the_device_are_several():
    from trigraph.gpu import sums

    assert len(list(sums.blocks(1000, 8))) == 1
    with sums.small_blocks():
        assert list(sums.blocks(1000, 8)) == [(0, 256), (256, 256), (512, 256), (768, 232)]


def test_out_that_is_not_written_is_found(monkeypatch):
    op = OPERATORS["gno_aggregate_fwd"]
    case = judged("gno_aggregate", "regular")
    good = subjects.FUNCTIONS[op.name]

    def forgets(out=None, **arguments):
        made = good(**arguments)
        if out is None:
            return made
        out["message"][1:] = made[1:]
        return out["message"]

    def elsewhere(out=None, **arguments):
        return good(**arguments)

    def beside(out=None, **arguments):
        made = good(out=out, **arguments)
        if out is not None:
            after = np.lib.stride_tricks.as_strided(made, (made.size + 1,), (made.itemsize,))
            after[-1] = 0
        return made

    for function, error in ((forgets, 2 * case.case.sizes["f_out"]), (elsewhere, 2), (beside, 2)):
        monkeypatch.setitem(subjects.FUNCTIONS, op.name, function)
        (check,) = check_out(panel("pyref"), case, op)
        assert not check.passed
        assert check.error == error


def spoilt(subject, case, op, name):
    """Return the spoilers of an argument after which something is wrong."""
    (argument,) = (a for a in op.arguments if a.name == name)
    wrong = {}
    for spoiler in spoilers(argument):
        _, fields = nonfinite._wrong(subject, case, op, name, spoiler)
        wrong[spoiler] = [error for error, _ in fields.values() if not error <= 0]
    assert all(c.passed for c in check_nonfinite(subject, case, op, name)) == (not any(wrong.values()))
    return {str(spoiler.value) for spoiler, errors in wrong.items() if errors}


def test_nan_that_is_swallowed_or_travels_is_found(monkeypatch):
    op = OPERATORS["agg_weighted_n2n_fwd"]
    good, case = subjects.FUNCTIONS[op.name], judged("agg_weighted_n2n", "regular", op="max")

    def changed(change, **arguments):
        made = good(**arguments)
        return made._replace(**{n: a for n, a in change(made).items() if a is not None})

    def swallows(made):
        return {"output_embedding": np.nan_to_num(made.output_embedding, nan=0.0, posinf=np.inf, neginf=-np.inf)}

    def last_wins(made):
        location = made.output_extrema_location
        return {"output_extrema_location": location + np.isnan(made.output_embedding)}

    def travels(made):
        return {"output_embedding": made.output_embedding + 0 * made.output_embedding.sum()}

    for change, expected in ((swallows, {"nan"}), (last_wins, {"nan"}), (travels, {"nan", "inf"})):
        monkeypatch.setitem(subjects.FUNCTIONS, op.name, partial(changed, change))
        assert spoilt(panel("pyref"), case, op, "embedding") == expected


def test_spoilers_are_in_two_places_each():
    array = np.zeros((7, 3))
    places = [np.flatnonzero(~np.isfinite(nonfinite._spoiled(array, s))).tolist() for s in SPOILERS]
    assert places == [[10], [0, 5, 10, 15, 20], [6], [13]]
    assert not np.isnan(pyref.agg_weighted_n2n_fwd(**judged("agg_weighted_n2n", "regular").case.values)[0]).any()

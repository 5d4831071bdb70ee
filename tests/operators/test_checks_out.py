"""`out=` of the wrong kind is refused with the exact exception; what fits is written and returned."""

import numpy as np
import pytest
from table_calls import assert_same_bits, call, draw, fields, raises
from table_errors import EACH_OPERATOR, FIELDS, SELECTIVE, empty_like, refused, sizes_of, with_numbers

from trigraph.panels import FUNCTIONS


@pytest.mark.parametrize(("op", "field"), FIELDS)
def test_out_of_the_wrong_kind(op, field):
    good, name, label = draw(op), field.name, f"out[{field.name!r}]"
    keywords = {"wrt": name} if op.selective else {}
    shape = call(op, good, **keywords)[name].shape

    def expect(kind, text, out):
        raises(kind, f"{op.name}: {text}", FUNCTIONS[op.name], **good, **keywords, out={name: out})
        if op.selective or op.single:  # the same without the mapping: there is one field
            raises(kind, f"{op.name}: {text}", FUNCTIONS[op.name], **good, **keywords, out=out)

    for bad in (np.ones(shape).tolist(), "x", 1, np.ma.masked_array(np.ones(shape)), type):
        expect(TypeError, f"{label} is a {type(bad).__name__}; expected a numpy.ndarray of float32 or float64", bad)
    right = np.dtype(np.int64 if field.index else np.float64)
    for dtype in (np.float32, np.int32, right.newbyteorder()):
        bad = np.empty(shape, dtype)
        expect(TypeError, f"{label} has dtype {bad.dtype}; expected {right}", bad)
    numbers = with_numbers(field, sizes_of(op, good))
    for bad in ((shape[0] + 1, *shape[1:]), (*shape[:-1], shape[-1] - 1), (*shape, 1), shape[1:], ()):
        expect(ValueError, f"{label} has shape {bad}; expected {numbers}", np.empty(bad, right))
    strided = [np.empty((2 * shape[0], *shape[1:]), right)[::2], np.empty(shape, right)[::-1]]
    if len(shape) > 1:
        strided.append(empty_like(shape, "F", dtype=right))
    for bad in strided:
        expect(ValueError, f"{label} has strides {bad.strides}; expected a C-contiguous array", bad)
    frozen = np.empty(shape, right)
    frozen.setflags(write=False)
    expect(ValueError, f"{label} is read-only; expected a writable array", frozen)
    unaligned = empty_like(shape, offset=1, dtype=right)
    expect(ValueError, f"{label} is not aligned; expected memory aligned for {right}", unaligned)


@pytest.mark.parametrize(("op", "field"), FIELDS)
def test_out_that_overlaps(op, field):
    good, name = draw(op), field.name
    shape = call(op, good)[name].shape
    for a in op.given(good):
        if a.index or field.index:
            continue
        value = good[a.name]
        memory = np.zeros(max(value.size, int(np.prod(shape))) + 3)
        out = memory[: int(np.prod(shape))].reshape(shape)
        view = memory[out.size - 1 :][: value.size] if out.size + value.size <= memory.size else memory[: value.size]
        view = view.reshape(value.shape)
        view[...] = value
        before = memory.copy()
        text = f"{op.name}: out[{name!r}] overlaps {a.name}; expected memory of its own"
        raises(ValueError, text, FUNCTIONS[op.name], **(good | {a.name: view}), out={name: out})
        assert np.array_equal(memory, before)  # nothing was computed


@pytest.mark.parametrize("op", SELECTIVE)
def test_outs_that_overlap(op):
    good = draw(op)
    shapes = {name: value.shape for name, value in call(op, good).items()}
    for first, second in zip(list(shapes), list(shapes)[1:], strict=False):
        n, m = (int(np.prod(shapes[name])) for name in (first, second))
        memory = np.zeros(n + m)
        out = {first: memory[:n].reshape(shapes[first]), second: memory[n - 1 : n - 1 + m].reshape(shapes[second])}
        refused(op, good, ValueError, f"out[{second!r}] overlaps out[{first!r}]; expected memory of its own", out=out)
        assert not memory.any()


@pytest.mark.parametrize("op", EACH_OPERATOR)
def test_out_of_the_wrong_field(op):
    good = draw(op)
    names = list(call(op, good))
    text = f"{op.name}: out['unknown'] is not computed; expected one of {', '.join(names)}"
    raises(ValueError, text, FUNCTIONS[op.name], **good, out={"unknown": np.empty(3)})
    if len(names) > 1:
        for out in (np.empty(3), [np.empty(3)], "x", 3):
            what = f"out is a {type(out).__name__}; expected a mapping from field to array for {', '.join(names)}"
            raises(TypeError, f"{op.name}: {what}", FUNCTIONS[op.name], **good, out=out)
    if op.selective:
        for name in names:
            asked = [n for n in names if n != name]
            text = f"{op.name}: out[{name!r}] is not computed; expected one of {', '.join(asked) or 'none'}"
            raises(ValueError, text, FUNCTIONS[op.name], **good, wrt=asked, out={name: np.empty(3)})


def garbage(value):
    return np.full_like(value, np.nan if value.dtype.kind == "f" else 77)


@pytest.mark.parametrize("op", EACH_OPERATOR)
def test_out_is_written_and_returned(op):
    """In the fast path; that each panel writes everywhere `trigraph verify` shows."""
    good = draw(op)
    expected = call(op, good)
    outs = {name: garbage(value) for name, value in expected.items()}
    got = call(op, good, out=outs)
    assert_same_bits(got, expected)
    assert all(got[name] is outs[name] for name in outs)
    for name, value in expected.items():
        keywords = {"wrt": name} if op.selective else {}
        for wrapped in (lambda a: a, lambda a, name=name: {name: a})[not (op.single or op.selective) :]:
            array = garbage(value)
            got = FUNCTIONS[op.name](**good, **keywords, out=wrapped(array))
            assert fields(op, got)[name] is array
            assert array.tobytes() == value.tobytes()
        if op.selective:  # a field asked for twice is one field; the others get arrays of their own
            again = FUNCTIONS[op.name](**good, wrt=[name, name], out=array)
            assert getattr(again, name) is array
            array = garbage(value)
            got = call(op, good, out={name: array})
            assert_same_bits(got, expected)
            assert got[name] is array

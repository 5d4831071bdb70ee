"""Tests of trigraph.jax: bitwise equality with the NumPy functions, all modes and orders, transforms, invalid input."""

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from expect_error import expect_error

import trigraph
from trigraph import CSC, EdgeGraph
from trigraph.table import DEFINITIONS, OPERATORS, ORDERS
from trigraph.verification.cases import build_case, list_variants

# Each program runs only once, so optimised compilation would not pay off. shard_map needs several devices.
FLAGS = "backend_optimization_level=0", "llvm_disable_expensive_passes=true", "force_host_platform_device_count=4"
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in FLAGS))
jax = pytest.importorskip("jax", reason="needs JAX: pip install 'trigraph[jax]'")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import trigraph.jax as tj  # noqa: E402
from trigraph.jax.plain import PLAIN  # noqa: E402

# `trigraph verify --framework jax` covers all variants; these tests use one per form of the arguments.
NAMES = ("regular", "shared rows", "no edges", "images", "saturated", "periodic")
CASES = [
    (spec, v) for spec in DEFINITIONS for v in {repr(v): v for v in list_variants(spec) if v.name in NAMES}.values()
]
SMALL = [next(c for c in CASES if c[0] is spec) for spec in DEFINITIONS]
SMALL += [c for c in CASES if c[1].name == "regular" and any(t in repr(c[1]) for t in ("'ELU'", "'mean'", "'max'"))]
# Compiling the third derivatives of DimeNet++ takes half a minute.
SMALL = [pytest.param(*c, marks=[pytest.mark.slow] * (c[0].family == "dimenet")) for c in SMALL]


@pytest.fixture(autouse=True)
def _enable_x64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def bind_all_but_inputs(case, function=None):
    """Return the operator as a function of a dictionary of its inputs, and that dictionary."""
    spec = case.definition
    function = function or getattr(tj, spec.name)
    inputs = {a.name: jnp.asarray(case.values[a.name]) for a in case.inputs}
    keywords = {n: v for n, v in case.values.items() if n not in inputs}

    def compute_outputs(x, graphs=keywords):
        result = function(**x, **{**keywords, **graphs})
        fields = [f.name for f in OPERATORS[f"{spec.name}_fwd"].fields]
        result = dict(zip(fields, result if isinstance(result, tuple) else (result,), strict=True))
        return {a.name: result[a.name] for a in spec.outputs}

    return compute_outputs, inputs


def compute_in_numpy(case, order):
    op = OPERATORS[f"{case.definition.name}_{ORDERS[order]}"]
    result = getattr(trigraph, op.name)(**case.arguments(op))
    return {op.fields[0].name: result} if op.returns_array else result._asdict()


def assert_equal(got, expected):
    for name, array in got.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize(("spec", "variant"), CASES, ids=lambda p: p.name)
def test_results_equal_numpy_bitwise(spec, variant):
    case = build_case(spec, variant, "float32" if variant.name == "saturated" else "float64", 0)
    forward, x = bind_all_but_inputs(case)
    g = {n.removeprefix("grad_"): jnp.asarray(v) for n, v in case.grads.items()}
    gg = {n: jnp.asarray(case.ggs[f"gg_{n}"]) for n in x}

    def compute_vjp(g, x):
        return jax.vjp(forward, x)[1](g)[0]

    def compute_all_orders(g, x):
        gradients, pull2 = jax.vjp(compute_vjp, g, x)
        along = jax.jvp(forward, (x,), (gg,))[1]
        return forward(x), gradients, pull2(gg), along

    right, compiled = case, jax.jit(compute_all_orders)
    # NaN inputs affect the results that bwd reuses; derivatives must be NaN only where NumPy's are.
    spoilt = [n for n in x if spec.given_back and variant.name == "regular" and x[n].size > 1]
    for run, name in ((compute_all_orders, None), (compiled, None), *((compiled, n) for n in spoilt)):
        if name is not None:
            values = {**x, name: x[name].at[(1,) + (0,) * (x[name].ndim - 1)].set(np.nan)}
            case = replace(right, values={**right.values, name: np.asarray(values[name])})
        outputs, gradients, (of_g, of_x), along = run(g, x if name is None else values)
        assert_equal(outputs, compute_in_numpy(case, 0))
        assert_equal(gradients, compute_in_numpy(case, 1))
        expected = compute_in_numpy(case, 2)
        assert_equal(of_x, expected)
        assert_equal(of_g, {n: expected[f"grad_{n}"] for n in of_g})
        assert_equal(along, {n: expected[f"grad_{n}"] for n in along})


def bind_plain_form(case):
    """Return the operator's plain JAX implementation as a function of its inputs."""
    spec = case.definition
    kind = OPERATORS[f"{spec.name}_fwd"].graph_kind
    names = [n for n, _ in kind.forward + kind.fast + kind.reverse] if kind else []
    arrays = {n: jnp.asarray(a) for n in names if (a := kind.find_attribute(n, case.values)) is not None}
    return lambda x: PLAIN[spec.name](arrays | x, case.sizes | case.values)


@pytest.mark.parametrize(("spec", "variant"), SMALL, ids=lambda p: p.name)
def test_derivatives_in_every_mode_agree_with_plain_form(spec, variant):
    """Derivatives along a line, in any sequence of forward and reverse mode, agree with the plain implementation."""
    case = build_case(spec, variant, "float64", 0)
    forward, x = bind_all_but_inputs(case)
    direction = {n: jnp.asarray(case.directions[n]) for n in x}
    weights = {n.removeprefix("grad_"): jnp.asarray(g) for n, g in case.grads.items()}

    def restrict_to_line(f):
        return lambda t: sum(
            (weights[n] * jnp.sin(y)).sum() for n, y in f({n: v + t * direction[n] for n, v in x.items()}).items()
        )

    def yield_derivative_functions(f, sequences):
        modes = {"r": jax.grad, "f": jax.jacfwd}
        for sequence in sequences:
            function = f
            for mode in sequence:
                function = modes[mode](function)
            yield function

    ours, theirs = restrict_to_line(forward), restrict_to_line(bind_plain_form(case))
    sequences = ("", "rr", "rf", "fr", "ff", "rrr", "rff")
    got = jax.jit(lambda t: [f(t) for f in yield_derivative_functions(ours, sequences)])(0.0)
    expected = jax.jit(lambda t: [f(t) for f in yield_derivative_functions(theirs, ("", "f", "ff", "fff"))])(0.0)
    for sequence, value in zip(sequences, got, strict=True):
        right = expected[len(sequence)]
        # The tolerance allows for sums of hundreds of terms, in which a few digits cancel.
        assert abs(value - right) <= 1e-9 * (1 + abs(right)), sequence


@pytest.fixture
def mesh():
    if not hasattr(jax, "shard_map"):
        pytest.skip(
            "this JAX has no jax.shard_map, and jax.experimental.shard_map refuses primitives that it does not know"
        )
    if jax.device_count() < 4:
        pytest.skip("XLA_FLAGS is set without four devices")
    return Mesh(np.reshape(jax.devices()[:4], (2, 2)), ("i", "j"))


@pytest.mark.parametrize(("spec", "variant"), SMALL[: len(DEFINITIONS)], ids=lambda p: p.name)
def test_gradients_under_shard_map_agree_with_plain_form(spec, variant, mesh):
    """If the first and last inputs vary along two mesh axes, derivatives of the sum agree with the plain form."""
    case = build_case(spec, variant, "float64", 0)
    forward, x = bind_all_but_inputs(case)
    ends = [next(iter(x)), list(x)[-1]]
    weights = {n.removeprefix("grad_"): jnp.asarray(g) for n, g in case.grads.items()}
    steps = jnp.array([0.01, -0.02]), jnp.array([0.015, 0.005])
    direction = {n: jnp.asarray(case.directions[n]) for n in x}
    tangents = jnp.array([1.0, 0.5]), jnp.array([-0.5, 1.0]), direction
    specs = P("i"), P("j"), P()

    def compute_local_loss(f, i, j, x):
        moved = dict(x)
        for name, step in zip(ends, (i, j), strict=True):
            moved[name] = moved[name] + step[0] * direction[name]
        return sum((weights[n] * jnp.sin(y)).sum() for n, y in f(moved).items())

    def sum_losses_over_devices(*arguments):
        return jax.lax.psum(compute_local_loss(forward, *arguments), ("i", "j"))

    def sum_plain_losses(i, j, x):
        return sum(compute_local_loss(bind_plain_form(case), a[None], b[None], x) for a in i for b in j)

    def make_gradient(f):
        return jax.grad(f, (0, 1, 2))

    def make_directional_derivative(f):
        return lambda *arguments: jax.jvp(f, arguments, tangents)[1]

    outside = jax.shard_map(sum_losses_over_devices, mesh=mesh, in_specs=specs, out_specs=P())
    inside = jax.shard_map(make_gradient(sum_losses_over_devices), mesh=mesh, in_specs=specs, out_specs=specs)

    def compute_value_and_derivatives(f):
        return jax.jit(lambda *a: (f(*a), make_gradient(f)(*a), make_gradient(make_directional_derivative(f))(*a)))(
            *steps, x
        )

    got, right = compute_value_and_derivatives(outside), compute_value_and_derivatives(sum_plain_losses)
    first, second = jax.jit(lambda *a: jax.jvp(inside, a, tangents))(*steps, x)
    for one, other in ((got, right), (first, right[1]), (second, right[2])):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert abs(a - b).max(initial=0.0) <= 1e-9 * (1 + abs(b).max(initial=0.0))


@pytest.fixture
def weighted_mean_case():
    """Return a graph, embeddings, weights, and a function of the latter two with nonzero second derivatives."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 6, (2, 15)).astype(np.int32)
    graph = CSC.from_coo(src, dst, 6, 6)

    def compute_weighted_mean(x, w, graph=graph):
        return tj.agg_weighted_n2n(x, w, graph, op="mean").output_embedding

    return graph, jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.uniform(1, 2, 15)), compute_weighted_mean


def test_jax_transforms_give_correct_results(weighted_mean_case):
    graph, x, w, f = weighted_mean_case
    from jax.test_util import check_grads

    check_grads(f, (x, w), 2, modes=["fwd", "rev"])
    energy = lambda x, w, g: (f(x, w, g) ** 3).sum()  # noqa: E731
    gradient = jax.grad(energy)
    expected = gradient(x, w, graph)
    assert_equal({"": jax.jit(gradient)(x, w, graph)}, {"": expected})  # with the graph as an argument
    assert_equal({"": jax.grad(jax.checkpoint(energy))(x, w, graph)}, {"": expected})
    batch = jnp.stack([x, 2 * x, x - 1])
    assert_equal({"": jax.vmap(gradient, (0, None, None))(batch, w, graph)[2]}, {"": gradient(x - 1, w, graph)})
    assert jax.vmap(gradient, (0, None, None))(batch[:0], w, graph).shape == (0, 6, 3)
    graphs = jax.tree.map(lambda a: jnp.stack([a, a]), jax.tree.map(jnp.asarray, graph))
    assert_equal({"": jax.jit(jax.vmap(gradient, (0, None, 0)))(batch[:2], w, graphs)[0]}, {"": expected})

    def take_gradient_step(carry, _):
        return carry - 0.1 * gradient(carry, w, graph), None

    scanned_steps = jax.jit(lambda x: jax.lax.scan(take_gradient_step, x, None, length=3)[0])(x)
    one_by_one = x
    for _ in range(3):
        one_by_one = take_gradient_step(one_by_one, None)[0]
    np.testing.assert_allclose(scanned_steps, one_by_one, rtol=1e-12)
    hessian = jax.hessian(energy)(x, w, graph)
    np.testing.assert_allclose(hessian, jax.jacrev(gradient)(x, w, graph), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(hessian, jax.jacfwd(jax.jacfwd(energy))(x, w, graph), rtol=1e-10, atol=1e-10)
    at, a, b = (x, w), (x * x, w - 1), (1 - x, w * w)

    def compute_second_derivative(a):  # the second derivative along a and b is linear in a
        return jax.jvp(lambda q: jax.jvp(lambda p: f(*p), (q,), (a,))[1], (at,), (b,))[1].sum()

    slope = jax.grad(compute_second_derivative)(a)
    np.testing.assert_allclose(
        sum((s * d).sum() for s, d in zip(slope, a, strict=True)), compute_second_derivative(a), rtol=1e-10
    )
    _, linear = jax.linearize(lambda x: f(x, w), x)
    assert_equal({"": linear(x)}, {"": jax.jvp(lambda x: f(x, w), (x,), (x,))[1]})


def compute_mean_in_jax_numpy(x, w, graph):
    """Compute the weighted mean of the fixture `small_case` with jax.numpy."""
    edges, weights = jnp.repeat(jnp.arange(6), jnp.diff(graph.offsets), total_repeat_length=15), w[graph.edge_ids]
    sums = (jax.ops.segment_sum(y, edges, 6) for y in (x[graph.indices] * weights[:, None], weights))
    return next(sums) / jnp.where(jnp.diff(graph.offsets) > 0, next(sums), 1.0)[:, None]


@pytest.mark.slow
def test_transforms_inside_shard_map_agree_with_jax_numpy(weighted_mean_case, mesh):
    """Gradients agree with jax.numpy for scan, vmap, cast weights and per-device graphs inside shard_map."""
    graph, x, w, f = weighted_mean_case
    graph = jax.tree.map(jnp.asarray, graph)
    np.testing.assert_allclose(f(x, w), compute_mean_in_jax_numpy(x, w, graph), rtol=1e-12)
    graphs = jax.tree.map(lambda a: jnp.stack([a, a]), graph)
    cast = getattr(jax.lax, "pcast", None)

    def apply_by_scan(f, x, w):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(f(carry, w, graph)), None), x, None, length=3)[0]

    def apply_by_vmap(f, x, w):
        return jax.vmap(lambda x: f(x, w, graph))(jnp.stack([x, x * x]))

    def apply_with_cast_weights(f, x, w):
        w = w if cast is None else cast(w, ("i",), to="varying")
        return f(x, w, graph)

    def apply_to_replicated(f, x, w):
        return x * f(jnp.stack([jnp.sin(w[:6])] * 3, 1), w, graph).sum()

    def apply_with_checkpoint(f, x, w):
        return jax.checkpoint(lambda x: f(x, w, graph))(x)

    cases = [
        (case, True)
        for case in (apply_by_scan, apply_by_vmap, apply_with_cast_weights, apply_to_replicated, apply_with_checkpoint)
    ]
    for case, check in [
        *cases,
        (apply_by_scan, False),
        (apply_by_vmap, False),
    ]:  # the last two cases use check_vma=False

        def compute_local_loss(f, x, w, case=case):
            return jax.lax.psum((case(f, x, w) ** 3).sum(), "i")

        results = []
        for function in (f, compute_mean_in_jax_numpy):
            local = partial(compute_local_loss, function)
            both = P(None, "i"), P()
            options = {"mesh": mesh, "in_specs": both, "check_vma": check}
            outside = jax.grad(jax.shard_map(local, out_specs=P(), **options), (0, 1))
            inside = jax.shard_map(jax.grad(local, (0, 1)), out_specs=both, **options)
            columns = jnp.concatenate([x, 2 * x - 1], 1)
            results.append(jax.jit(lambda x, w, o=outside, i=inside: (o(x, w), i(x, w)))(columns, w))
        for a, b in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=f"{case.__name__}, {check}")

    def compute_loss_of_device_graph(f, x, w, graphs):
        return jax.lax.psum((f(x, w, jax.tree.map(lambda a: a[0], graphs)) ** 3).sum(), "i")

    specs = P(), P(), P("i")
    summed = [
        jax.shard_map(partial(compute_loss_of_device_graph, g), mesh=mesh, in_specs=specs, out_specs=P())
        for g in (f, compute_mean_in_jax_numpy)
    ]
    for a, b in zip(*(jax.jit(jax.grad(g, (0, 1)))(x, w, graphs) for g in summed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    energy = lambda x, w: (f(x, w) ** 3).sum()  # noqa: E731
    many = jax.pmap(jax.grad(energy), in_axes=(0, None), devices=jax.devices()[:2])(jnp.stack([x, 2 * x]), w)
    np.testing.assert_allclose(many[1], jax.grad(energy)(2 * x, w), rtol=1e-12)


@pytest.mark.parametrize("explicit", [False, True])
def test_graph_works_after_first_use_under_mesh(weighted_mean_case, mesh, explicit):
    graph, x, w, f = weighted_mean_case
    expected = f(x, w)
    graph = CSC(graph.offsets, graph.indices, 6, graph.edge_ids)
    if explicit:
        mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=2 * (jax.sharding.AxisType.Explicit,))
    some = {"i"} if jax.__version_info__ >= (0, 7) else {"i", "j"}  # XLA in JAX 0.6 would crash
    for axes in (some, {"i", "j"}):
        run = jax.shard_map(lambda x, w: f(x, w, graph), mesh=mesh, in_specs=(P(), P()), out_specs=P(), axis_names=axes)
        assert_equal({"": jax.jit(run)(x, w)}, {"": expected})
        assert_equal({"": f(x, w, graph)}, {"": expected})


def test_graphs_are_pytrees(weighted_mean_case):
    graph, x, w, f = weighted_mean_case
    leaves, structure = jax.tree.flatten(graph)
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, CSC)
    assert (again.num_edges, again.num_dst_nodes) == (15, 6)
    assert_equal({"": f(x, w, again)}, {"": f(x, w)})
    assert jax.tree.structure(again) == structure  # equal structures avoid recompilation
    of_jax = CSC(jnp.asarray(graph.offsets), jnp.asarray(graph.indices), 6, jnp.asarray(graph.edge_ids))
    assert_equal({"": f(x, w, of_jax)}, {"": f(x, w)})
    with pytest.raises(TypeError, match=r"^CSC: offsets is traced by JAX; expected .* outside of jit"):
        jax.jit(lambda o: CSC(o, o).num_edges)(jnp.asarray(graph.offsets))
    parallel = EdgeGraph(np.array([0, 0, 1]), np.array([1, 1, 0]), 2)
    arrays = jnp.ones((3, 3)), jnp.ones((3, 2)), jnp.ones((3, 2)), jnp.ones((4, 2))
    with pytest.raises(ValueError, match=r"^agg_edge_to_edge_fwd: exclude is 'edge' and graph has parallel edges"):
        jax.jit(lambda g: tj.agg_edge_to_edge(*arrays, g, 2, 1, "edge"))(parallel)


def test_jax_functions_refuse_bad_input(weighted_mean_case):
    graph, x, w, f = weighted_mean_case
    gone = x + 1
    gone.delete()
    triplets = x, jnp.ones((3, 2, 2)), jnp.ones((1, 2)), jnp.array([6])
    for call, text in (
        (lambda: jax.jit(f)(x, w[1:]), "ValueError: edge_weight has shape (14,); expected (num_edges,) = (15,)"),
        (lambda: f(x, w.astype("float32")), "TypeError: edge_weight has dtype float32; expected float64, the dtype of"),
        (lambda: f([1.0], w), "TypeError: embedding is a list; expected a jax.Array"),
        (lambda: f(x, w, x), "TypeError: graph is a ArrayImpl; expected a trigraph.CSC"),
        (lambda: tj.agg_weighted_n2n(x, w, graph, op="mode"), "ValueError: op is 'mode'; expected one of"),
        (lambda: tj.agg_weighted_n2n(x, w, graph, out=x), "TypeError: got an unexpected keyword argument 'out'"),
        (lambda: f(gone, w), "ValueError: embedding was deleted, because it was donated"),
    ):
        with expect_error(text.replace(": ", ": agg_weighted_n2n_fwd: ", 1)):
            call()
    with expect_error("ValueError: basis_embedding_triplets_fwd: triplets: Segments: index[0] is 6; expected"):
        tj.basis_embedding_triplets(*triplets)
    wide, one = CSC(np.array([0, 1]), np.array([0])), jnp.ones((1, 2), "float32")
    jax.config.update("jax_enable_x64", False)
    converts = "which JAX converts to"
    with expect_error(f"TypeError: agg_weighted_n2n_fwd: embedding has dtype float64, {converts} float32"):
        f(np.ones((6, 3)), np.ones(15))
    with expect_error(f"TypeError: agg_weighted_n2n_fwd: graph: CSC: offsets has dtype int64, {converts} int32"):
        tj.agg_weighted_n2n(one, None, wide)
    narrow = CSC(wide.offsets.astype(np.int32), wide.indices.astype(np.int32))
    assert tj.agg_weighted_n2n(one, None, narrow)[0].shape == (1, 2)


def test_other_devices_are_refused(weighted_mean_case):
    _, x, w, f = weighted_mean_case
    with pytest.raises(NotImplementedError, match=r"_fwd: called by a program for a device other than a CPU"):
        jax.jit(f).trace(x, w).lower(lowering_platforms=("cuda",))


def test_programs_follow_cpu_level_and_threads(weighted_mean_case):
    """Compiled programs use the current number of threads and CPU level, with bitwise identical results."""
    import ctypes

    from trigraph.fortran.levels import LIBRARY, list_runnable_levels
    from trigraph.fortran.threads import restore_num_threads

    interface = ctypes.CDLL(str(LIBRARY))
    interface.trigraph_get_cpu_level.restype = ctypes.c_char_p
    _, x, w, f = weighted_mean_case
    program, before = jax.jit(jax.grad(lambda x: f(x, w).sum())), trigraph.get_cpu_level()
    expected, tasks = program(x), len(os.listdir("/proc/self/task"))
    with restore_num_threads():
        trigraph.set_num_threads(7)
        assert_equal({"": program(x)}, {"": expected})
        assert len(os.listdir("/proc/self/task")) > tasks
    for level in list_runnable_levels():
        trigraph.set_cpu_level(level)
        assert_equal({"": program(x)}, {"": expected})
        assert interface.trigraph_get_cpu_level().decode() == level
    trigraph.set_cpu_level(before)
    fields = ("integers", "numbers", "given", "flags", "wanted")
    stranger = jax.ffi.ffi_call("trigraph", jax.ShapeDtypeStruct((), x.dtype))
    for name, number in (("agg_none_fwd_f64", 0), ("agg_weighted_n2n_fwd_f64_i32", 3)):
        with pytest.raises((RuntimeError, ValueError), match=f"{name} is not a function of this version"):
            stranger(function=name, **{n: np.ones(number, np.int32) for n in fields}).block_until_ready()


def test_verify_checks_functions_of_jax():
    from trigraph.verification.run import plan_run

    units = plan_run(["basis_embedding_radial"], dtypes=["float32"], framework="jax")
    checks = [check for unit in units for check in unit.execute()]
    assert {c.backend for c in checks} == {"trigraph.jax", "trigraph.jax, recorded"}
    assert {c.operator for c in checks} == {f"basis_embedding_radial_{order}" for order in (*ORDERS, "bwd3")}
    assert all(c.passed for c in checks)

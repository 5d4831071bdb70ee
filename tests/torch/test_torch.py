"""Tests of every operator in torch: results and derivatives equal to NumPy's, and torch's own checks."""

import numpy as np
import pytest
from compiled_programs import compiled_whole
from table_calls import draw_operator_arguments, map_fields_to_arrays

torch = pytest.importorskip("torch")

import trigraph.torch as tt  # noqa: E402
from trigraph.backends import FUNCTIONS  # noqa: E402
from trigraph.table import DEFINITIONS, OPERATORS  # noqa: E402
from trigraph.torch.library import OPERATORS_OF_TORCH  # noqa: E402

SMALL = {"num_edges": 5, "num_src_nodes": 4, "num_dst_nodes": 3, "num_positions": 6, "num_nodes": 3, "num_triplets": 6}
SMALL |= {"hidden": 3, "f_in": 2, "f_out": 2, "d": 2, "num_radial": 2, "num_spherical": 2, "n_emb": 2, "n_mid": 2}
SMALL |= {"dim": 2, "dim_head": 2, "num_heads": 2, "num_inputs": 4, "num_outputs": 3, "num_radial": 2}
SMALL |= {"num_spherical": 2, "interm": 2, "emb_in": 2, "emb_out": 2}
CASES = [
    pytest.param(spec, setting, id="-".join([spec.name, *(f"{n}={v}" for n, v in setting.items())]))
    for spec in DEFINITIONS
    for setting in (spec.settings or ({},))
] + [pytest.param(DEFINITIONS[4], {"exclude": e}, id=f"agg_edge_to_edge-exclude={e}") for e in (None, "node")]


def convert_to_tensors(values):
    """Convert arrays to tensors; floating-point tensors require gradients. Other values are unchanged."""
    return {
        n: torch.from_numpy(v.copy()).requires_grad_(v.dtype.kind == "f") if isinstance(v, np.ndarray) else v
        for n, v in values.items()
    }


def draw_arguments_and_input_names(spec, setting, **keywords):
    """Return random arguments for a definition, and the names of the inputs that are not None."""
    values = draw_operator_arguments(OPERATORS[f"{spec.name}_fwd"], setting=setting, **{**SMALL, **keywords})
    names = [a.name for a in spec.inputs if values[a.name] is not None]
    return values, names


def select_outputs(spec, result):
    """Return the differentiable fields of a result."""
    fields = (result,) if isinstance(result, torch.Tensor) else result
    return tuple(fields[: len(spec.outputs)])


def bind_all_but_inputs(spec, values, names):
    """Return the operator as a function of its floating-point inputs alone, as torch's checks require."""

    def compute_outputs(*inputs):
        return select_outputs(spec, getattr(tt, spec.name)(**{**values, **dict(zip(names, inputs, strict=True))}))

    return compute_outputs


BACKENDS = ("fortran", "fortran-reference", "pyref", "gpu-host")
BACKEND_CASES = [
    pytest.param(d, {}, {"backend": backend}, id=f"{d.name}-{backend}") for d in DEFINITIONS for backend in BACKENDS
]
BACKEND_CASES += [pytest.param(*case.values, {}, id=case.id) for case in CASES]


@pytest.mark.parametrize(("spec", "setting", "backend"), BACKEND_CASES)
def test_results_and_derivatives_equal_numpy(spec, setting, backend):
    """Outputs, gradients and second derivatives equal the NumPy results bitwise, for each backend."""
    values, names = draw_arguments_and_input_names(spec, setting)
    on_torch = convert_to_tensors(values)
    fwd, bwd, bwd2 = (OPERATORS[f"{spec.name}_{o}"] for o in ("fwd", "bwd", "bwd2"))
    expected = map_fields_to_arrays(fwd, FUNCTIONS[fwd.name](**values, **backend))
    result = getattr(tt, spec.name)(**on_torch, **backend)
    got = {fwd.fields[0].name: result} if fwd.returns_array else result._asdict()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name].detach().numpy(), array)
    assert all(got[f.name] is None for f in fwd.fields if f.name not in expected)
    assert not any(got[a.name].requires_grad for a in spec.auxiliary if got[a.name] is not None)
    rng = np.random.default_rng(1)
    grads = {f"grad_{a.name}": rng.standard_normal(expected[a.name].shape) for a in spec.outputs}
    values = {n: value for n, value in values.items() if n not in spec.request_names}
    inputs = [on_torch[n] for n in names]
    cotangents = [torch.from_numpy(g).requires_grad_() for g in grads.values()]
    first = torch.autograd.grad(select_outputs(spec, result), inputs, cotangents, create_graph=True)
    in_numpy = FUNCTIONS[bwd.name](**grads, **values, **backend)
    for name, gradient in zip(names, first, strict=True):
        np.testing.assert_array_equal(gradient.detach().numpy(), getattr(in_numpy, name))
    ggs = {f"gg_{n}": rng.standard_normal(values[n].shape) for n in names}
    second = torch.autograd.grad(
        first, [*cotangents, *inputs], [torch.from_numpy(g) for g in ggs.values()], allow_unused=True
    )
    in_numpy = FUNCTIONS[bwd2.name](**ggs, **grads, **values, **backend)
    for name, gradient in zip([*grads, *names], second, strict=True):
        np.testing.assert_array_equal(0 if gradient is None else gradient.numpy(), getattr(in_numpy, name))


@pytest.mark.parametrize(("spec", "setting"), [case for case in CASES if case.values[0].given_back])
def test_nan_spreads_as_in_numpy(spec, setting):
    """If a NaN input affects the results that bwd reuses, second derivatives equal NumPy's, including NaN."""
    values, names = draw_arguments_and_input_names(spec, setting)
    for nan_input in names:
        changed = {**values, nan_input: values[nan_input].copy()}
        changed[nan_input].flat[1] = np.nan
        on_torch = convert_to_tensors(changed)
        inputs, outs = [on_torch[n] for n in names], select_outputs(spec, getattr(tt, spec.name)(**on_torch))
        first = torch.autograd.grad(outs, inputs, [torch.ones_like(y) for y in outs], create_graph=True)
        second = torch.autograd.grad(first, inputs, [torch.ones_like(g) for g in first], allow_unused=True)
        ones = {f"grad_{a.name}": np.ones(y.shape) for a, y in zip(spec.outputs, outs, strict=True)}
        ones |= {f"gg_{n}": np.ones_like(values[n]) for n in names}
        of_inputs = {n: v for n, v in changed.items() if n not in spec.request_names}
        expected = FUNCTIONS[f"{spec.name}_bwd2"](**ones, **of_inputs)
        for name, gradient in zip(names, second, strict=True):
            np.testing.assert_array_equal(0 if gradient is None else gradient.numpy(), getattr(expected, name))


@pytest.mark.parametrize(("spec", "setting"), CASES)
def test_gradcheck_passes(spec, setting):
    """gradcheck and gradgradcheck pass, in backward and forward mode."""
    values, names = draw_arguments_and_input_names(spec, setting)
    inputs = tuple(convert_to_tensors(values)[n] for n in names)
    function = bind_all_but_inputs(spec, values, names)
    fast = {"fast_mode": True, "atol": 1e-6, "rtol": 1e-4}
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, **fast)
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True, **fast)


@pytest.mark.parametrize("spec", DEFINITIONS, ids=lambda s: s.name)
def test_operators_pass_opcheck(spec, monkeypatch, force_python_operators):
    """torch.library.opcheck passes: schema, autograd registration, fake kernels, tracing with symbolic sizes."""
    calls = {}
    for order in ("fwd", "bwd", "bwd2"):
        op = OPERATORS_OF_TORCH[f"{spec.name}_{order}"]

        def record_and_compute(args, op=op, true=op.compute_fields):
            arrays, others = args[: op.num_arrays], args[op.num_arrays :]
            leaves = [a if a is None else a.detach().requires_grad_(a.requires_grad) for a in arrays]
            calls.setdefault(op.op.name, (*leaves, *others))
            return true(args)

        monkeypatch.setitem(vars(op), "compute_fields", record_and_compute)
    values, names = draw_arguments_and_input_names(spec, spec.settings[1] if len(spec.settings) > 1 else {})
    on_torch = convert_to_tensors(values)
    first = torch.autograd.grad(
        sum(o.square().sum() for o in select_outputs(spec, getattr(tt, spec.name)(**on_torch))),
        [on_torch[n] for n in names],
        create_graph=True,
    )
    sum(g.square().sum() for g in first).backward()
    monkeypatch.undo()
    assert len(calls) == 3
    for name, args in calls.items():
        tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        if name.endswith("bwd2"):  # tracing bwd2 would need a third derivative
            tests = tests[:3]
        torch.library.opcheck(getattr(torch.ops.trigraph, name).default, args, test_utils=tests)
        if (native := OPERATORS_OF_TORCH[name].native) is not None:
            torch.library.opcheck(native.overload, tuple(native.encode_arguments(args)), test_utils=tests)


@compiled_whole
def test_functions_have_distinct_code_objects():
    """Each function has its own code object, because torch's compiler compiles one at most eight times."""
    functions = [getattr(tt, spec.name) for spec in DEFINITIONS]
    assert len({function.__code__ for function in functions}) == len(functions)

"""Potentials compiled to programs for structures of any size, with differentiable forces.

Torch's compiler does not support functions that compute their own gradients. Energies and forces, or products with the
Hessian, are therefore first traced by `make_fx` to a graph of operations with symbolic sizes, which is then compiled.
"""

import contextlib
import logging
import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from trigraph.locks import ForkSafeLock
from trigraph.torch.graphs import list_graph_constants, replace_code_object
from trigraph.torch.potentials.captured import CapturedPotential
from trigraph.torch.potentials.padding import parse_capacities
from trigraph.torch.potentials.potential import Potential, compute_atom_outputs
from trigraph.torch.potentials.program_inputs import (
    ProgramInputs,
    list_neighbor_graphs,
    list_program_tensors,
    make_example_inputs,
    trace_program,
)
from trigraph.torch.potentials.program_key import ProgramKey, find_differences
from trigraph.torch.potentials.replacement import (
    PotentialReplacement,
    copy_model_sharing_parameters,
    list_torch_settings,
)
from trigraph.torch.potentials.structures import EnergyForcesStress, Neighbors
from trigraph.torch.potentials.traced import find_index_nodes, read_size_conditions, rewrite_products, rewrite_sums

MAX_PROGRAMS = 32  # maximum number of programs per potential
_log = logging.getLogger("trigraph")
_LOCK = ForkSafeLock()  # held during compilation, because torch's tracer patches torch.nn.Module for all threads


class _CallProperties(NamedTuple):
    """Properties of a call that, in addition to the model's `ProgramKey`, are fixed in a program."""

    dtype: torch.dtype
    device: torch.device
    index_dtype: torch.dtype
    constants: tuple[tuple[int, ...], ...]  # `list_graph_constants` of each graph in `ProgramInputs.graphs`
    create_graph: bool
    # One per tensor in `ProgramInputs.differentiable_tensors`; None for an absent tensor.
    require_grad: tuple[bool | None, ...]
    surroundings: tuple[Any, ...]


class _CompiledProgram:
    """Compiled function of the model's tensors and `ProgramInputs`, for one `_CallProperties` and one `ProgramKey`."""

    def __init__(
        self, model: Potential, key: ProgramKey, kind: _CallProperties, inputs: ProgramInputs, options: dict[str, Any]
    ) -> None:
        self.kind, self.values, self.compilations = kind, key.values, 0
        with torch.device("cpu"):  # overrides the default device
            example, another = (make_example_inputs(model, inputs, least) for least in (17, 29))
        for one in (example, another):
            for tensor, requires_grad in zip(one.differentiable_tensors, kind.require_grad, strict=True):
                if tensor is not None:
                    tensor.requires_grad_(bool(requires_grad))
        expected = self._compute_example_with_model(model, key, example)
        program = trace_program(copy_model_sharing_parameters(model, key), kind.constants, example, key.not_compared)
        rewrite_products(program)
        rewrite_sums(program, find_index_nodes(program, key.state, example))
        # Parse the condition only once: for DimeNet++ (16,000 characters), parsing takes 3 ms, evaluation 0.1 ms.
        self.condition: Any = compile(read_size_conditions(program), "condition of sizes", "eval")
        from torch.fx.experimental.symbolic_shapes import ShapeEnv  # imported here, because the import is slow

        self.conditions = ShapeEnv()
        # Sizes of the last call that met the condition, which is not evaluated again for the same sizes.
        self.shapes: list[torch.Size] = []

        @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
        def count_compilation() -> int:
            """Count a compilation: the compiler calls this function once and treats the result as a constant."""
            self.compilations += 1
            return self.compilations

        def call_traced_program(state: Sequence[Tensor], *inputs: Any) -> Any:
            count_compilation()
            return program(dict(zip(key.state, state, strict=True)), *inputs)

        if "mode" not in options and options.get("backend", "inductor") == "inductor":
            # Disable checks of sizes and strides in each call by inductor; `_check_program_matches_model` checks once.
            options = {**options, "options": {"size_asserts": False, **(options.get("options") or {})}}
        self.compiled = torch.compile(replace_code_object(call_traced_program), dynamic=True, fullgraph=True, **options)
        got = self._compute_example_with_program(model, key, example)
        if self.accepts_sizes(key.state, another):
            self._compute_example_with_program(model, key, another)
        if self.compilations > 1:
            raise RuntimeError(
                f"compile_potential: the program of {type(model).__name__} is compiled again for other numbers of "
                "atoms or edges; expected derivatives that torch compiles once, unlike second derivatives of BatchNorm"
            )
        self._check_program_matches_model(type(model).__name__, got, expected)

    def __call__(self, state: Mapping[str, Tensor], inputs: ProgramInputs) -> Any:
        if self.kind.create_graph:
            return self.compiled(list(state.values()), *inputs)
        with torch.inference_mode():  # skips the operators' autograd rules, which run in Python
            results = self.compiled(list(state.values()), *inputs)
        return tuple(None if t is None else t.clone() for t in results)  # autograd rejects inference tensors

    def accepts_sizes(self, state: Mapping[str, Tensor], inputs: ProgramInputs) -> bool:
        """Return whether the sizes of the structures meet the conditions that tracing recorded."""
        leaves = list_program_tensors(state, inputs)
        shapes = [t.shape for t in leaves]
        if shapes != self.shapes and not self.conditions.evaluate_guards_expression(self.condition, leaves):
            return False
        self.shapes = shapes
        return True

    def _compute_example_with_model(
        self, model: Potential, key: ProgramKey, example: ProgramInputs
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the model's results and gradients for the example, and its buffers after the call.

        Raise RuntimeError if the call changes anything in the model except buffers.
        """
        eager = copy_model_sharing_parameters(model, key)
        before = ProgramKey(eager)
        results = self._compute_results_and_gradients(before.state, example, eager)
        after = ProgramKey(eager)
        changed = find_differences(before.values, after.values)
        if changed:
            raise RuntimeError(
                f"compile_potential: {type(model).__name__} changes {changed[0]} when it is called, as a program would "
                "not; expected a buffer that is changed in place, or an attribute that exists (call the model first)"
            )
        return results, {n: t for n, t in after.state.items() if n not in after.parameters}

    def _compute_example_with_program(
        self, model: Potential, key: ProgramKey, example: ProgramInputs
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the program's results, gradients and buffers; the first call compiles the program."""
        state = {n: t if n in key.parameters else t.clone() for n, t in key.state.items()}
        try:
            with warnings.catch_warnings():  # torch itself instantiates autograd.Function, which warns
                warnings.filterwarnings("ignore", ".* should not be instantiated", DeprecationWarning)
                results = self._compute_results_and_gradients(state, example, None)
        except Exception as error:
            if "InvalidCxxCompiler" in str(error):
                raise RuntimeError(
                    "compile_potential: torch found no C++ compiler; expected g++ or clang++, or its name in the "
                    "environment variable CXX"
                ) from error
            raise RuntimeError(
                f"compile_potential: {type(model).__name__} cannot be compiled; expected a model whose traced program "
                f"torch.compile can compile: {error}"
            ) from error
        return results, {n: t for n, t in state.items() if n not in key.parameters}

    def _check_program_matches_model(self, name: str, got: Any, expected: Any) -> None:
        """Raise RuntimeError unless the program and the model give equal results and buffers for the example.

        Tracing does not notice if a model detaches tensors, disables gradients, or assigns a new tensor to a buffer.
        The bounds are small enough to detect these errors, but allow for rounding.
        """
        (values, buffers), (expected_values, expected_buffers) = got, expected
        eps = torch.finfo(self.kind.dtype).eps
        floor = 1000.0 * eps * max(map(_max_abs, expected_values))
        for value, other in zip(values, expected_values, strict=True):
            error, bound = _max_abs(value - other), math.sqrt(eps) * _max_abs(other) + floor
            if not error <= bound:
                raise RuntimeError(
                    f"compile_potential: {name} and its program differ by {error:.1e}; expected at most {bound:.1e}: "
                    "does it detach a tensor, disable gradients, or use random numbers?"
                )
        for buffer, other in expected_buffers.items():
            error = _max_abs(buffers[buffer].double() - other.double())
            if not error <= math.sqrt(eps) * _max_abs(other.double()):
                raise RuntimeError(
                    f"compile_potential: {name} and its program change buffer {buffer} differently, by {error:.1e}; "
                    "expected a buffer that is changed in place"
                )

    def _compute_results_and_gradients(
        self, state: Mapping[str, Tensor], example: ProgramInputs, model: Potential | None
    ) -> list[Tensor]:
        """Return results and gradients for the example, computed by `model` or, without a model, by the program."""
        if model is None:
            results = self(state, example)
        else:
            place = example.pos if example.pos.requires_grad else example.pos.detach().requires_grad_()
            results = example._replace(pos=place).compute_derivatives_or_hessian_product(
                partial(compute_atom_outputs, model), self.kind.constants
            )
        values = [t for t in results if t is not None]
        inputs = [t for t in (*example.differentiable_tensors, *state.values()) if t is not None and t.requires_grad]
        if self.kind.create_graph and inputs:
            loss = torch.stack([t.nan_to_num().square().sum() + t.nan_to_num().sum() for t in values]).sum()
            values += torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
        return [t.detach().nan_to_num() for t in values]


def _max_abs(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


class CompiledPotential(PotentialReplacement):
    """Potential with compiled programs for derivatives of its energies, created by :func:`compile_potential`.

    A program represents the model at the time of compilation, but accepts structures of any size and reads parameters
    and buffers in each call. A program is compiled in the first call; in the first call with a different dtype, device
    or `create_graph`, with or without cells, or with different torch settings; and in the first call after a change of
    modes, hooks, classes or attributes of modules. Numbers, strings and containers of them are compared by value, other
    attributes by identity. After any other change, call `recompile`. Copies and pickles contain no programs.

    Attributes
    ----------
    model : Potential
        The original potential, with the same parameters.
    options : dict
        Options of torch.compile.
    """

    def __init__(self, model: Potential, options: dict[str, Any]) -> None:
        super().__init__(model)
        self.options = options
        self._reset_programs()

    def _reset_programs(self) -> None:
        # A program depends on the kind of call and on everything that tracing read from the model (see `ProgramKey`),
        # except parameters and buffers, which are arguments of the program.
        self.programs: list[_CompiledProgram] = []
        # Key of the model, which `ProgramKey.is_unchanged` compares with the model in each call.
        self._key: ProgramKey | None = None
        # Attributes that the user has already been told cannot be compared with the traced model.
        self._reported: list[str] = []
        self._dropped_compilations = 0  # number of compilations in dropped programs

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles without programs, which can be neither copied nor pickled."""
        return {
            n: v for n, v in vars(self).items() if n not in ("programs", "_key", "_reported", "_dropped_compilations")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset_programs()

    @property
    def compilations(self) -> int:
        """Number of compilations so far."""
        return self._dropped_compilations + sum(program.compilations for program in self.programs)

    def recompile(self) -> None:
        """Drop all programs, so that the next calls trace and compile the current model.

        Required after changes that calls cannot detect: of methods, class attributes or variables that functions read,
        and inside objects that are attributes of modules.
        """

        def drop_programs() -> None:
            self.programs, self._key, self._dropped_compilations = [], None, self.compilations

        _LOCK.call_while_held(drop_programs)

    def compute_energy_and_derivatives(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, create_graph: bool
    ) -> EnergyForcesStress:
        """Return the results of `energy_forces_stress` for arguments checked by `prepare_neighbors_and_cells`."""
        results = self._call_program(z, pos, cells, neighbors, None, create_graph)
        if results is None:
            return self.model.compute_energy_and_derivatives(z, pos, cells, neighbors, create_graph)
        energy, forces, stress, energies = results
        if neighbors.num_structures == 1:
            energy, stress = energy[:1], None if stress is None else stress[:1]
        return EnergyForcesStress(energy, forces, stress, energies)

    def compute_hessian_product(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, vector: Tensor, create_graph: bool
    ) -> Tensor:
        """Return the result of `hessian_vector_product` for arguments checked by `prepare_neighbors_and_cells`."""
        results = self._call_program(z, pos, cells, neighbors, vector, create_graph)
        if results is None:
            return self.model.compute_hessian_product(z, pos, cells, neighbors, vector, create_graph)
        product: Tensor = results[0]
        return product

    def _call_program(
        self,
        z: Tensor,
        pos: Tensor,
        cells: Tensor | None,
        neighbors: Neighbors,
        vector: Tensor | None,
        create_graph: bool,
    ) -> Any:
        """Call the program for these arguments; return None if no program supports their sizes."""
        if neighbors.graph.num_edges < 2:  # tracing makes sizes 0 and 1 constants
            return None
        if not create_graph:
            pos, cells, vector = (None if t is None else t.detach() for t in (pos, cells, vector))  # type: ignore[assignment]
        # Convert subclasses of Tensor, such as Parameter, for which torch would compile the program again.
        pos, vector = (t if t is None or type(t) is Tensor else t.view_as(t) for t in (pos, vector))  # type: ignore[assignment]
        inputs = ProgramInputs.from_neighbors(z, pos, cells, neighbors, vector)
        key = self._key
        if key is None or not key.is_unchanged(self.model):
            key = self._key = self._share_key_values(ProgramKey(self.model))
        program = self._find_or_make_program(key, inputs, neighbors, create_graph)
        if not program.accepts_sizes(key.state, inputs):
            _warn_with_sizes("ran without its program, because the model takes another branch,", inputs)
            return None
        before = program.compilations
        results = program(key.state, inputs)
        if program.compilations > before:
            _warn_with_sizes(f"recompiled its program ({program.compilations} compilations)", inputs)
        return results

    def _find_or_make_program(
        self, key: ProgramKey, inputs: ProgramInputs, neighbors: Neighbors, create_graph: bool
    ) -> _CompiledProgram:
        """Return the program for a key and the kind of call; compile the program if necessary."""
        kind = _CallProperties(
            inputs.pos.dtype,
            inputs.pos.device,
            inputs.batch.dtype,
            tuple(map(list_graph_constants, list_neighbor_graphs(neighbors))),
            create_graph,
            tuple(None if t is None else t.requires_grad for t in inputs.differentiable_tensors),
            list_torch_settings(inputs.pos.device),
        )
        program = self._find_program(kind, key)
        if program is not None:
            return program

        def find_or_compile_program() -> _CompiledProgram:
            program = self._find_program(kind, self._share_key_values(key))  # another thread may have compiled it
            if program is not None:
                return program
            changes_of_programs = [find_differences(p.values, key.values) for p in self.programs if p.kind == kind]
            changed = min(changes_of_programs, key=len)[0] if changes_of_programs else None
            if len(changes_of_programs) > 3:
                _warn_with_sizes(
                    f"compiles a program for the same kind of call once more, because {changed} has changed,", inputs, 8
                )
            self._warn_of_uncompared_attributes(key.not_compared)
            devices = [inputs.pos.device] if inputs.pos.is_cuda else []
            why = "" if changed is None else f", because {changed} has changed"
            name = type(self.model).__name__
            beginning = f"compile_potential: compiling {name}{why}; this may take minutes"
            with report_progress(beginning, f"compile_potential: compiled {name}"), torch.random.fork_rng(devices):
                program = _CompiledProgram(self.model, key, kind, inputs, self.options)
            self.programs.append(program)
            if len(self.programs) > MAX_PROGRAMS:
                self._dropped_compilations += self.programs.pop(0).compilations
                _warn_with_sizes(f"dropped the oldest of {MAX_PROGRAMS} programs", inputs, 8)
            return program

        return _LOCK.call_while_held(find_or_compile_program)

    def _warn_of_uncompared_attributes(self, not_compared: Sequence[str]) -> None:
        if unreported := [place for place in not_compared if place not in self._reported]:
            self._reported += unreported
            what = f"programs of {type(self.model).__name__} do not detect changes inside {', '.join(unreported)}"
            _log.warning(f"compile_potential: {what}; call recompile() after such a change")

    def _find_program(self, kind: _CallProperties, key: ProgramKey) -> _CompiledProgram | None:
        for program in reversed(self.programs):
            if program.kind == kind and program.values is key.values:
                return program
        return None

    def _share_key_values(self, key: ProgramKey) -> ProgramKey:
        """Replace a key's `values` by a program's equal `values`, so that `_find_program` can compare by identity."""
        for program in self.programs:
            if program.values == key.values:
                key.values = program.values
                break
        return key


def _warn_with_sizes(what: str, inputs: ProgramInputs, stacklevel: int = 6) -> None:
    edges = len(inputs.graphs[1][0]) - 1  # type: ignore[arg-type]
    warnings.warn(f"CompiledPotential: {what} for {len(inputs.z)} atoms with {edges} edges", stacklevel=stacklevel)


@contextlib.contextmanager
def report_progress(beginning: str, end: str) -> Iterator[None]:
    """Report begin, end and duration of a step to the logger `trigraph`, or to a terminal if INFO is disabled."""
    logged, terminal = _log.isEnabledFor(logging.INFO), sys.stderr is not None and sys.stderr.isatty()

    def log_or_print(text: str) -> None:
        _log.info(text)
        if terminal and not logged:
            print(text, file=sys.stderr, flush=True)

    began = time.perf_counter()
    log_or_print(beginning)
    yield
    log_or_print(f"{end} in {time.perf_counter() - began:.0f} s")


@overload
def compile_potential(model: Potential, *, capture: Literal[False] = False, **options: Any) -> CompiledPotential: ...


@overload
def compile_potential(
    model: Potential, *, capture: Literal[True], capacity: Any = None, static_results: bool = False
) -> CapturedPotential: ...


def compile_potential(model: Potential, *, capture: bool = False, **options: Any) -> Any:
    """Compile energies, forces, stresses and products with the Hessian of a potential, for structures of any size.

    A compiled potential represents the model at the time of compilation, but uses its current parameters and buffers.
    It is compiled again if modes, hooks, classes or plain attributes of modules change. After any other change, such as
    a change inside an object in an attribute, call ``recompile()``; the logger ``trigraph`` lists such attributes.

    Compilation in the first call may take minutes; torch caches the result on disk. The logger ``trigraph`` (INFO), or
    standard error if it is a terminal, reports when compilation begins and ends. With ``create_graph=True``, compiled
    energies, forces and stresses can also be differentiated, to train the model on them.

    With ``capture=True``, nothing is compiled. Structures are padded with ghost atoms to fixed sizes, so that each call
    on a CUDA device is one CUDA graph, without Python between the kernels; `CapturedPotential.training_step` captures
    training steps. On the CPU, padded calls are computed without a graph, which is no faster than the model.

    Parameters
    ----------
    model : Potential
        `trigraph.torch.nn.DimeNetPlusPlus`, or an instance of your own subclass of `trigraph.torch.nn.Potential`.
    capture : bool, optional
        Whether to capture calls as CUDA graphs instead of compiling them.
    capacity : Capacity or list of Capacity, optional
        With `capture`, sizes for calls that fit (default: a quarter more than each call needs).
    static_results : bool, optional
        With `capture`, whether to return results in memory that the next call overwrites, instead of copies.
    **options
        The options `backend`, `mode` and `options` of ``torch.compile``, such as ``mode="max-autotune"``.

    Returns
    -------
    CompiledPotential or CapturedPotential
        A replacement for `model` in `trigraph.ase.Calculator`, `trigraph.torch_sim.Model`, and training.

    Raises
    ------
    TypeError
        If `model` is not a `Potential`, an option is unknown, or `capacity` is not a `Capacity`.
    ValueError
        If a field of `capacity` is not positive.
    RuntimeError
        If torch rejects the options. In the first call: if torch finds no C++ compiler, the model cannot be copied or
        traced, a call changes attributes or replaces buffers of the model, or the program and the model disagree in
        results, gradients or buffers. The model must not detach tensors, disable gradients or use random numbers.
        With `capture`: if ghosts change results, or if the model synchronizes the device.

    See Also
    --------
    trigraph.torch.nn.Potential

    Examples
    --------
    >>> from trigraph.torch import compile_potential
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> model = compile_potential(DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4))
    """
    if not isinstance(model, Potential):
        raise TypeError(f"compile_potential: model is a {type(model).__name__}; expected a trigraph.torch.nn.Potential")
    if capture:
        capacity, static_results = options.pop("capacity", None), options.pop("static_results", False)
        for name in options:
            raise TypeError(
                f"compile_potential: {name} is given with capture=True; expected capacity or static_results"
            )
        return CapturedPotential(model, parse_capacities("compile_potential", capacity), static_results)
    taken = ("backend", "mode", "options")
    for name in options:
        if name not in taken:
            raise TypeError(f"compile_potential: {name} is given; expected only {', '.join(taken)} of torch.compile")
    torch.compile(lambda: None, **options)  # raises for invalid options
    return CompiledPotential(model, options)


def compile_or_capture(owner: str, model: Any, compile: bool, capture: bool) -> Any:
    """Compile or capture a model if requested; raise ValueError if both are requested."""
    if compile and capture:
        raise ValueError(f"{owner}: compile and capture are True; expected one of them")
    if capture:
        return compile_potential(model, capture=True)
    return compile_potential(model) if compile else model

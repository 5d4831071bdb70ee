"""A function at a point, with NumPy arrays: outputs, vector-Jacobian products, second and third derivatives."""

import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from slopecheck import exact
from slopecheck.frameworks import Framework, as_tuple
from slopecheck.outcome import time_limit

Arrays = list[np.ndarray]
DERIVATIVES = ("output", "gradient", "second derivative", "third derivative")  # name of each order


class InvalidResultError(Exception):
    """A function, a derivative or a calculator returned a wrong type or shape; the message says which."""


class DerivativeCountError(InvalidResultError):
    """A derivative returned a number of arrays that differs from the number of its arguments."""


# The fields of `DerivativeArguments`, each with the lowest order of derivatives that uses it and the label of a member.
ARGUMENT_GROUPS = {
    "inputs": (0, "{}"),
    "cotangents": (1, "cotangent {}"),
    "directions": (2, "direction of {}"),
    "second_directions": (3, "second direction of {}"),
    "cotangent_directions": (3, "direction of cotangent {}"),
}


@dataclass
class DerivativeArguments:
    """Arguments of a function and its derivatives (see `Framework.derivatives`): arrays of the framework, or None."""

    inputs: list[Any]
    cotangents: list[Any]
    directions: list[Any]
    second_directions: list[Any]
    cotangent_directions: list[Any]


class FunctionAtPoint:
    """A function at a point, with its floating inputs as NumPy arrays of float64."""

    patience = math.inf  # seconds that a call of the function may take
    calls = 0  # number of calls of the function and its derivatives so far

    def __init__(self, framework: Framework, inputs: Sequence[Any], rng: np.random.Generator) -> None:
        self.framework, self.inputs, self.rng = framework, inputs, rng
        self.names = _list_parameter_names(framework.function, len(inputs))
        # All array inputs in their original dtype, the indices of floating inputs, and the floating inputs as float64.
        self.originals = {i: framework.to_host(value) for i, value in enumerate(inputs) if framework.is_array(value)}
        self.wanted = [i for i, array in self.originals.items() if array.dtype.kind == "f"]
        self.x: Arrays = [self.originals[i].astype(np.float64) for i in self.wanted]

    def copy_inputs(self) -> list[Any]:
        """Return the original inputs, with copies of arrays, because a call may modify them."""
        return [
            self.framework.from_host(self.originals[i], v) if i in self.originals else v
            for i, v in enumerate(self.inputs)
        ]

    def replace_floating_inputs(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return the inputs with the floating inputs replaced by `arrays`."""
        inputs = self.copy_inputs()
        for i, array in zip(self.wanted, arrays, strict=True):
            inputs[i] = self.framework.from_host(array, self.inputs[i])
        return inputs

    def read_array_values(self, value: Any, what: str) -> np.ndarray:
        """Return the values of an array; raise `InvalidResultError` unless it is an array of the framework."""
        if not self.framework.is_array(value):
            raise InvalidResultError(f"{what} is a {type(value).__name__}; expected an array of {self.framework.name}")
        return self.framework.to_host(value)

    def make_arguments(
        self,
        arrays: Arrays,
        weights: Arrays,
        directions: Sequence[np.ndarray | None] = (),
        second_directions: Sequence[np.ndarray | None] = (),
        cotangent_directions: Arrays | tuple[()] = (),
    ) -> DerivativeArguments:
        """Return native arguments of the derivatives; empty weights and missing directions become None."""
        like = self.inputs[self.wanted[0]]

        def convert_output_shaped_arrays(group: Sequence[np.ndarray]) -> list[Any]:
            return [self.framework.from_host(w, like) if w.size else None for w in group] or [None] * len(weights)

        def convert_input_shaped_arrays(group: Sequence[np.ndarray | None]) -> list[Any]:
            pairs = zip(group or [None] * len(arrays), self.wanted, strict=True)
            return [None if u is None else self.framework.from_host(u, self.inputs[i]) for u, i in pairs]

        return DerivativeArguments(
            self.replace_floating_inputs(arrays),
            convert_output_shaped_arrays(weights),
            convert_input_shaped_arrays(directions),
            convert_input_shaped_arrays(second_directions),
            convert_output_shaped_arrays(cotangent_directions),
        )

    def label_argument(self, group: str, k: int) -> str:
        """Name an argument by its group and its number in the group."""
        return ARGUMENT_GROUPS[group][1].format(k if "cotangent" in group else self.floating_input_names[k])

    def compute_native_derivatives(
        self, order: int, a: DerivativeArguments, wanted: Sequence[int]
    ) -> tuple[Sequence[Any], ...]:
        """Return native derivatives by group of arguments; raise `DerivativeCountError` if their number is wrong."""
        self.calls += 1
        factors = (a.cotangents, a.directions, a.second_directions, a.cotangent_directions)[: order + order // 3]
        groups = self.framework.compute_derivatives(order, a.inputs, wanted, *factors)
        for group, name, number in zip(
            groups, ARGUMENT_GROUPS, (len(wanted), len(a.cotangents), len(wanted)), strict=False
        ):
            if len(group) != number:
                names = ", ".join(self.names[i] for i in wanted)
                alone = f", only for the floating inputs ({names})" * (name != "cotangents")
                raise DerivativeCountError(
                    f"{len(group)} {DERIVATIVES[order]}s in the {name} were returned; expected {number}{alone}"
                )
        if len(groups) != order:
            raise InvalidResultError(f"{len(groups)} tuples of {DERIVATIVES[order]}s were returned; expected {order}")
        return groups

    def compute_native_results(self, order: int, a: DerivativeArguments) -> list[Any]:
        """Return native outputs for order 0, else derivatives for inputs, then for cotangents, then for directions."""
        if order == 0:
            return list(as_tuple(self.framework.compute_outputs(a.inputs)))
        return list(chain(*self.compute_native_derivatives(order, a, self.wanted)))

    def compute_derivatives(self, order: int, a: DerivativeArguments, alone: int | None = None) -> list[Arrays]:
        """Return derivatives with respect to inputs, cotangents (from order 2 on) and directions (order 3).

        Derivatives with respect to absent cotangents and directions are left out. With `alone`, only derivatives
        for this floating input are requested; other inputs are constants. Raises InvalidResultError for a wrong shape.
        """
        chosen = range(len(self.wanted)) if alone is None else [alone]
        directions, second = ([group[k] for k in chosen] for group in (a.directions, a.second_directions))
        a = replace(a, directions=directions, second_directions=second)
        found = self.compute_native_derivatives(order, a, [self.wanted[k] for k in chosen])
        arguments = [self.x[k] for k in chosen], a.cotangents, directions
        numbers = chosen, range(len(a.cotangents)), chosen
        return [
            [
                self._convert_derivative(
                    g, self.framework.to_host(of) if n else of, order, self.label_argument(name, k)
                )
                for g, of, k in zip(group, given, ks, strict=True)
                if of is not None
            ]
            for n, (group, given, ks, name) in enumerate(zip(found, arguments, numbers, ARGUMENT_GROUPS, strict=False))
        ]

    def compute_results(self, order: int, a: DerivativeArguments) -> Arrays:
        """Return the results of an order as NumPy arrays, in the order of `compute_native_results`."""
        return list(chain(*self.compute_derivatives(order, a))) if order else self.call_function(a.inputs)

    def _convert_derivative(self, derivative: Any, like: np.ndarray, order: int, name: str) -> np.ndarray:
        """Return a derivative, or zeros for None; raise `InvalidResultError` for a wrong shape."""
        what = f"{DERIVATIVES[order]} in {name}"
        array = np.zeros_like(like) if derivative is None else self.read_array_values(derivative, what)
        if array.shape != like.shape:
            raise InvalidResultError(f"{what} has shape {array.shape}; expected {like.shape}")
        return array

    def call_function(self, inputs: Sequence[Any]) -> Arrays:
        """Call the function with native inputs; return its floating outputs, and empty arrays for other outputs."""
        self.calls += 1
        with time_limit(self.patience):
            values = as_tuple(self.framework.compute_outputs(inputs))
        outputs = [self.read_array_values(y, f"output {k}") for k, y in enumerate(values)]
        return [y if y.dtype.kind == "f" else np.zeros(0) for y in outputs]

    def compute_outputs(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """Return the floating outputs at a point."""
        return self.call_function(self.replace_floating_inputs(arrays))

    @property
    def floating_input_names(self) -> list[str]:
        """Names of the floating inputs."""
        return [self.names[i] for i in self.wanted]

    def compute_gradients(self, arrays: Arrays, weights: Arrays) -> Arrays:
        """Return the vector-Jacobian product at a point; outputs with an empty array of weights are left out."""
        return self.compute_derivatives(1, self.make_arguments(arrays, weights))[0]

    def compute_second_derivatives(self, *arrays: Any) -> list[Arrays]:
        """Return the second derivatives; parameters as for `arguments`."""
        return self.compute_derivatives(2, self.make_arguments(*arrays))

    def compute_third_derivatives(self, *arrays: Any) -> list[Arrays]:
        """Return the third derivatives; parameters as for `arguments`."""
        return self.compute_derivatives(3, self.make_arguments(*arrays))

    def perturb_randomly(self, arrays: Arrays, relative: float) -> Arrays:
        """Return arrays with random relative perturbations of a given size."""
        return [x * (1 + relative * self.rng.choice([-1.0, 1.0], x.shape)) for x in arrays]

    def draw_direction(self, array: np.ndarray, gradient: np.ndarray | None = None) -> np.ndarray:
        """Return a random direction whose elements have the magnitude of the elements of the array.

        Given a `gradient`, the direction has the same signs, so that the contributions of all elements add up.
        """
        typical = compute_rms_or_one(array)
        size = np.maximum(abs(array), typical if math.isfinite(typical) else 1.0)
        steps = size * self.rng.uniform(0.5, 1.0, array.shape) * self.rng.choice([-1.0, 1.0], array.shape)
        return steps if gradient is None else np.where(gradient == 0, steps, np.copysign(steps, gradient))

    def draw_cotangents(self, outputs: Arrays) -> Arrays:
        """Return random cotangents."""
        return [self.rng.uniform(0.5, 1.0, y.shape) * self.rng.choice([-1.0, 1.0], y.shape) for y in outputs]


def _list_parameter_names(function: Any, number: int) -> list[str]:
    """Return the names of the first `number` positional parameters; missing names become `input 1` and so on."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):  # functions written in C may have no signature
        parameters = inspect.signature(getattr(function, "forward", function)).parameters
    named = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*named, *(f"input {i}" for i in range(len(named), number))][:number]


def compute_rms_or_one(array: np.ndarray) -> float:
    """Return the root mean square of an array, or 1 for zeros, without overflow or underflow of squares."""
    largest = float(abs(array).max(initial=0.0))
    if not (largest > 0 and math.isfinite(largest)):
        return largest or 1.0
    return largest * float(np.sqrt(np.mean((array / largest) ** 2)))


def dot_with_magnitude(left: Arrays, right: Arrays) -> tuple[float, float]:
    """Return sum <a, b> and the sum of |terms| (`exact.dot`); raise InvalidResultError if shapes have changed."""
    if [a.shape for a in left] != [b.shape for b in right]:
        raise InvalidResultError(
            f"shapes {', '.join(str(b.shape) for b in right)} were returned; expected "
            f"{', '.join(str(a.shape) for a in left)}, as in the first call"
        )
    return exact.dot_with_magnitude(left, right)

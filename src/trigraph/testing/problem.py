"""A function at a point, with NumPy arrays: outputs, vector-Jacobian products and second derivatives."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trigraph.fortran import judge
from trigraph.testing.frameworks import Framework, as_tuple
from trigraph.verification.differences import inner

Arrays = list[np.ndarray]


class CallFailed(Exception):
    """A function, a derivative or a calculator returned a wrong type or shape, as the message describes."""


@dataclass
class Problem:
    """A function at a point, with its floating inputs as NumPy arrays of float64."""

    framework: Framework
    inputs: Sequence[Any]
    rng: np.random.Generator
    wanted: list[int] = field(default_factory=list)
    x: Arrays = field(default_factory=list)
    given: dict[int, np.ndarray] = field(default_factory=dict)  # all array inputs in their original dtype

    def __post_init__(self) -> None:
        for i, value in enumerate(self.inputs):
            if self.framework.takes(value):
                array = self.given[i] = self.framework.to_host(value)
                if array.dtype.kind == "f":
                    self.wanted.append(i)
                    self.x.append(array.astype(np.float64))

    def as_given(self) -> list[Any]:
        """Return the original inputs, with copies of arrays, because a call may modify them."""
        return [self.framework.from_host(self.given[i], v) if i in self.given else v for i, v in enumerate(self.inputs)]

    def native(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return the inputs with the floating ones replaced by `arrays`."""
        found = self.as_given()
        for i, array in zip(self.wanted, arrays, strict=True):
            found[i] = self.framework.from_host(array, self.inputs[i])
        return found

    def host(self, value: Any, what: str) -> np.ndarray:
        """Return the values of an array; raise `CallFailed` unless it is an array of the framework."""
        if not self.framework.takes(value):
            raise CallFailed(f"{what} is a {type(value).__name__}; expected an array of {self.framework.name}")
        return self.framework.to_host(value)

    def returned(self, inputs: Sequence[Any]) -> Arrays:
        """Call the function with native inputs; return its floating outputs, and empty arrays for others."""
        found = [self.host(y, f"output {k}") for k, y in enumerate(as_tuple(self.framework.outputs(inputs)))]
        return [y if y.dtype.kind == "f" else np.zeros(0) for y in found]

    def outputs(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """Return the floating outputs at a point."""
        return self.returned(self.native(arrays))

    def _cotangents(self, weights: Arrays) -> list[Any]:
        like = self.inputs[self.wanted[0]]
        return [self.framework.from_host(w, like) if w.size else None for w in weights]

    def _gradients(self, found: Sequence[Any], expected: Arrays, what: str) -> Arrays:
        if len(found) != len(expected):
            raise CallFailed(f"{len(found)} {what}s were returned; expected {len(expected)}")
        arrays = []
        for k, (value, like) in enumerate(zip(found, expected, strict=True)):
            array = np.zeros_like(like) if value is None else self.host(value, f"{what} {k}")
            if array.shape != like.shape:
                raise CallFailed(f"{what} {k} has shape {array.shape}; expected {like.shape}")
            arrays.append(array)
        return arrays

    def gradients(
        self, inputs: Sequence[Any], weights: Arrays, other: tuple[int, Any] | None = None, only: int | None = None
    ) -> Arrays:
        """Return the vector-Jacobian product at native inputs, with weights of the outputs (empty: none).

        `other` is the number of an output and a native array that replaces its weights. `only` selects the gradient of
        one floating input.
        """
        cotangents = self._cotangents(weights)
        if other is not None:
            cotangents[other[0]] = other[1]
        chosen = slice(None) if only is None else slice(only, only + 1)
        found = self.framework.vjp(inputs, self.wanted[chosen], cotangents)
        return self._gradients(found, self.x[chosen], "gradient")

    def kept(self, inputs: Sequence[Any], weights: Arrays) -> Callable[[], tuple[Arrays, Arrays]]:
        """Compute outputs and gradients; return a function that reads their current values."""
        gradients = self.framework.vjp(inputs, self.wanted, self._cotangents(weights))
        results = as_tuple(self.framework.outputs(inputs)), gradients

        def values() -> tuple[Arrays, Arrays]:
            outputs, found = ([self.framework.to_host(a) for a in part if self.framework.takes(a)] for part in results)
            return outputs, found

        return values

    def second(self, arrays: Arrays, weights: Arrays, directions: Arrays) -> tuple[Arrays, Arrays]:
        """Return the gradients of sum <direction, gradient> with respect to inputs and weights."""
        us = [self.framework.from_host(u, self.inputs[i]) for i, u in zip(self.wanted, directions, strict=True)]
        found = self.framework.vjp2(self.native(arrays), self.wanted, self._cotangents(weights), us)
        of_x = self._gradients(found[0], self.x, "second derivative")
        given = [g for g, w in zip(found[1], weights, strict=True) if w.size]
        of_w = self._gradients(given, [w for w in weights if w.size], "derivative in cotangent")
        return of_x, of_w

    def nudged(self, arrays: Arrays, relative: float) -> Arrays:
        """Return arrays with random relative perturbations of a given size."""
        return [x * (1 + relative * self.rng.choice([-1.0, 1.0], x.shape)) for x in arrays]

    def direction(self, array: np.ndarray, gradient: np.ndarray | None = None) -> np.ndarray:
        """Return a random direction whose elements have the magnitude of the array's.

        With a `gradient`, the direction has its signs, so that the contributions of all elements add up.
        """
        typical = float(np.sqrt(np.mean(array**2))) if array.size else 1.0
        size = np.maximum(abs(array), typical if typical > 0 and math.isfinite(typical) else 1.0)
        found = size * self.rng.uniform(0.5, 1.0, array.shape) * self.rng.choice([-1.0, 1.0], array.shape)
        return found if gradient is None else np.where(gradient == 0, found, np.copysign(found, gradient))

    def weights(self, outputs: Arrays) -> Arrays:
        """Return random cotangents."""
        return [self.rng.uniform(0.5, 1.0, y.shape) * self.rng.choice([-1.0, 1.0], y.shape) for y in outputs]


def dot(left: Arrays, right: Arrays) -> tuple[float, float]:
    """Return sum <a, b> and the sum of |terms|, in real128; CallFailed if shapes differ from those at first."""
    if [a.shape for a in left] != [b.shape for b in right]:
        raise CallFailed(
            f"shapes {', '.join(str(b.shape) for b in right)} were returned; expected "
            f"{', '.join(str(a.shape) for a in left)}, as by the first call"
        )
    pairs = [(judge.pair(a), judge.pair(b)) for a, b in zip(left, right, strict=True) if a.size]
    return inner(pairs) if pairs else (0.0, 0.0)

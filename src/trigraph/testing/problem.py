"""A function at a point, in numbers of NumPy: outputs, vector-Jacobian products, second derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trigraph.fortran import judge
from trigraph.testing.frameworks import Framework, as_tuple
from trigraph.verification.differences import inner

Arrays = list[np.ndarray]


class CallFailed(Exception):
    """A call of the function, or of its derivatives, did not return what it must; the message says what."""


@dataclass
class Problem:
    """A function at a point: its floating inputs as NumPy arrays of float64, and what it returns."""

    framework: Framework
    inputs: Sequence[Any]
    rng: np.random.Generator
    wanted: list[int] = field(default_factory=list)
    x: Arrays = field(default_factory=list)
    given: dict[int, np.ndarray] = field(default_factory=dict)  # all arrays among the inputs, as they came

    def __post_init__(self) -> None:
        for i, value in enumerate(self.inputs):
            if self.framework.takes(value):
                array = self.given[i] = self.framework.to_host(value)
                if array.dtype.kind == "f":
                    self.wanted.append(i)
                    self.x.append(array.astype(np.float64))

    def as_given(self) -> list[Any]:
        """Return the inputs as they came, arrays as copies, so that a call that changes them does no harm."""
        return [self.framework.from_host(self.given[i], v) if i in self.given else v for i, v in enumerate(self.inputs)]

    def native(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Return the inputs with the values of arrays in the place of those of floating dtype."""
        found = self.as_given()
        for i, array in zip(self.wanted, arrays, strict=True):
            found[i] = self.framework.from_host(array, self.inputs[i])
        return found

    def host(self, value: Any, what: str) -> np.ndarray:
        """Return the values of what must be an array of the framework."""
        if not self.framework.takes(value):
            raise CallFailed(f"{what} is a {type(value).__name__}; expected an array of {self.framework.name}")
        found: np.ndarray = self.framework.to_host(value)
        return found

    def returned(self, inputs: Sequence[Any]) -> Arrays:
        """Return the floating outputs of a call with native inputs; empty arrays in the place of others."""
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

    def gradients(self, inputs: Sequence[Any], weights: Arrays, other: tuple[int, Any] | None = None) -> Arrays:
        """Return the vector-Jacobian product with weights of the outputs, at native inputs.

        `other` is the number of an output, and a native array that replaces its weights.
        """
        cotangents = self._cotangents(weights)
        if other is not None:
            cotangents[other[0]] = other[1]
        return self._gradients(self.framework.vjp(inputs, self.wanted, cotangents), self.x, "gradient")

    def second(self, arrays: Arrays, weights: Arrays, directions: Arrays) -> tuple[Arrays, Arrays]:
        """Return the gradients of sum <direction, gradient> in the inputs and in the weights."""
        us = [self.framework.from_host(u, self.inputs[i]) for i, u in zip(self.wanted, directions, strict=True)]
        found = self.framework.vjp2(self.native(arrays), self.wanted, self._cotangents(weights), us)
        of_x = self._gradients(found[0], self.x, "second derivative")
        given = [g for g, w in zip(found[1], weights, strict=True) if w.size]
        of_w = self._gradients(given, [w for w in weights if w.size], "derivative in cotangent")
        return of_x, of_w

    def nudged(self, arrays: Arrays, relative: float) -> Arrays:
        """Return arrays whose elements are larger or smaller by a small factor, at random."""
        return [x * (1 + relative * self.rng.choice([-1.0, 1.0], x.shape)) for x in arrays]

    def direction(self, array: np.ndarray, gradient: np.ndarray | None = None) -> np.ndarray:
        """Return a random direction whose elements are of the size of the array's.

        Along a direction with the signs of the gradient all elements add to the change of the function.
        """
        typical = float(np.sqrt(np.mean(array**2))) if array.size else 1.0
        size = np.maximum(abs(array), typical if typical > 0 and math.isfinite(typical) else 1.0)
        found = size * self.rng.uniform(0.5, 1.0, array.shape) * self.rng.choice([-1.0, 1.0], array.shape)
        signed: np.ndarray = found if gradient is None else np.where(gradient == 0, found, np.copysign(found, gradient))
        return signed

    def weights(self, outputs: Arrays) -> Arrays:
        """Return random cotangents."""
        return [self.rng.uniform(0.5, 1.0, y.shape) * self.rng.choice([-1.0, 1.0], y.shape) for y in outputs]


def dot(left: Arrays, right: Arrays) -> tuple[float, float]:
    """Return sum <a, b> and the sum of |terms|, in real128.

    Raises
    ------
    CallFailed
        If shapes differ: the function returns other shapes than at first.
    """
    if [a.shape for a in left] != [b.shape for b in right]:
        raise CallFailed(
            f"shapes {', '.join(str(b.shape) for b in right)} were returned; expected "
            f"{', '.join(str(a.shape) for a in left)}, as by the first call"
        )
    pairs = [(judge.pair(a), judge.pair(b)) for a, b in zip(left, right, strict=True) if a.size]
    return inner(pairs) if pairs else (0.0, 0.0)

"""One interface to NumPy, torch and JAX: values, memory layouts and derivatives of arrays.

Values are exchanged as NumPy arrays of float64, or of the tested dtype.
"""

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from multiprocessing import parent_process
from typing import Any

import numpy as np

Function = Callable[..., Any]
THREADS = (1, 2, 3)


class Framework(ABC):
    """Interface of a framework for the checks."""

    name: str
    function: Function

    @abstractmethod
    def takes(self, value: Any) -> bool:
        """Return whether a value is an array of the framework."""

    @abstractmethod
    def to_host(self, value: Any) -> np.ndarray:
        """Return a copy of an array's values."""

    @abstractmethod
    def from_host(self, array: np.ndarray, like: Any) -> Any:
        """Return an array of the framework with the values and dtype of a NumPy array, on the device of `like`."""

    @abstractmethod
    def device_of(self, value: Any) -> str:
        """Return the device of an array."""

    @abstractmethod
    def layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
        """Return non-contiguous arrays by the name of their layout.

        Their values are those of `array`, which is nonempty and has an axis; "expanded" repeats its first row.
        """

    def outputs(self, inputs: Sequence[Any]) -> Any:
        """Call the function."""
        return self.function(*inputs)

    @abstractmethod
    def vjp(self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any]) -> Sequence[Any]:
        """Return gradients of sum <cotangent, output> for the wanted inputs; None for an unconnected input."""

    @abstractmethod
    def vjp2(
        self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any], directions: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return gradients of sum <direction, gradient> for the wanted inputs, and for the cotangents.

        A cotangent or direction that is None is zero.
        """

    @abstractmethod
    def vjp3(
        self,
        inputs: Sequence[Any],
        wanted: Sequence[int],
        cotangents: Sequence[Any],
        directions: Sequence[Any],
        second_directions: Sequence[Any],
        cotangent_directions: Sequence[Any],
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Return gradients for the wanted inputs, for the cotangents and for the directions of a sum over `vjp2`.

        It is sum <second direction, result for an input> + sum <cotangent direction, result for a cotangent>. What is
        None is zero, and a gradient for it means nothing.
        """

    @contextlib.contextmanager
    def threads(self, number: int) -> Iterator[None]:
        """Set the number of threads of the framework; by default, this does nothing."""
        yield

    def list_own_functions(self, inputs: Sequence[Any]) -> "Iterable[tuple[str, Framework, list[Any]]]":
        """Return the framework's own functions that a call uses, by name, each with the arrays that it gets."""
        return ()

    has_threads = False
    selects = True  # whether gradients for a subset of inputs and outputs are supported


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return the result of a function as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def framework_of(inputs: Sequence[Any]) -> str:
    """Return the name of the framework of the first input that is an array of torch or JAX, else "numpy"."""
    kinds = {"torch": "Tensor", "jax": "Array"}
    loaded = [(name, getattr(sys.modules[name], kind)) for name, kind in kinds.items() if name in sys.modules]
    return next((name for value in inputs for name, kind in loaded if isinstance(value, kind)), "numpy")


class NumPy(Framework):
    """Functions of NumPy arrays, with derivatives from the user."""

    name, selects = "numpy", False

    def __init__(self, function: Function, derivatives: Sequence[Function]) -> None:
        self.function, self._derivatives = function, derivatives  # one for each order

    def takes(self, value: Any) -> bool:
        return isinstance(value, (np.ndarray, np.generic))  # a full sum returns a NumPy scalar

    def to_host(self, value: Any) -> np.ndarray:
        return np.array(value)

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        return np.array(array)

    def device_of(self, value: Any) -> str:
        return "cpu"

    def layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
        spaced = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)[..., ::2]
        spaced[...] = array
        offset = np.full(array.size + 3, np.nan, array.dtype)[3:].reshape(array.shape)
        offset[...] = array
        return {
            "strided": spaced,
            "offset": offset,
            "negative strides": np.ascontiguousarray(array[::-1])[::-1],
            "Fortran order": np.asfortranarray(array),
            "expanded": np.broadcast_to(array[:1], array.shape),
        }

    def vjp(self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any]) -> Sequence[Any]:
        return as_tuple(self._derivatives[0](tuple(inputs), tuple(cotangents)))

    def vjp2(
        self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any], directions: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        of_inputs, of_cotangents = self._derivatives[1](tuple(inputs), tuple(cotangents), tuple(directions))
        return as_tuple(of_inputs), as_tuple(of_cotangents)

    def vjp3(
        self, inputs: Sequence[Any], wanted: Sequence[int], *others: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        of_inputs, of_cotangents, of_directions = self._derivatives[2](tuple(inputs), *map(tuple, others))
        return as_tuple(of_inputs), as_tuple(of_cotangents), as_tuple(of_directions)


class Torch(Framework):
    """Functions of torch tensors, differentiated by autograd; `recorded`: the last gradient can be differentiated."""

    name, has_threads = "torch", True

    def __init__(self, function: Function, recorded: bool = False) -> None:
        import torch

        self.function, self.torch, self.recorded = function, torch, recorded

    def takes(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def to_host(self, value: Any) -> np.ndarray:
        value = (
            value.to_dense() if value.layout != self.torch.strided else value
        )  # gradients of embeddings may be sparse
        half = value.dtype == self.torch.bfloat16  # which NumPy lacks
        host = self.torch.empty(value.shape, dtype=self.torch.float32 if half else value.dtype)
        host.copy_(value.detach())  # zeros that autograd has not written, conjugates and negatives are written here
        return np.asarray(host.numpy())

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        return self.torch.from_numpy(np.array(array)).to(like.device)

    def device_of(self, value: Any) -> str:
        return str(value.device)

    def layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
        plain = self.from_host(array, like)
        spaced = plain.new_full((*array.shape[:-1], 2 * array.shape[-1]), np.nan)[..., ::2]
        offset = plain.new_full((array.size + 3,), np.nan)[3:].view(array.shape)
        return {
            "strided": spaced.copy_(plain),
            "offset": offset.copy_(plain),
            "transposed": plain.transpose(0, -1).contiguous().transpose(0, -1),
            "expanded": plain[:1].expand(array.shape),
        }

    @contextlib.contextmanager
    def threads(self, number: int) -> Iterator[None]:
        before = self.torch.get_num_threads()
        self.torch.set_num_threads(number)
        try:
            yield
        finally:
            self.torch.set_num_threads(before)

    def list_own_functions(self, inputs: Sequence[Any]) -> Iterable[tuple[str, Framework, list[Any]]]:
        from torch.overrides import TorchFunctionMode, resolve_name

        found: list[tuple[str, Framework, list[Any]]] = []
        takes = self.takes

        class Recorder(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                names, values = list(kwargs or {}), [*args, *(kwargs or {}).values()]
                at = [i for i, v in enumerate(values) if takes(v)]

                def alone(*arrays: Any) -> Any:
                    given = list(values)
                    for i, array in zip(at, arrays, strict=True):
                        given[i] = array
                    return function(*given[: len(args)], **dict(zip(names, given[len(args) :], strict=True)))

                name = resolve_name(function) or ""
                if name.startswith("torch.") and "as_strided" not in name:  # which is about layouts
                    found.append((name, Torch(alone), [values[i].detach() for i in at]))
                return function(*args, **(kwargs or {}))

        def recorded(*inputs: Any) -> Any:
            with Recorder():
                return self.function(*inputs)

        Torch(recorded).outputs(inputs)
        return found

    def _leaves(self, inputs: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
        """Return views of the inputs that require gradients."""
        leaves = [x.detach() if self.takes(x) else x for x in inputs]
        for i in wanted:
            leaves[i].requires_grad_()
        return leaves

    def outputs(self, inputs: Sequence[Any]) -> Any:
        wanted = [i for i, x in enumerate(inputs) if self.takes(x) and x.is_floating_point()]
        with self.torch.enable_grad():  # a function, such as one of forces, may use autograd itself
            return self.function(*self._leaves(inputs, wanted))

    def _grad(self, results: Sequence[Any], at: Sequence[Any], cotangents: Sequence[Any], again: bool) -> list[Any]:
        pairs = [
            (y, g)
            for y, g in zip(results, cotangents, strict=True)
            if y is not None and self.takes(y) and y.requires_grad and g is not None
        ]
        if not pairs:
            return [None] * len(at)
        ys, gs = zip(*pairs, strict=True)
        return list(self.torch.autograd.grad(ys, at, gs, create_graph=again, allow_unused=True))

    def vjp(self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any]) -> Sequence[Any]:
        with self.torch.enable_grad():
            leaves = self._leaves(inputs, wanted)
            results = as_tuple(self.function(*leaves))
            return self._grad(results, [leaves[i] for i in wanted], cotangents, self.recorded)

    def vjp2(
        self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any], directions: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        with self.torch.enable_grad():
            leaves, weights = self._leaves(inputs, wanted), self._variables(cotangents)
            return self._second(leaves, wanted, weights, directions, self.recorded)

    def vjp3(
        self,
        inputs: Sequence[Any],
        wanted: Sequence[int],
        cotangents: Sequence[Any],
        directions: Sequence[Any],
        second_directions: Sequence[Any],
        cotangent_directions: Sequence[Any],
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        with self.torch.enable_grad():
            leaves, weights = self._leaves(inputs, wanted), self._variables(cotangents)
            along = self._variables(directions)
            of_inputs, of_weights = self._second(leaves, wanted, weights, along, True)
            third = self._grad(
                [*of_inputs, *of_weights],
                [a for a in (*(leaves[i] for i in wanted), *weights, *along) if a is not None],
                [*second_directions, *cotangent_directions],
                self.recorded,
            )
        of_others = iter(third[len(wanted) :])
        return (
            third[: len(wanted)],
            [None if g is None else next(of_others) for g in weights],
            [None if u is None else next(of_others) for u in along],
        )

    def _variables(self, tensors: Sequence[Any]) -> list[Any]:
        """Return views that require gradients, None for None."""
        return [None if t is None else t.detach().requires_grad_() for t in tensors]

    def _second(
        self, leaves: list[Any], wanted: Sequence[int], weights: list[Any], directions: Sequence[Any], again: bool
    ) -> tuple[list[Any], list[Any]]:
        """Return what `vjp2` does, for inputs and cotangents that require gradients."""
        at, present = [leaves[i] for i in wanted], [g for g in weights if g is not None]
        gradients = self._grad(as_tuple(self.function(*leaves)), at, weights, True)
        second = self._grad(gradients, at + present, directions, again)
        of_weights = iter(second[len(at) :])
        return second[: len(at)], [None if g is None else next(of_weights) for g in weights]


class Jax(Framework):
    """Functions of JAX arrays, differentiated by ``jax.vjp``; `recorded`: the last time within a further one."""

    name = "jax"

    def __init__(self, function: Function, recorded: bool = False) -> None:
        try:
            jax: Any = import_module("jax")
        except ImportError as error:
            raise ImportError("check_derivatives: framework 'jax' needs JAX: pip install 'slopecheck[jax]'") from error
        if parent_process() is not None:  # a new process does not inherit this setting of its parent
            jax.config.update("jax_enable_x64", True)
        if not jax.config.jax_enable_x64:
            raise ValueError(
                "check_derivatives: JAX converts float64 to float32; expected jax.config.update('jax_enable_x64', True)"
            )
        self.function, self.jax, self.recorded = function, jax, recorded

    def takes(self, value: Any) -> bool:
        return isinstance(value, self.jax.Array)

    def to_host(self, value: Any) -> np.ndarray:
        return np.array(value)

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        return self.jax.device_put(array, next(iter(like.devices())))

    def device_of(self, value: Any) -> str:
        return str(next(iter(value.devices())))

    def layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
        return {}  # JAX arrays have no strides

    def _select_function(self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any]) -> Function:
        """Return a function from the wanted inputs to the outputs that have a cotangent."""

        def call(*values: Any) -> tuple[Any, ...]:
            arguments = list(inputs)
            for i, value in zip(wanted, values, strict=True):
                arguments[i] = value
            outputs = as_tuple(self.function(*arguments))
            return tuple(y for y, g in zip(outputs, cotangents, strict=True) if g is not None)

        return call

    def vjp(self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any]) -> Sequence[Any]:
        _, pull = self.jax.vjp(self._select_function(inputs, wanted, cotangents), *(inputs[i] for i in wanted))
        return pull(tuple(g for g in cotangents if g is not None))

    def vjp2(
        self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any], directions: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        second, at, weights, along = self._second(inputs, wanted, cotangents, directions)
        of_inputs, of_given = second(at, weights, along)
        of_weights = iter(of_given)
        return of_inputs, [None if g is None else next(of_weights) for g in cotangents]

    def vjp3(
        self,
        inputs: Sequence[Any],
        wanted: Sequence[int],
        cotangents: Sequence[Any],
        directions: Sequence[Any],
        second_directions: Sequence[Any],
        cotangent_directions: Sequence[Any],
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        second, at, weights, along = self._second(inputs, wanted, cotangents, directions)
        of_results = [h for g, h in zip(cotangents, cotangent_directions, strict=True) if g is not None]

        def third(*arguments: Any) -> Any:
            along_results = self._with_zeros(at, second_directions), self._with_zeros(weights, of_results)
            return self.jax.vjp(second, *arguments)[1](along_results)

        results = self.jax.vjp(third, at, weights, along)[0] if self.recorded else third(at, weights, along)
        of_inputs, of_given, of_directions = results
        of_weights = iter(of_given)
        return of_inputs, [None if g is None else next(of_weights) for g in cotangents], of_directions

    def _with_zeros(self, like: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return arrays with zeros for None."""
        return tuple(self.jax.numpy.zeros_like(x) if a is None else a for x, a in zip(like, arrays, strict=True))

    def _second(
        self, inputs: Sequence[Any], wanted: Sequence[int], cotangents: Sequence[Any], directions: Sequence[Any]
    ) -> tuple[Function, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """Return a function with the results of `vjp2`, and its arguments: inputs, given cotangents, and directions.

        A direction that is None is zero.
        """
        function, at = self._select_function(inputs, wanted, cotangents), tuple(inputs[i] for i in wanted)

        def gradients(values: Any, weights: Any) -> Any:
            return self.jax.vjp(function, *values)[1](weights)

        def second(values: Any, weights: Any, along: Any) -> Any:
            return self.jax.vjp(gradients, values, weights)[1](along)

        return second, at, tuple(g for g in cotangents if g is not None), self._with_zeros(at, directions)


DIFFERENTIATING: dict[str, Callable[..., Framework]] = {"torch": Torch, "jax": Jax}

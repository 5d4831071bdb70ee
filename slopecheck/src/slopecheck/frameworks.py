"""One interface to NumPy, torch and JAX: values, memory layouts and derivatives of arrays.

Values are exchanged as NumPy arrays of float64, or of the tested dtype.
"""

import contextlib
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from multiprocessing import parent_process
from typing import Any

import numpy as np

Function = Callable[..., Any]
Groups = tuple[Sequence[Any], ...]  # derivatives by argument: inputs, cotangents (order 2, 3), directions (order 3)
THREADS = (1, 2, 3)


class Framework(ABC):
    """Interface between the checks and an array framework."""

    name: str
    function: Function

    @abstractmethod
    def is_array(self, value: Any) -> bool:
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
    def copy_in_layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
        """Return copies of `array` in other memory layouts, by the name of the layout.

        The array is nonempty and has an axis. Copies have the same values, but "expanded" repeats the first row.
        """

    def compute_outputs(self, inputs: Sequence[Any]) -> Any:
        """Return the results of the function for native inputs."""
        return self.function(*inputs)

    @abstractmethod
    def compute_derivatives(
        self, order: int, inputs: Sequence[Any], wanted: Sequence[int], *factors: Sequence[Any]
    ) -> Groups:
        """Return the derivatives of an order, grouped by the arguments with respect to which they are taken.

        The `factors` are cotangents; from order 2 on also directions; for order 3 also second directions and directions
        of cotangents. A None among the factors stands for zero; the derivative with respect to it is undefined.

        - Order 1: gradients of sum <cotangent, output> for the wanted inputs; None for an unconnected input.
        - Order 2: gradients of sum <direction, gradient> for the wanted inputs and for the cotangents.
        - Order 3: gradients of sum <second direction, d_x> + sum <cotangent direction, d_w> for the wanted inputs, for
          the cotangents and for the directions, where d_x and d_w are the two groups of results of order 2.
        """

    @contextlib.contextmanager
    def use_threads(self, number: int) -> Iterator[None]:
        """Set the framework's number of threads within a context; by default, do nothing."""
        yield

    def list_called_functions(self, inputs: Sequence[Any]) -> "Iterable[tuple[str, Framework, list[Any]]]":
        """Return the name, the `Framework` and the array arguments of each framework function that a call uses."""
        return ()

    has_threads = False
    selects = True  # whether gradients for a subset of inputs and outputs are supported


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return the result of a function as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def find_framework_name(inputs: Sequence[Any]) -> str:
    """Return the name of the framework of the first input that is a torch tensor or a JAX array, else "numpy"."""
    kinds = {"torch": "Tensor", "jax": "Array"}
    loaded = [(name, getattr(sys.modules[name], kind)) for name, kind in kinds.items() if name in sys.modules]
    return next((name for value in inputs for name, kind in loaded if isinstance(value, kind)), "numpy")


class NumPy(Framework):
    """Functions of NumPy arrays; the user provides the derivatives."""

    name, selects = "numpy", False

    def __init__(self, function: Function, derivatives: Sequence[Function]) -> None:
        self.function, self._derivatives = function, derivatives  # derivatives has one function for each order

    def is_array(self, value: Any) -> bool:
        return isinstance(value, (np.ndarray, np.generic))  # NumPy returns a scalar for the sum of all elements

    def to_host(self, value: Any) -> np.ndarray:
        return np.array(value)

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        return np.array(array)

    def device_of(self, value: Any) -> str:
        return "cpu"

    def copy_in_layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
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

    def compute_derivatives(
        self, order: int, inputs: Sequence[Any], wanted: Sequence[int], *factors: Sequence[Any]
    ) -> Groups:
        results = self._derivatives[order - 1](tuple(inputs), *map(tuple, factors))
        return tuple(map(as_tuple, [results] if order == 1 else results))


class Torch(Framework):
    """Functions of torch tensors, differentiated by autograd; `recorded` keeps the graph of the last gradient."""

    name, has_threads = "torch", True

    def __init__(self, function: Function, recorded: bool = False) -> None:
        import torch

        self.function, self.torch, self.recorded = function, torch, recorded

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def to_host(self, value: Any) -> np.ndarray:
        value = (
            value.to_dense() if value.layout != self.torch.strided else value
        )  # gradients of embeddings may be sparse
        half = value.dtype == self.torch.bfloat16  # NumPy has no bfloat16
        host = self.torch.empty(value.shape, dtype=self.torch.float32 if half else value.dtype)
        host.copy_(value.detach())  # resolves autograd's implicit zeros, lazy conjugates and negatives
        return np.asarray(host.numpy())

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        return self.torch.from_numpy(np.array(array)).to(like.device)

    def device_of(self, value: Any) -> str:
        return str(value.device)

    def copy_in_layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
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
    def use_threads(self, number: int) -> Iterator[None]:
        before = self.torch.get_num_threads()
        self.torch.set_num_threads(number)
        try:
            yield
        finally:
            self.torch.set_num_threads(before)

    def list_called_functions(self, inputs: Sequence[Any]) -> Iterable[tuple[str, Framework, list[Any]]]:
        from torch.overrides import TorchFunctionMode, resolve_name

        found: list[tuple[str, Framework, list[Any]]] = []
        takes = self.is_array

        class FunctionCallRecorder(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                names, values = list(kwargs or {}), [*args, *(kwargs or {}).values()]
                at = [i for i, v in enumerate(values) if takes(v)]

                def call_with_replaced_arrays(*arrays: Any) -> Any:
                    given = list(values)
                    for i, array in zip(at, arrays, strict=True):
                        given[i] = array
                    return function(*given[: len(args)], **dict(zip(names, given[len(args) :], strict=True)))

                name = resolve_name(function) or ""
                if name.startswith("torch.") and "as_strided" not in name:  # `as_strided` itself depends on layouts
                    found.append((name, Torch(call_with_replaced_arrays), [values[i].detach() for i in at]))
                return function(*args, **(kwargs or {}))

        def call_while_recording(*inputs: Any) -> Any:
            with FunctionCallRecorder():
                return self.function(*inputs)

        Torch(call_while_recording).compute_outputs(inputs)
        return found

    def _make_leaves(self, inputs: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
        """Return views of the inputs; the `wanted` inputs require gradients."""
        leaves = [x.detach() if self.is_array(x) else x for x in inputs]
        for i in wanted:
            leaves[i].requires_grad_()
        return leaves

    def compute_outputs(self, inputs: Sequence[Any]) -> Any:
        wanted = [i for i, x in enumerate(inputs) if self.is_array(x) and x.is_floating_point()]
        with self.torch.enable_grad():  # a function, for example one that returns forces, may use autograd itself
            return self.function(*self._make_leaves(inputs, wanted))

    def _compute_gradients(
        self, results: Sequence[Any], at: Sequence[Any], factors: Sequence[Any], again: bool
    ) -> list[Any]:
        """Return gradients of sum <factor, result> with respect to `at`; terms that are None are left out."""
        pairs = [
            (y, g)
            for y, g in zip(results, factors, strict=True)
            if y is not None and self.is_array(y) and y.requires_grad and g is not None
        ]
        if not pairs:
            return [None] * len(at)
        given = [a for a in at if a is not None]
        ys, gs = zip(*pairs, strict=True)
        gradients = iter(self.torch.autograd.grad(ys, given, gs, create_graph=again, allow_unused=True))
        return [None if a is None else next(gradients) for a in at]

    def compute_derivatives(
        self, order: int, inputs: Sequence[Any], wanted: Sequence[int], *factors: Sequence[Any]
    ) -> Groups:
        *earlier, last = [*factors[:2], [f for group in factors[2:] for f in group]][:order]
        with self.torch.enable_grad():
            leaves = self._make_leaves(inputs, wanted)
            variables = [[None if f is None else f.detach().requires_grad_() for f in group] for group in earlier]
            groups = [[leaves[i] for i in wanted], *variables]
            results: Sequence[Any] = as_tuple(self.function(*leaves))
            for n, group in enumerate([*variables, last], 1):
                at = [a for group in groups[:n] for a in group]
                results = self._compute_gradients(results, at, group, n < order or self.recorded)
        remaining = iter(results)
        return tuple([next(remaining) for _ in group] for group in groups)


class Jax(Framework):
    """Functions of JAX arrays, differentiated by ``jax.vjp``; `recorded` evaluates the last ``vjp`` inside another."""

    name = "jax"

    def __init__(self, function: Function, recorded: bool = False) -> None:
        try:
            jax: Any = import_module("jax")
        except ImportError as error:
            raise ImportError("check_derivatives: framework 'jax' needs JAX: pip install 'slopecheck[jax]'") from error
        if parent_process() is not None:  # a child process does not inherit this setting
            jax.config.update("jax_enable_x64", True)
        if not jax.config.jax_enable_x64:
            raise ValueError(
                "check_derivatives: JAX converts float64 to float32; expected jax.config.update('jax_enable_x64', True)"
            )
        self.function, self.jax, self.recorded = function, jax, recorded

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.jax.Array)

    def to_host(self, value: Any) -> np.ndarray:
        return np.array(value)

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        return self.jax.device_put(array, next(iter(like.devices())))

    def device_of(self, value: Any) -> str:
        return str(next(iter(value.devices())))

    def copy_in_layouts(self, array: np.ndarray, like: Any) -> dict[str, Any]:
        return {}  # JAX arrays have no strides

    def compute_derivatives(
        self, order: int, inputs: Sequence[Any], wanted: Sequence[int], *factors: Sequence[Any]
    ) -> Groups:
        used = [g is not None for g in factors[0]]  # the other outputs have no cotangent and are left out
        at, weights = tuple(inputs[i] for i in wanted), tuple(itertools.compress(factors[0], used))

        def compute_outputs_with_cotangents(*values: Any) -> tuple[Any, ...]:
            arguments = dict(enumerate(inputs)) | dict(zip(wanted, values, strict=True))
            return tuple(y for y, use in zip(as_tuple(self.function(*arguments.values())), used, strict=True) if use)

        def compute_vjp(function: Function, *arguments: Any) -> Any:
            """Return gradients of sum <last argument, result> with respect to the other arguments."""
            return self.jax.vjp(function, *arguments[:-1])[1](arguments[-1])

        function: Function = lambda values, weights: compute_vjp(compute_outputs_with_cotangents, *values, weights)  # noqa: E731
        arguments: list[Any] = [at, weights]
        if order >= 2:
            function = partial(compute_vjp, function)
            arguments.append(self._replace_none_by_zeros(at, factors[1]))
        if order == 3:
            function = partial(compute_vjp, function)
            of_weights = itertools.compress(factors[3], used)
            arguments.append(
                (self._replace_none_by_zeros(at, factors[2]), self._replace_none_by_zeros(weights, of_weights))
            )
        if order == 3 and self.recorded:
            results = self.jax.vjp(lambda *given: function(*given, arguments[-1]), *arguments[:-1])[0]
        else:
            results = function(*arguments)
        if order == 1:
            return (results,)
        of_inputs, of_given, *of_directions = results
        remaining = iter(of_given)
        return of_inputs, [next(remaining) if use else None for use in used], *of_directions

    def _replace_none_by_zeros(self, like: Iterable[Any], arrays: Iterable[Any]) -> tuple[Any, ...]:
        """Return arrays, with zeros in place of None."""
        return tuple(self.jax.numpy.zeros_like(x) if a is None else a for x, a in zip(like, arrays, strict=True))


DIFFERENTIATING: dict[str, Callable[..., Framework]] = {"torch": Torch, "jax": Jax}

"""Key of a compiled program: everything in a potential's modules on which the program depends."""

import enum
import operator
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

MAX_ELEMENTS = 10_000  # maximum length of containers compared by value (about 0.3 ms per call)
_PLAIN = (type(None), type(...), bool, int, str, bytes, torch.device, torch.dtype, torch.layout, torch.memory_format)
_CONTAINERS = (dict, OrderedDict, list, tuple, set, frozenset)
_INHERITED = ("cutoff", "max_num_neighbors", "out_channels")  # may be set on the class instead of the instance
_properties = operator.attrgetter("requires_grad", "dtype", "device", "layout", "shape")


class _IdentityWrapper:
    """Wrapper that compares an object by identity and keeps it alive, so that no other object gets its address."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityWrapper) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class ProgramKey:
    """Classes and attributes of the modules of a potential, including hooks and modes.

    A program depends on everything that the model reads during tracing. Keys compare plain values, and built-in
    containers of plain values, by value; parameters and buffers by name and properties; and other attributes by
    identity. After a change of anything else that the model reads, the user must call `recompile`.

    Attributes
    ----------
    state : dict of Tensor
        Parameters, then buffers, by name.
    parameters : tuple of str
        Names of the parameters.
    values : dict
        Comparable values by path in the model, such as "rbf.training". Keys with equal `values` share programs.
    not_compared : list of str
        Attributes whose contents may change without changing the key.
    """

    def __init__(self, root: Module) -> None:
        parameters, modules = dict(root.named_parameters()), dict(root.named_modules())
        self.state = {**parameters, **dict(root.named_buffers())}
        self.parameters, self.root, self.not_compared = tuple(parameters), root, list[str]()
        self._names = {id(one): name for name, one in chain(self.state.items(), modules.items())}
        self._containers: list[Any] = []
        self.values: dict[str, Any] = {
            name: self._make_comparable(name, getattr(root, name, None)) for name in _INHERITED
        }
        for name, module in modules.items():
            self.values[f"{name}.__class__".removeprefix(".")] = _IdentityWrapper(type(module))
            self._containers.append(vars(module))
            for attribute, value in vars(module).items():
                place = f"{name}.{attribute}".removeprefix(".")
                self.values[place] = self._make_comparable(place, value)
        # The attributes below serve only `is_unchanged`. They keep the model's objects alive, so that no new object can
        # get the address of an old one.
        self._modules, self._tensors = list(modules.values()), list(self.state.values())
        self._empty = [c for c in self._containers if not c]
        self._containers = [c for c in self._containers if c]
        self._views = [c.values() for c in self._containers if isinstance(c, Mapping)]
        self._objects, self._properties = list(self._iterate_compared_objects()), list(map(_properties, self._tensors))
        self._strided = [t for t in self._tensors if t.layout is torch.strided]
        self._strides = list(map(Tensor.stride, self._strided))
        strides = iter(self._strides)
        for name, tensor, properties in zip(self.state, self._tensors, self._properties, strict=True):
            stride = next(strides) if tensor.layout is torch.strided else None
            self.values[f"{name} as a tensor"] = [type(tensor), properties, stride]

    def is_unchanged(self, root: Module) -> bool:
        """Return whether a new key of `root` would be equal; return False also if an equal new object was assigned."""
        return (
            root is self.root
            and not any(self._empty)
            and all(map(operator.is_, self._iterate_compared_objects(), self._objects))
            and list(map(_properties, self._tensors)) == self._properties
            and list(map(Tensor.stride, self._strided)) == self._strides  # last: sparse tensors lack strides
        )

    def _iterate_compared_objects(self) -> Iterator[Any]:
        # An added or removed element shifts all later objects. Values come last, so that a shift is always noticed.
        inherited = (getattr(self.root, name, None) for name in _INHERITED)
        modules = map(type, self._modules), map(vars, self._modules)
        return chain(inherited, *modules, *self._containers, *self._views)

    def _make_comparable(self, place: str, value: Any) -> Any:
        """Return an object to compare for a value; equal objects mean that the values allow the same program."""
        cls = type(value)
        if cls in _PLAIN:
            return cls, value
        if isinstance(value, (float, complex, np.number)):
            return cls, repr(value)  # unlike ==, repr distinguishes -0.0 from 0.0 and matches NaN with NaN
        if id(value) in self._names:
            return self._names[id(value)]
        if cls not in _CONTAINERS or len(value) > MAX_ELEMENTS:
            if not _is_immutable(value) and place not in self.not_compared:
                self.not_compared.append(place)
            return _IdentityWrapper(value)
        if cls is not tuple:  # skip tuples, because Python may share equal tuples
            self._names[id(value)] = place
            self._containers.append(value)
        if isinstance(value, Mapping):
            return cls, tuple(
                (self._make_comparable(place, k), self._make_comparable(place, v)) for k, v in value.items()
            )
        elements = (self._make_comparable(place, one) for one in value)
        return cls, frozenset(elements) if cls in (set, frozenset) else tuple(elements)


def _is_immutable(value: Any) -> bool:
    """Return whether an object's behaviour can never change."""
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    if isinstance(value, type):
        return value.__module__.partition(".")[0] in ("builtins", "torch", "trigraph")
    return isinstance(value, (types.BuiltinFunctionType, types.ModuleType, enum.Enum))


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the paths at which the `values` of two keys differ."""
    changed = [p for p in chain(after, before) if p not in before or p not in after or before[p] != after[p]]
    return [place.split(" as ")[0] for place in dict.fromkeys(changed)]

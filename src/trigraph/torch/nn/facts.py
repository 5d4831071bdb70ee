"""What a traced program of a module depends on beside the tensors that it is given, and whether that has changed."""

import dis
import enum
import functools
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

MOST = 100_000  # values: comparing them takes some 3 ms in each call
_PLAIN = (type(None), type(...), bool, int, str, bytes, torch.device, torch.dtype, torch.layout, torch.memory_format)
_AS_THEY_ARE = (types.ModuleType, type, types.BuiltinFunctionType, property, staticmethod, classmethod, enum.Enum)
_DATA = (bool, int, float, complex, str, bytes, np.generic, np.ndarray, Tensor, dict, list, tuple, set, frozenset)
_CONTAINERS = (dict, OrderedDict, list, tuple, set, frozenset)
_properties = operator.attrgetter("requires_grad", "dtype", "device", "layout", "shape")


class _Same:
    """Equal to the same object only, which it keeps alive, so that no other gets its address."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Facts:
    """Types, modes, hooks and plain values of all modules of a module.

    Numbers, texts and containers of them count by value, tensors that are neither parameters nor buffers and NumPy
    arrays by their bits, parameters and buffers by dtype, device, sizes and whether they require a gradient, other
    objects by class and attributes, functions by identity and the variables that they enclose, and everything else by
    identity. Of classes, attributes and methods count. The global variables that a function or method reads count in
    the same way, but not what functions and other objects among them read in turn.

    Attributes
    ----------
    state : dict of Tensor
        Parameters, then buffers, by name.
    values : dict
        Equal to those of another module if both give the same program.
    constants : list of str
        Where tensors are that are neither parameters nor buffers.

    Raises
    ------
    TypeError
        If the bits of a tensor that is neither parameter nor buffer cannot be read.
    ValueError
        If there are more values than MOST.
    """

    def __init__(self, root: Module) -> None:
        self.root, self.values = root, {}
        parameters = dict(root.named_parameters())
        self.state: dict[str, Tensor] = {**parameters, **dict(root.named_buffers())}
        self.parameters = tuple(parameters)
        self.constants: list[str] = []
        # Everything below is for `unchanged`. It holds the model's own objects, therefore they have the same identity
        # exactly as long as nobody has assigned others.
        self._kept: dict[int, Any] = {}  # what was seen, by identity
        self._names: dict[int, str] = {id(t): name for name, t in reversed(self.state.items())}
        self._objects: list[Any] = []  # with a __dict__
        self._empty: list[Any] = []
        self._containers: list[Any] = []  # of which the keys or the elements are compared
        self._views: list[Any] = []  # the values of those that are mappings
        self._readers: list[tuple[Callable[[], Any], Any]] = []  # and what they returned
        for name, module in root.named_modules():
            self._kept[id(module)] = module
            self._names[id(module)] = name
        for name, module in root.named_modules():
            self._object(name, module)
        for name, tensor in self.state.items():
            self.values[f"{name} as a tensor"] = (_Same(type(tensor)), *_properties(tensor), _strides(tensor))
        tensors = self._tensors = list(self.state.values())
        self._tensor_facts = list(map(_properties, tensors)), list(map(_strides, tensors))
        self._classes, self._dicts = list(map(type, self._objects)), list(map(vars, self._objects))
        self._lengths = list(map(len, self._containers))
        self._items = list(chain.from_iterable(self._containers))
        self._values = list(chain.from_iterable(self._views))

    def unchanged(self, root: Module) -> bool:
        """Return whether new facts of this module would be equal; False also for a value assigned once more."""
        same = operator.is_
        return (
            root is self.root
            and not any(self._empty)
            and all(map(same, map(type, self._objects), self._classes))
            and all(map(same, map(vars, self._objects), self._dicts))
            and list(map(len, self._containers)) == self._lengths
            and all(map(same, chain.from_iterable(self._containers), self._items))
            and all(map(same, chain.from_iterable(self._views), self._values))
            and (list(map(_properties, self._tensors)), list(map(_strides, self._tensors))) == self._tensor_facts
            and all(read() == before for read, before in self._readers)
        )

    def _put(self, place: str, value: Any) -> None:
        if len(self.values) > MOST:
            raise ValueError(
                f"compile_potential: {type(self.root).__name__} holds more than {MOST} values that its program may "
                f"depend on, such as {place}; expected them outside of the model, or in buffers"
            )
        place = place.removeprefix(".")
        while place in self.values:  # as of two classes of the same name
            place += "'"
        self.values[place] = value

    def _object(self, place: str, value: Any) -> None:
        """Add class and attributes of an object."""
        attributes = vars(value)
        self._put(f"{place}.__class__", _Same(type(value)))
        self._objects.append(value)
        for cls in type(value).__mro__:
            if cls not in (Module, object):  # torch's compiler replaces a method of Module
                self._class(cls)
        self._watch(attributes)
        for name, one in attributes.items():
            self._add(f"{place}.{name}", one)

    def _class(self, cls: type) -> None:
        """Add attributes and methods of a class, of special names only methods: Python adds others as they are read."""
        if id(cls) in self._kept:
            return
        self._kept[id(cls)] = cls
        self._watch(vars(cls))
        for name, value in vars(cls).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))  # of static methods and properties
            if isinstance(function, types.FunctionType):
                self._function(f"{cls.__qualname__}.{name}", function)
            elif not name.startswith("__"):
                self._add(f"{cls.__qualname__}.{name}", value)

    def _watch(self, container: Any) -> None:
        """Compare the elements of a container in each call, and the keys of a mapping."""
        if not container and not isinstance(container, types.MappingProxyType):
            self._empty.append(container)
            return
        self._containers.append(container)
        if isinstance(container, Mapping):
            self._views.append(container.values())

    def _add(self, place: str, value: Any) -> None:
        """Add a value, and what it contains."""
        kind = type(value)
        if kind in _PLAIN:
            self._put(place, (kind, value))
        elif isinstance(value, (float, complex, np.generic)):
            self._put(place, (_Same(kind), repr(value)))  # tells 0.0 from -0.0, and finds NaN equal
        elif id(value) in self._names:
            self._put(place, self._names[id(value)])
        elif isinstance(value, _AS_THEY_ARE):
            self._put(place, _Same(value))
        else:
            if not isinstance(value, (tuple, frozenset)):  # of which Python may share equal ones
                self._names[id(value)], self._kept[id(value)] = place, value
            self._contents(place, value)

    def _contents(self, place: str, value: Any) -> None:
        """Add a value that may contain others."""
        self._put(place, _Same(type(value)))
        if isinstance(value, _CONTAINERS) and type(value) not in _CONTAINERS and _has_attributes(value):
            self._object(place, value)
        if isinstance(value, Mapping):
            self._watch(value)
            self._put(f"{place} as a mapping", tuple(map(_key, value)))
            for i, (key, one) in enumerate(value.items()):
                self._add(f"{place}[{repr(key) if type(key) in (str, int) else i}]", one)
        elif isinstance(value, (list, tuple)):
            self._watch(value)
            self._put(f"{place} as a sequence", len(value))
            for i, one in enumerate(value):
                self._add(f"{place}[{i}]", one)
        elif isinstance(value, (set, frozenset)):
            self._watch(value)
            self._put(f"{place} as a set", frozenset(map(_key, value)))
        elif isinstance(value, Tensor):
            self.constants.append(place.removeprefix("."))
            self._put(f"{place} as a tensor", self._read(self._bits, place, value))
        elif isinstance(value, np.ndarray):
            self._put(f"{place} as an array", self._read(_bytes, value))
        elif isinstance(value, types.FunctionType):
            self._function(place, value)
        elif isinstance(value, types.MethodType):
            self._put(f"{place} as a method", _Same(value.__func__))
            self._add(f"{place}.__self__", value.__self__)
        elif isinstance(value, functools.partial):
            for name, one in (("func", value.func), ("args", value.args), ("keywords", value.keywords)):
                self._add(f"{place}.{name}", one)
        elif _has_attributes(value):
            self._object(place, value)
        else:
            slots = [name for name in _slots(type(value)) if hasattr(value, name)]
            if not slots:
                self._put(f"{place} as an object", _Same(value))
                return
            held = self._read(lambda: _Slots(getattr(value, name, None) for name in slots))
            for name, one in zip(slots, held, strict=True):
                self._add(f"{place}.{name}", one)

    def _function(self, place: str, function: types.FunctionType) -> None:
        """Add a function, and the variables that it reads."""
        self._put(f"{place} as a function", _Same(function))
        if function.__globals__.get("__name__", "").partition(".")[0] in ("torch", "trigraph"):
            return  # which change variables as they remember, but not what they compute
        for name, one in zip(function.__code__.co_freevars, self._read(_enclosed, function), strict=True):
            self._add(f"{place}: {name}", one)
        names = _globals_of(function.__code__)
        for name, one in zip(names, self._read(_values_of, function, names), strict=True):
            if isinstance(one, _DATA):
                self._add(f"{place}: {name}", one)
            else:
                self._put(f"{place}: {name}", _Same(one))

    def _read(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Read what `unchanged` reads again."""
        function = functools.partial(read, *arguments)
        self._readers.append((function, function()))
        return self._readers[-1][1]

    def _bits(self, place: str, tensor: Tensor) -> Any:
        """Return type, properties and bits of a tensor that is neither parameter nor buffer."""
        try:
            flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            bits = flat.view(torch.uint8).cpu().numpy().tobytes()
        except (RuntimeError, TypeError) as error:
            raise TypeError(
                f"compile_potential: {place.removeprefix('.')} of {type(self.root).__name__} is a tensor whose bits "
                f"cannot be read ({error}); expected a buffer"
            ) from error
        return type(tensor), *_properties(tensor), bits


class _Slots(tuple[Any, ...]):
    """Objects, which are equal only if they are the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Slots) and len(self) == len(other) and all(map(operator.is_, self, other))

    __hash__ = tuple.__hash__


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and vars(value) is vars(value)  # not made anew, as that of a generic alias


def _strides(tensor: Tensor) -> Any:
    return tensor.stride() if tensor.layout is torch.strided else None


def _key(value: Any) -> Any:
    """Return a key of a mapping or an element of a set, to compare with others."""
    return (type(value), value) if type(value) in _PLAIN else _Same(value)


def _bytes(array: np.ndarray) -> Any:
    """Return the contents of an array; of an array of objects, these."""
    contents = _Slots(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()
    return array.dtype, array.shape, contents


def _enclosed(function: types.FunctionType) -> _Slots:
    return _Slots(map(_content, function.__closure__ or ()))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable without a value
        return None


@functools.cache
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the global variables that a function reads, also in functions inside of it."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    inner = (_globals_of(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return tuple(sorted(names.union(*inner)))


def _values_of(function: types.FunctionType, names: tuple[str, ...]) -> _Slots:
    return _Slots(function.__globals__.get(name) for name in names)


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the places where the `values` of two facts differ."""
    changed = [p for p in chain(after, before) if p not in before or p not in after or before[p] != after[p]]
    return [place.split(" as ")[0] for place in dict.fromkeys(changed)]

"""Conversion of existing models to trigraph's operators: `convert` changes the classes of supported layers in place."""

import inspect
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import Module

from trigraph.torch import nn
from trigraph.torch.nn import dimenet
from trigraph.torch.nn.activations import SiLU, silu
from trigraph.torch.nn.arguments import BOUNDS
from trigraph.torch.nn.gemnet import EfficientInteractionBilinear, MatterGenBilinear, PairInteraction


class Layer(NamedTuple):
    """A layer that `convert` examined.

    Attributes
    ----------
    path : str
        Name of the layer in ``model.named_modules()``; "" is the model itself.
    original : str
        Class of the layer before conversion, with its module.
    note : str
        Class of the layer after conversion, or the reason why it was not converted.
    """

    path: str
    original: str
    note: str


@dataclass
class Conversion:
    """Result of `convert`; prints as a table.

    Attributes
    ----------
    replaced : list of Layer
        Layers that now use trigraph's operators.
    left : list of Layer
        Layers of a supported kind that were not converted, with reasons.
    """

    replaced: list[Layer] = field(default_factory=list)
    left: list[Layer] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def revert(self) -> None:
        """Restore the class of every layer; parameters keep their current values."""
        while self._undo:
            self._undo.pop()()

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="trigraph.torch.convert")
        for column in ("layer", "original", "new class, or why not converted"):
            table.add_column(column, overflow="fold")  # long names continue on the next line
        for layer in self.replaced + self.left:
            table.add_row(layer.path or "(the model)", layer.original, layer.note)
        text = io.StringIO()
        Console(file=text, width=160).print(table)
        return text.getvalue()


class _Unfit(Exception):
    """Reason why a layer cannot be converted."""


# New class and attributes of a layer and its sublayers, all determined before any of them changes.
_Changes = list[tuple[Module, type[Module], dict[str, Any]]]


def _gat(layer: Any) -> _Changes:
    from trigraph.compat import pyg

    if reason := pyg.why_not(layer):
        raise _Unfit(reason)
    if layer.decomposed_layers != 1:
        raise _Unfit(f"decomposed_layers is {layer.decomposed_layers}; only 1 is supported")
    return [(layer, pyg.GATConv, {})]


def _limit(name: str, value: int) -> int:
    low, *high = BOUNDS[name]
    if value < low or value > max(high, default=value):
        raise _Unfit(f"{name} is {value}; trigraph supports {' to '.join(map(str, (low, *high)))}")
    return value


def _dimenet(model: Any) -> _Changes:
    sizes = {
        "num_spherical": _limit("num_spherical", model.sbf.num_spherical),
        "num_radial": _limit("num_radial", model.sbf.num_radial),
    }
    exponent = _limit("envelope_exponent", model.rbf.envelope.p - 1)

    def act(block: Any) -> dict[str, Any]:
        """Replace SiLU of torch or PyTorch Geometric by ours, which is faster in second derivatives."""
        if type(block.act) is torch.nn.SiLU:
            return {"act": SiLU()}
        return {"act": silu} if getattr(block.act, "__name__", "") == "swish" else {}

    radial = {"num_spherical": sizes["num_spherical"], "envelope_exponent": exponent}
    found: _Changes = [
        (model, dimenet.DimeNetPlusPlus, {"out_channels": model.output_blocks[0].lin.out_features}),
        (model.rbf, dimenet.RadialBasis, radial),
        (model.emb, dimenet.EmbeddingBlock, act(model.emb)),
    ]
    for block in model.output_blocks:
        found.append((block, dimenet.OutputBlock, act(block)))
    for block in model.interaction_blocks:
        found.append((block, dimenet.InteractionBlock, {**sizes, "exclude": "edge", **act(block)}))
        for residual in (*block.layers_before_skip, *block.layers_after_skip):
            found.append((residual, dimenet.ResidualBlock, act(residual)))
    return found


def _same_arguments(layer: Module, cls: type[Module]) -> None:
    """Raise unless both classes' forwards have the same parameters, unlike other classes of that name (gemnet_gp)."""
    theirs, ours = (list(inspect.signature(c.forward).parameters)[1:] for c in (type(layer), cls))
    if theirs != ours:
        raise _Unfit(f"its forward takes {', '.join(theirs)}; expected {', '.join(ours)}")


def _basis_embedding(layer: Any) -> _Changes:
    _same_arguments(layer, nn.BasisEmbedding)
    shape, radial = tuple(layer.weight.shape), layer.num_spherical is None
    if len(shape) != (2 if radial else 3) or shape[1 if radial else 0] != layer.num_radial:
        raise _Unfit(f"weight has shape {shape}, which is not that of fairchem-core 1.10")
    return [(layer, nn.BasisEmbedding, {"padded": True})]


def _bilinear(layer: Any) -> _Changes:
    if hasattr(layer, "bilinear"):
        shape: tuple[int, ...] = (layer.emb_size_out, layer.emb_size_in * layer.emb_size_interm)
        found: type[Module] = EfficientInteractionBilinear
        weight, bias = layer.bilinear.linear.weight, layer.bilinear.linear.bias
    elif hasattr(layer, "units_out"):
        shape = (layer.emb_size, layer.emb_size_interm, layer.units_out)
        found, weight, bias = MatterGenBilinear, layer.weight, None
    else:
        raise _Unfit("it is neither fairchem-core 1.10's nor MatterGen 1.0's")
    _same_arguments(layer, found)
    if tuple(weight.shape) != shape or bias is not None:
        raise _Unfit(f"weight has shape {tuple(weight.shape)}; expected {shape} and no bias")
    return [(layer, found, {})]


def _pair(layer: Any) -> _Changes:
    _same_arguments(layer, PairInteraction)
    weight, bias = layer.bilinear.linear.weight, layer.bilinear.linear.bias
    emb_in = layer.down_projection.linear.out_features
    if weight.shape[1] % emb_in or bias is not None:
        expected = f"a multiple of {emb_in}, the width of down_projection, in the second place"
        raise _Unfit(f"bilinear.linear.weight has shape {tuple(weight.shape)}; expected {expected}, and no bias")
    return [(layer, PairInteraction, {})]


class _Known(NamedTuple):
    """A supported class: the top-level packages that define it, and the function that converts it."""

    packages: tuple[str, ...]
    changes: Callable[[Any], _Changes]


_KNOWN = {
    "GATConv": _Known(("torch_geometric",), _gat),
    "DimeNetPlusPlus": _Known(("torch_geometric",), _dimenet),
    "BasisEmbedding": _Known(("fairchem", "ocpmodels"), _basis_embedding),
    "EfficientInteractionBilinear": _Known(("fairchem", "ocpmodels", "mattergen"), _bilinear),
    "PairInteraction": _Known(("fairchem", "ocpmodels"), _pair),
}


def _named(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _candidates(model: Module) -> Iterator[tuple[str, Module, _Known, str | None]]:
    """Yield path, layer, kind, and a reason against conversion, for layers of supported kinds or derived from them."""
    for path, layer in model.named_modules():
        for cls in type(layer).__mro__:
            known, package = _KNOWN.get(cls.__name__), cls.__module__.partition(".")[0]
            if known is None or package not in known.packages:
                continue
            if type(layer).__module__.partition(".")[0] == "trigraph":
                break  # converted before
            reason = None if cls is type(layer) else f"it is derived from {cls.__name__} and may change its methods"
            yield path, layer, known, reason
            break


def _changed(layer: Module, cls: type[Module], attributes: dict[str, Any]) -> Callable[[], None]:
    """Set the new class and attributes of a layer; return a function that restores the old ones."""
    original = type(layer)
    before = {name: getattr(layer, name) for name in attributes if hasattr(layer, name)}
    layer.__class__ = cls
    for name, value in attributes.items():
        setattr(layer, name, value.train(layer.training) if isinstance(value, Module) else value)

    def undo() -> None:
        for name in attributes:
            delattr(layer, name)
        for name, value in before.items():
            setattr(layer, name, value)
        layer.__class__ = original

    return undo


def convert(model: Module) -> Conversion:
    """Convert the supported layers of a model to trigraph's operators.

    Only the classes of layers change. Parameters, hooks, devices, dtypes and training flags stay the same, and
    references to layers, optimizers and checkpoints remain valid.

    Supported layers: ``GATConv`` and ``DimeNetPlusPlus`` of PyTorch Geometric; ``BasisEmbedding`` and
    ``PairInteraction`` of fairchem-core 1.10; ``EfficientInteractionBilinear`` of GemNet-OC, GemNet-dT and MatterGen.

    Parameters
    ----------
    model : torch.nn.Module
        Modified in place; it may itself be a supported layer.

    Returns
    -------
    Conversion
        Layers that were converted, layers that were not and why; `revert` undoes the conversion.

    Raises
    ------
    TypeError
        If `model` is not a module.

    Notes
    -----
    A converted DimeNet++ needs neither pyg-lib nor torch_sparse. If an atom has more than `max_num_neighbors`
    neighbours, it keeps the nearest, whereas PyTorch Geometric keeps the first that it finds.

    Examples
    --------
    >>> import torch_geometric.nn
    >>> model = torch.nn.ModuleList([torch_geometric.nn.GATConv(4, 2)])
    >>> conversion = convert(model)
    >>> conversion.replaced[0].note
    'trigraph.compat.pyg.GATConv'
    >>> conversion.revert()
    """
    if not isinstance(model, Module):
        raise TypeError(f"convert: model is a {type(model).__name__}; expected a torch.nn.Module")
    conversion = Conversion()
    for path, layer, known, reason in list(_candidates(model)):
        original = _named(type(layer))
        try:
            if reason is not None:
                raise _Unfit(reason)
            changes = known.changes(layer)
            if any("forward" in vars(part) for part, _, _ in changes):
                raise _Unfit("its forward is replaced by one of the instance")
        except _Unfit as unfit:
            conversion.left.append(Layer(path, original, str(unfit)))
            continue
        conversion._undo += [_changed(*change) for change in changes]
        conversion.replaced.append(Layer(path, original, _named(changes[0][1])))
    return conversion

"""Conversion of models to trigraph's operators: `convert` replaces the classes of supported layers in place."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import Module, Parameter, ParameterDict
from torch.nn.parameter import UninitializedParameter

from trigraph.table.former_names import keep_former_names
from trigraph.torch import nn
from trigraph.torch.layers.activations import SiLU, silu
from trigraph.torch.layers.arguments import BOUNDS, has_hooks
from trigraph.torch.layers.gemnet import MatterGenBilinear, PairInteraction
from trigraph.torch.potentials import dimenet


class ExaminedLayer(NamedTuple):
    """Layer that `convert` examined.

    Attributes
    ----------
    path : str
        Name of the layer in ``model.named_modules()``; "" is the model itself.
    original : str
        Qualified name of the layer's class before conversion.
    note : str
        Qualified name of the class after conversion, or the reason why the layer was not converted.
    """

    path: str
    original: str
    note: str


@keep_former_names(left="skipped")
@dataclass
class Conversion:
    """Result of `convert`, which prints as a table.

    Attributes
    ----------
    replaced : list of ExaminedLayer
        Layers that now use trigraph's operators.
    skipped : list of ExaminedLayer
        Supported layers that were not converted; `note` states why.
    """

    replaced: list[ExaminedLayer] = field(default_factory=list)
    skipped: list[ExaminedLayer] = field(default_factory=list)
    _undo: list[tuple[Module, type[Module], Callable[[], None]]] = field(default_factory=list, repr=False)

    def revert(self) -> None:
        """Restore the original class of every layer; parameters keep their current values.

        Raises
        ------
        RuntimeError
            If a layer's class has changed since the conversion, for example by a parametrization. No layer is restored.
        """
        for layer, cls, _ in self._undo:
            if type(layer) is not cls:
                raise RuntimeError(
                    f"Conversion.revert: a layer is a {_name_class(type(layer))}; expected {_name_class(cls)}, the "
                    "class that convert assigned: remove parametrizations first"
                )
        while self._undo:
            self._undo.pop()[2]()

    def __str__(self) -> str:
        rows = [("layer", "original", "new class, or why not converted")]
        rows += [(layer.path or "(the model)", layer.original, layer.note) for layer in self.replaced + self.skipped]
        first, second = (max(len(row[k]) for row in rows) for k in range(2))
        return "\n".join(f"{path:{first}}  {original:{second}}  {note}" for path, original, note in rows)


class _UnsupportedLayer(Exception):
    """Signals that a layer cannot be converted; the message is the reason."""


# (layer, new class, new attributes) for a layer and its sublayers, determined before any of them changes.
_Changes = list[tuple[Module, type[Module], dict[str, Any]]]


FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)


def _check_submodules(layer: Module, kinds: Iterable[type[Module]], unchecked: tuple[str, ...] = ()) -> None:
    """Raise if a submodule has hooks or its class is not in `kinds`, or if any instance overrides a method.

    Attributes and submodules named in `unchecked` are not checked. Hooks on `layer` itself are allowed.
    """
    for path, part in layer.named_modules():
        if not set(path.split(".")).isdisjoint(unchecked):
            continue
        if part is not layer and type(part) not in kinds:
            raise _UnsupportedLayer(f"its {path} is a {_name_class(type(part))}, which its constructor does not create")
        if part is not layer and has_hooks(part):
            raise _UnsupportedLayer(f"its {path} has hooks")
        for name, value in vars(part).items():
            if name not in unchecked and (callable(value) or callable(getattr(type(part), name, None))):
                raise _UnsupportedLayer(f"its {f'{path}.{name}'.strip('.')} is replaced on the instance")


def _check_parameters(
    layer: Module, make_reference: Callable[[], Module], dtypes: Iterable[torch.dtype] = FLOATS
) -> None:
    """Raise unless all parameters are plain, share a dtype, and match ``make_reference()`` in names and shapes."""
    parameters = dict(layer.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if type(parameter) not in (Parameter, UninitializedParameter):
            raise _UnsupportedLayer(f"its {name} is a {_name_class(type(parameter))}; expected a torch.nn.Parameter")
        if parameter.dtype not in dtypes or parameter.dtype != next(iter(parameters.values())).dtype:
            raise _UnsupportedLayer(
                f"its {name} has dtype {parameter.dtype}; expected all of {' or of '.join(map(str, dtypes))}"
            )
    try:
        with torch.device("meta"):  # on the meta device, parameters are neither allocated nor initialized
            reference = dict(make_reference().named_parameters(remove_duplicate=False))
    except (TypeError, ValueError) as error:
        raise _UnsupportedLayer(str(error)) from None
    if parameters.keys() != reference.keys():
        raise _UnsupportedLayer(f"it has parameters {', '.join(parameters)}; expected {', '.join(reference)}")
    for name, expected in reference.items():
        lazy = any(isinstance(p, UninitializedParameter) for p in (expected, parameters[name]))
        if not lazy and parameters[name].shape != expected.shape:
            raise _UnsupportedLayer(
                f"its {name} has shape {tuple(parameters[name].shape)}; expected {tuple(expected.shape)}"
            )


def _plan_gat(layer: Any) -> _Changes:
    from torch_geometric.nn import Linear
    from torch_geometric.nn.aggr import SumAggregation

    from trigraph.torch import pyg

    if reason := pyg.why_not(layer):
        raise _UnsupportedLayer(reason)
    _check_submodules(layer, (Linear, torch.nn.Linear, SumAggregation))
    arguments = {name: getattr(layer, name) for name in inspect.signature(nn.GATConv).parameters if name != "bias"}
    _check_parameters(layer, lambda: nn.GATConv(**arguments, bias=layer.bias is not None), (*FLOATS, *HALVES))
    return [(layer, pyg.GATConv, {})]


def _require_within_bounds(name: str, value: int) -> int:
    low, *high = BOUNDS[name]
    if value < low or value > max(high, default=value):
        raise _UnsupportedLayer(f"{name} is {value}; trigraph supports {' to '.join(map(str, (low, *high)))}")
    return value


class _Unused(Module):
    """Class of PyTorch Geometric's spherical basis in a converted DimeNet++, which never calls it.

    Copies and pickles omit the basis functions, because functions generated by sympy cannot be pickled.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("sph_funcs", "bessel_funcs")}


def _list_allowed_classes(model: Module) -> tuple[type[Module], ...]:
    """Return the classes from the file that defines a model, and the torch.nn classes that the model uses."""
    name = type(model).__module__
    beside = [c for c in vars(sys.modules[name]).values() if isinstance(c, type) and c.__module__ == name]
    return (*beside, torch.nn.Linear, torch.nn.Embedding, torch.nn.ModuleList)


def _build_dimenet(model: Any, sizes: dict[str, int], exponent: int) -> Module:
    """Return a trigraph DimeNet++ with the sizes of `model`, a PyTorch Geometric DimeNet++."""
    output, blocks = model.output_blocks[0], model.interaction_blocks
    first = blocks[0] if len(blocks) else None
    return dimenet.DimeNetPlusPlus(
        model.emb.lin.out_features,
        output.lin.out_features,
        len(blocks),
        first.lin_down.out_features if first else 1,
        first.lin_rbf1.out_features if first else 1,
        output.lin_up.out_features,
        sizes["num_spherical"],
        sizes["num_radial"],
        model.cutoff,
        max_num_neighbors=model.max_num_neighbors,
        envelope_exponent=exponent,
        num_before_skip=len(first.layers_before_skip) if first else 0,
        num_after_skip=len(first.layers_after_skip) if first else 0,
        num_output_layers=len(output.lins),
    )


def _plan_dimenet(model: Any) -> _Changes:
    sizes = {
        "num_spherical": _require_within_bounds("num_spherical", model.sbf.num_spherical),
        "num_radial": _require_within_bounds("num_radial", model.sbf.num_radial),
    }
    exponent = _require_within_bounds("envelope_exponent", model.rbf.envelope.p - 1)

    def plan_activation_change(block: Any) -> dict[str, Any]:
        """Replace a SiLU by trigraph's, whose second derivatives are faster; keep any other activation."""
        if type(block.act) is torch.nn.SiLU:
            return {"act": SiLU()}
        return {"act": silu} if getattr(block.act, "__name__", "") == "swish" else {}

    radial = {"num_spherical": sizes["num_spherical"], "envelope_exponent": exponent}
    _check_submodules(model, _list_allowed_classes(model), ("act",))
    _check_parameters(model, lambda: _build_dimenet(model, sizes, exponent))
    for name, values in {
        "cutoff": (model.cutoff, model.rbf.cutoff, model.sbf.cutoff),
        "envelope_exponent": (exponent, model.sbf.envelope.p - 1),
        "num_radial": (sizes["num_radial"], model.sbf.num_radial),
    }.items():
        if len(set(values)) > 1:
            raise _UnsupportedLayer(f"{name} is {' and '.join(map(str, values))} in its parts; expected one number")
    changes: _Changes = [
        (model, dimenet.DimeNetPlusPlus, {"out_channels": model.output_blocks[0].lin.out_features}),
        (model.rbf, dimenet.RadialBasis, radial),
        (model.sbf, _Unused, {}),
        (model.emb, dimenet.EmbeddingBlock, plan_activation_change(model.emb)),
    ]
    for block in model.output_blocks:
        changes.append((block, dimenet.OutputBlock, plan_activation_change(block)))
    for block in model.interaction_blocks:
        changes.append((block, dimenet.InteractionBlock, {**sizes, "exclude": "edge", **plan_activation_change(block)}))
        for residual in (*block.layers_before_skip, *block.layers_after_skip):
            changes.append((residual, dimenet.ResidualBlock, plan_activation_change(residual)))
    return changes


def _check_gemnet_layer(layer: Any, cls: type[Module], called: tuple[str, ...] = ()) -> None:
    """Raise unless a layer's `forward` has the parameters of `cls`, and its submodules are as constructed.

    Only the weight of the submodule `bilinear` is used, a Dense layer without activation. `called` submodules are kept.
    """
    original_names, own_names = (list(inspect.signature(c.forward).parameters)[1:] for c in (type(layer), cls))
    if original_names != own_names:  # as in fairchem's gemnet_gp
        raise _UnsupportedLayer(f"its forward takes {', '.join(original_names)}; expected {', '.join(own_names)}")
    kinds: list[type[Module]] = []
    if hasattr(layer, "bilinear"):
        dense, package = type(layer.bilinear), type(layer).__module__.partition(".")[0]
        if dense.__name__ != "Dense" or dense.__module__.partition(".")[0] != package:
            raise _UnsupportedLayer(f"its bilinear is a {_name_class(dense)}; expected the Dense of {package}")
        kinds = [dense, torch.nn.Linear, torch.nn.Identity]
    _check_submodules(layer, kinds, called)


def _plan_basis_embedding(layer: Any) -> _Changes:
    _check_gemnet_layer(layer, nn.BasisEmbedding)
    interm = layer.weight.numel() // (layer.num_radial * (layer.num_spherical or 1))
    _check_parameters(layer, lambda: nn.BasisEmbedding(layer.num_radial, interm, layer.num_spherical))
    return [(layer, nn.BasisEmbedding, {"padded": True})]


def _plan_bilinear(layer: Any) -> _Changes:
    if hasattr(layer, "units_out"):
        _check_gemnet_layer(layer, MatterGenBilinear)
        sizes = layer.emb_size, layer.emb_size_interm, layer.units_out
        _check_parameters(layer, lambda: ParameterDict({"weight": torch.empty(sizes)}))
        return [(layer, MatterGenBilinear, {})]
    _check_gemnet_layer(layer, nn.EfficientInteractionBilinear)
    sizes = layer.emb_size_in, layer.emb_size_interm, layer.emb_size_out
    _check_parameters(layer, lambda: nn.EfficientInteractionBilinear(*sizes))
    return [(layer, nn.EfficientInteractionBilinear, {})]


def _plan_pair_interaction(layer: Any) -> _Changes:
    _check_gemnet_layer(layer, PairInteraction, ("down_projection", "scale_rbf_sum", "up_projection"))
    emb_in, (emb_out, terms) = layer.down_projection.linear.out_features, layer.bilinear.linear.weight.shape
    sizes = emb_in, terms // emb_in, emb_out
    _check_parameters(layer.bilinear, lambda: nn.EfficientInteractionBilinear(*sizes).bilinear)
    return [(layer, PairInteraction, {})]


# Top-level packages that define a supported class, and the function that lists the changes needed for a layer.
_KNOWN: dict[str, tuple[tuple[str, ...], Callable[[Any], _Changes]]] = {
    "GATConv": (("torch_geometric",), _plan_gat),
    "DimeNetPlusPlus": (("torch_geometric",), _plan_dimenet),
    "BasisEmbedding": (("fairchem", "ocpmodels"), _plan_basis_embedding),
    "EfficientInteractionBilinear": (("fairchem", "ocpmodels", "mattergen"), _plan_bilinear),
    "PairInteraction": (("fairchem", "ocpmodels"), _plan_pair_interaction),
}


def _name_class(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _yield_candidate_layers(model: Module) -> Iterator[tuple[str, Module, Callable[[Any], _Changes], str | None]]:
    """Yield (path, layer, its function in `_KNOWN`, None or a reason not to convert) for layers of these classes."""
    for path, layer in model.named_modules():
        for cls in type(layer).__mro__:
            name = cls.__name__
            if name not in _KNOWN or cls.__module__.partition(".")[0] not in _KNOWN[name][0]:
                continue
            if type(layer).__module__.partition(".")[0] == "trigraph":
                break  # this layer has already been converted
            reason = None if cls is type(layer) else f"it is derived from {name} and may change its methods"
            yield path, layer, _KNOWN[name][1], reason
            break


def _replace_class(
    layer: Module, cls: type[Module], attributes: dict[str, Any]
) -> tuple[Module, type[Module], Callable[[], None]]:
    """Set the class and attributes of a layer; return the layer, the class and a function that undoes the change."""
    original = type(layer)
    before = {name: getattr(layer, name) for name in attributes if hasattr(layer, name)}
    layer.__class__ = cls
    for name, value in attributes.items():
        setattr(layer, name, value.train(layer.training) if isinstance(value, Module) else value)

    def restore_class() -> None:
        for name in attributes:
            delattr(layer, name)
        for name, value in before.items():
            setattr(layer, name, value)
        layer.__class__ = original

    return layer, cls, restore_class


def convert(model: Module) -> Conversion:
    """Convert the supported layers of a model to trigraph's operators.

    Only the classes of layers change. Parameters, hooks, devices, dtypes and training flags stay the same, and
    references to layers, optimizers and checkpoints remain valid.

    A layer is converted only if its methods, submodules and parameters are exactly as its constructor creates them, and
    its sublayers have no hooks. Hooks on the layer itself are kept.

    Supported layers: ``GATConv`` and ``DimeNetPlusPlus`` of PyTorch Geometric; ``BasisEmbedding`` and
    ``PairInteraction`` of fairchem-core 1.10; ``EfficientInteractionBilinear`` of GemNet-OC, GemNet-dT and MatterGen.

    Parameters
    ----------
    model : torch.nn.Module
        Model to modify in place, which may itself be a supported layer.

    Returns
    -------
    Conversion
        Lists of converted and skipped layers. `revert` undoes the conversion.

    Raises
    ------
    TypeError
        If `model` is not a module.

    Notes
    -----
    A converted DimeNet++ needs neither pyg-lib nor torch_sparse. If an atom has more than `max_num_neighbors`
    neighbours, the converted model uses the nearest ones, whereas PyTorch Geometric uses the first ones found.

    Examples
    --------
    >>> import torch, torch_geometric.nn
    >>> from trigraph.torch import convert
    >>> model = torch.nn.ModuleList([torch_geometric.nn.GATConv(4, 2)])
    >>> conversion = convert(model)
    >>> conversion.replaced[0].note
    'trigraph.torch.pyg.GATConv'
    >>> conversion.revert()
    """
    if not isinstance(model, Module):
        raise TypeError(f"convert: model is a {type(model).__name__}; expected a torch.nn.Module")
    conversion = Conversion()
    for path, layer, list_changes, reason in list(_yield_candidate_layers(model)):
        original = _name_class(type(layer))
        try:
            if reason is not None:
                raise _UnsupportedLayer(reason)
            changes = list_changes(layer)
        except _UnsupportedLayer as unfit:
            conversion.skipped.append(ExaminedLayer(path, original, str(unfit)))
            continue
        except AttributeError as error:
            conversion.skipped.append(ExaminedLayer(path, original, f"it is not as its constructor makes it: {error}"))
            continue
        conversion._undo += [_replace_class(*change) for change in changes]
        conversion.replaced.append(ExaminedLayer(path, original, _name_class(changes[0][1])))
    return conversion

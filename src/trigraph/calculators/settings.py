"""Checks of a calculator's model, and the settings on which its cached results depend."""

from typing import Any

from trigraph.arrays import real_number
from trigraph.torch.potentials.replacement import Replacement
from trigraph.torch.potentials.structures import empty_like_model


def settings(model: Any) -> tuple[Any, ...]:
    """Return everything, except atoms and tensor values, that the model's results and neighbours depend on."""
    like, potential = empty_like_model(model), model.model if isinstance(model, Replacement) else model
    sizes = (getattr(potential, name, None) for name in ("cutoff", "max_num_neighbors"))
    plain = (getattr(size, "tolist", lambda size=size: size)() for size in sizes)
    # The tuple keeps the models alive, because the id of a deleted model may be reused.
    return (model, potential, potential.training, like.dtype, like.device, *plain)


def check_skin(owner: str, model: Any, skin: Any) -> float:
    """Return a skin as a float; raise TypeError or ValueError unless it is a number >= 0 that the model supports."""
    number = real_number(owner, "skin", skin)
    if skin and not hasattr(model, "neighbors"):
        raise TypeError(f"{owner}: skin is {skin} and {type(model).__name__} has no neighbors; expected skin=0")
    return number

"""What calculators check and compare of their models."""

from typing import Any

from trigraph.arrays import real_number
from trigraph.torch.potentials.replacement import Replacement
from trigraph.torch.potentials.structures import empty_like_model


def settings(model: Any) -> tuple[Any, ...]:
    """Return what results and neighbours of a model depend on beside atoms and values of tensors, to be compared."""
    like, potential = empty_like_model(model), model.model if isinstance(model, Replacement) else model
    sizes = (getattr(potential, name, None) for name in ("cutoff", "max_num_neighbors"))
    plain = (getattr(size, "tolist", lambda size=size: size)() for size in sizes)
    # The models themselves, for as long as something is kept: the address of one that is gone may be another's.
    return (model, potential, potential.training, like.dtype, like.device, *plain)


def check_skin(owner: str, model: Any, skin: Any) -> float:
    """Return a skin as a float; raise TypeError or ValueError unless it is a number >= 0 that the model takes."""
    number = real_number(owner, "skin", skin)
    if skin and not hasattr(model, "neighbors"):
        raise TypeError(f"{owner}: skin is {skin} and {type(model).__name__} has no neighbors; expected skin=0")
    return number

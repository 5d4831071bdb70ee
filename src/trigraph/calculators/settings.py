"""Checks of a calculator's model, the settings on which its cached results depend, and cached neighbours."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, equal

from trigraph.arrays import require_nonnegative_number
from trigraph.torch.potentials.replacement import PotentialReplacement
from trigraph.torch.potentials.structures import make_empty_model_tensor


def get_original_model(model: Any) -> Any:
    """Return the original potential if the model is a compiled or captured one."""
    return model.model if isinstance(model, PotentialReplacement) else model


def list_model_settings(model: Any) -> tuple[Any, ...]:
    """Return everything, except atoms and tensor values, that the model's results and neighbours depend on."""
    like, potential = make_empty_model_tensor(model), get_original_model(model)
    sizes = (getattr(potential, name, None) for name in ("cutoff", "max_num_neighbors"))
    plain = (getattr(size, "tolist", lambda size=size: size)() for size in sizes)
    # The tuple keeps the models alive, because the id of a deleted model may be reused.
    return (model, potential, potential.training, like.dtype, like.device, *plain)


def require_skin(owner: str, model: Any, skin: Any) -> float:
    """Return a skin as a float; raise TypeError or ValueError unless it is a number >= 0 that the model supports."""
    number = require_nonnegative_number(owner, "skin", skin)
    if skin and not hasattr(model, "neighbors"):
        raise TypeError(f"{owner}: skin is {skin} and {type(model).__name__} has no neighbors; expected skin=0")
    return number


class NeighborCache:
    """Neighbours that are reused until an atom has moved by half the skin, or anything else has changed."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] | None = None  # key, tensors and positions of the last search, and its result

    def find_or_search(
        self, positions: Any, skin: float, key: Any, search: Callable[[], Any], tensors: Sequence[Any] = ()
    ) -> Any:
        """Return the last neighbours, or the result of `search` if the key, a tensor or the positions have changed."""
        if self._last is not None:
            last_key, last_tensors, last_positions, neighbors = self._last
            if (
                key == last_key
                and positions.shape == last_positions.shape
                and all(map(_is_equal_tensor, tensors, last_tensors))
            ):
                moves = positions - last_positions
                lengths = moves.norm(dim=1) if isinstance(moves, Tensor) else np.linalg.norm(moves, axis=1)
                if bool((lengths <= skin / 2).all()):
                    return neighbors
        neighbors = search()
        self._last = key, [t.detach().clone() for t in tensors], _copy(positions), neighbors
        return neighbors


def _is_equal_tensor(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.device == tensor.device and equal(value, tensor)


def _copy(array: Any) -> Any:
    return array.detach().clone() if isinstance(array, Tensor) else array.copy()

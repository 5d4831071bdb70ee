"""Functions that choose between several operators by their arguments: GemNet-OC's basis embedding at each order.

A `weight` of rank 2 selects the purely radial layer; a `weight` of rank 3 has a spherical part. If
`sph_basis` and `triplets` are given, the spherical part is multiplied by the basis of each triplet.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trigraph.backends.front_door import FUNCTIONS
from trigraph.checks.attributes import bind_arguments, list_requested_names
from trigraph.table.grammar import Operator
from trigraph.table.operators import OVER_FORMS, result_type
from trigraph.table.public import docstring, public_signature, set_function_metadata


def make_basis_embedding_function(
    op: Operator, functions: Mapping[str, Callable[..., Any]], module: str, name: str, doc: str
) -> Callable[..., Any]:
    """Return the function `name` of `module`, which takes the arguments of `op` and calls one of `functions`."""
    signature, fields = public_signature(op), tuple(f.name for f in op.fields)
    prefix, suffix = f"{op.definition.name}_", name.removeprefix(op.definition.name)

    def call_matching_operator(*args: Any, out: Any = None, backend: Any = None, **kwargs: Any) -> Any:
        values = bind_arguments(op, args, kwargs, signature)
        sph_basis, triplets = values["sph_basis"], values["triplets"]
        if (sph_basis is None) != (triplets is None):
            missing, present = ("triplets", "sph_basis") if triplets is None else ("sph_basis", "triplets")
            raise TypeError(f"{name}: {missing} is None, but {present} is given; expected both or neither")
        if sph_basis is not None:
            return functions[f"{prefix}triplets{suffix}"](**values, out=out, backend=backend)
        if values.pop("gg_sph_basis", None) is not None:
            raise ValueError(f"{name}: gg_sph_basis is given, but sph_basis is None; expected None")
        del values["sph_basis"], values["triplets"]
        if op.accepts_wrt:
            requested = fields if values["wrt"] is None else list_requested_names(name, fields, values["wrt"])
            values["wrt"] = [field for field in requested if field != "sph_basis"]
        form = "radial" if getattr(values["weight"], "ndim", 3) == 2 else "spherical"
        result = functions[f"{prefix}{form}{suffix}"](**values, out=out, backend=backend)
        return result if op.returns_array else result_type(op.name)(*(getattr(result, field, None) for field in fields))

    set_function_metadata(call_matching_operator, module, name, signature, doc)
    return call_matching_operator


basis_embedding_fwd, basis_embedding_bwd, basis_embedding_bwd2 = (
    make_basis_embedding_function(op, FUNCTIONS, "trigraph", op.name, docstring(op)) for op in OVER_FORMS.values()
)

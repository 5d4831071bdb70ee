"""Deprecated names of public methods and attributes, and their present names, by class."""

import pytest

FORMER_NAMES = {
    "CSC": {"renumbered": "renumber_nodes"},
    "Capacity": {"grown": "grow", "of": "from_neighbors", "rows": "padded_sizes"},
    "Conversion": {"left": "unconverted"},
    "DividedNeighbors": {"of_ends": "add_ends"},
    "EdgeGraph": {"left_out": "excluded_in_edges", "sorted": "from_unsorted"},
    "GraphTensors": {"of": "from_graph"},
    "Halo": {"received": "num_received_rows"},
    "Neighbors": {"copies": "repeat_structures", "of_ends": "add_ends"},
    "Partition": {
        "everything": "full_layout",
        "nothing": "empty_subgraph",
        "outputs": "output_layout",
        "rows": "get_row_partition",
    },
    "PairPotential": {
        "differentiated": "compute_energy_and_derivatives",
        "differentiated_along": "compute_hessian_product",
        "make_hessian_product": "make_hessian_multiplier",
        "prepare": "prepare_neighbors_and_cells",
        "sum_outputs": "sum_outputs_by_structure",
        "summed": "sum_outputs_by_structure",
    },
    "Result": {"encoded": "encode", "fill": "run_checks"},
}


def check_former_names(holder):
    """Check that each former name of a class or object warns once, of the caller, and returns the present attribute."""
    owner = getattr(holder, "__name__", type(holder).__name__)
    for old, new in FORMER_NAMES[owner].items():
        with pytest.warns(DeprecationWarning, match=rf"^{owner}\.{old} is deprecated; use {owner}\.{new}$") as warned:
            value = getattr(holder, old)
        assert [warning.filename for warning in warned] == [__file__]
        assert value == getattr(holder, new)

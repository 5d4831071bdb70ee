"""Tests of changes to a model after which a compiled potential makes a new program, by itself or after `recompile`."""

import array
import contextvars
import copy
import functools
import logging
import math
from collections import deque

import numpy as np
import pytest
import torch
from compiled_programs import compiled_whole
from test_torch_compiled import (
    NeuralSprings,
    Springs,
    assert_close,
    draw_structure_tensors,
    make_batch_norm,
    make_potential,
)

import trigraph.torch as tt
from trigraph.torch.potentials.program_key import ProgramKey, find_differences

pytestmark = compiled_whole


COMPARED_CHANGES = {
    "attribute": lambda model: setattr(model, "scale", 2.0),
    "removed": lambda model: delattr(model, "scale"),
    "type": lambda model: setattr(model, "scale", True),
    "sign of zero": lambda model: setattr(model, "scale", -0.0),
    "list": lambda model: model.held["list"].append(1.0),
    "nested": lambda model: model.held["dict"].update(factor=0.5),
    "set": lambda model: model.held["set"].add(2),
    "another attribute": lambda model: setattr(model, "more", torch.tanh),
    "cutoff": lambda model: setattr(model, "cutoff", 2.5),
    "cutoff of the class": lambda model: setattr(type(model), "max_num_neighbors", 2),
    "hook": lambda model: model.first.register_forward_hook(lambda module, inputs, out: 2.0 * out),
    "method of an object": lambda model: setattr(model, "check_numbers", lambda z: None),
    "class": lambda model: setattr(model, "__class__", type("Other", (type(model),), {})),
    "dictionary": lambda model: setattr(model, "__dict__", {**vars(model), "scale": 2.0}),
    "mode": lambda model: model.inner.eval(),
    "modes": lambda model: model.eval(),
    "frozen": lambda model: model.first.requires_grad_(False),
    "strides": lambda model: setattr(model.last.weight, "data", model.last.weight.data.repeat(1, 2)[:, ::2]),
    "parametrized": lambda model: torch.nn.utils.parametrizations.weight_norm(model.first),
    "parameter": lambda model: setattr(model.last, "bias", None),
    "shared": lambda model: setattr(model, "again", model.first),
    "module": lambda model: setattr(model, "inner", torch.nn.Tanh()),
    "buffer": lambda model: model.inner.register_buffer("none", torch.zeros(1)),
}
NO_NEW_PROGRAM = {
    "attribute again": lambda model: setattr(model, "scale", float("1.0")),
    "list again": lambda model: model.held.update(list=[1.0]),
    "set again": lambda model: model.held.update(set={8, 0}),  # the same set in another order
    "values": lambda model: model.first.load_state_dict({n: -2 * t for n, t in model.first.state_dict().items()}),
    "another parameter": lambda model: setattr(model.last, "bias", torch.nn.Parameter(model.last.bias.detach() + 1.0)),
}


@pytest.mark.parametrize("name", [*COMPARED_CHANGES, *NO_NEW_PROGRAM])
def test_keys_differ_after_changes(name):
    """Keys differ after changes that are compared, but not after new parameter values or equal attributes."""
    model = type("Changed", (NeuralSprings,), {})(make_batch_norm())
    model.scale = {"sign of zero": 0.0, "type": 1}.get(name, 1.0)
    before = ProgramKey(model)
    assert before.is_unchanged(model)
    (COMPARED_CHANGES | NO_NEW_PROGRAM)[name](model)
    after = ProgramKey(model)
    assert bool(find_differences(before.values, after.values)) == (name in COMPARED_CHANGES)
    assert (before.values == after.values) == (name not in COMPARED_CHANGES)
    assert before.is_unchanged(model) == (name == "values")
    assert after.is_unchanged(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:CompiledPotential. compiles a program for the same kind of call once more")
def test_compared_changes_take_effect_in_next_call():
    model = type("Changed", (NeuralSprings,), {})(make_batch_norm())
    compiled, number = tt.compile_potential(model, backend="eager"), 0
    for name in ("none", "values", "nested", "hook", "cutoff of the class", "mode", "another parameter"):
        (COMPARED_CHANGES | NO_NEW_PROGRAM).get(name, lambda model: None)(model)
        expected, got = (
            one.energy_forces_stress(*draw_structure_tensors((5, 6))) for one in (copy.deepcopy(model), compiled)
        )
        for one in ("energy", "forces", "energies"):
            assert_close(getattr(got, one), getattr(expected, one))
        number += name not in NO_NEW_PROGRAM
        assert len(compiled.programs) == number, name


class SlottedFactorHolder:
    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 1.0


class SlottedFactorHolderWithDict(SlottedFactorHolder):
    """An object with slots and a `__dict__`."""


def make_factor_closure(factors):
    return torch.no_grad()(lambda: factors["factor"])


def read_factor(factors={"factor": 1.0}):  # noqa: B006
    return factors["factor"]


ENCLOSED, GLOBAL, CONTEXT = {"factor": 1.0}, {"factor": 1.0}, contextvars.ContextVar("factor", default=1.0)


class FactorReadingSprings(Springs):
    """A model that reads factors from attributes, containers, functions, globals and a context variable."""

    def __init__(self):
        super().__init__()
        self.config = type("Config", (), {"factor": 1.0})
        self.object, self.slots, self.members = (
            SlottedFactorHolderWithDict(),
            SlottedFactorHolder(),
            {SlottedFactorHolder()},
        )
        self.deque, self.array, self.numbers = deque([1.0]), array.array("d", [1.0]), np.ones(1)
        self.constant, self.function, self.enclosing = torch.ones(1), read_factor, make_factor_closure(ENCLOSED)
        self.partial = functools.partial(read_factor, {"factor": 1.0})

    @torch.enable_grad()
    def read_factors(self):
        (member,) = self.members
        of_objects = self.config.factor, self.object.factor, self.slots.factor, member.factor
        of_containers = self.deque[0], self.array[0], float(self.numbers[0]), self.constant.item()
        return *of_objects, *of_containers, self.function(), self.enclosing(), self.partial(), GLOBAL["factor"]

    def read_context_factor(self):
        return CONTEXT.get()

    def atoms_of_vectors(self, *arguments):
        return math.prod(self.read_factors()) * self.read_context_factor() * super().atoms_of_vectors(*arguments)


NOT_COMPARED = {
    "config": lambda model: setattr(model.config, "factor", 2.0),
    "object": lambda model: setattr(model.object, "factor", 2.0),
    "slots": lambda model: setattr(model.slots, "factor", 2.0),
    "members": lambda model: setattr(next(iter(model.members)), "factor", 2.0),
    "deque": lambda model: model.deque.__setitem__(0, 2.0),
    "array": lambda model: model.array.__setitem__(0, 2.0),
    "numbers": lambda model: model.numbers.fill(2.0),
    "constant": lambda model: model.constant.fill_(2.0),
    "enclosing": lambda model: ENCLOSED.update(factor=2.0),
    "partial": lambda model: model.partial.args[0].update(factor=2.0),
    "mutable default": lambda model: read_factor.__defaults__[0].update(factor=2.0),
    "global": lambda model: GLOBAL.update(factor=2.0),
    "context": lambda model: CONTEXT.set(2.0),
    "method": lambda model: setattr(type(model), "read_context_factor", lambda self: 2.0 * CONTEXT.get()),
}


def test_recompile_applies_uncompared_changes(caplog):
    model = type("Reading", (FactorReadingSprings,), {})()
    compiled, (z, pos, batch) = tt.compile_potential(model, backend="eager"), draw_structure_tensors((5, 6))
    first = compiled.energy_forces_stress(z, pos, batch).energy
    (told,) = [r.getMessage() for r in caplog.records if r.name == "trigraph" and r.levelno == logging.WARNING]
    named = told.partition(" inside ")[2].partition(";")[0].split(", ")
    assert sorted(named) == sorted(set(NOT_COMPARED) - {"mutable default", "global", "context", "method"})

    def apply_changes_and_recompile():
        for change in NOT_COMPARED.values():
            change(model)
        assert_close(compiled.energy_forces_stress(z, pos, batch).energy, first)
        compiled.recompile()
        assert compiled.programs == []
        assert_close(compiled.energy_forces_stress(z, pos, batch).energy, 2.0 ** len(NOT_COMPARED) * first)
        assert compiled.compilations == 2

    try:
        contextvars.copy_context().run(apply_changes_and_recompile)
    finally:
        ENCLOSED["factor"] = GLOBAL["factor"] = read_factor.__defaults__[0]["factor"] = 1.0
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1  # the warning is logged once


def test_models_of_trigraph_are_compared_in_full():
    assert ProgramKey(make_potential(act="silu")).not_compared == []
    assert ProgramKey(make_potential(act=torch.nn.Tanh())).not_compared == []

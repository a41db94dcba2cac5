"""Paths of modules and parameters, of models given and models learnt."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import ConfigError
from aten_dump.capture.step.module_paths import ModulePaths, _Parameter


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))


def in_a_step(model: Any = None) -> ModulePaths:
    paths = ModulePaths(model)
    paths.refresh()
    return paths


def test_paths_of_the_model_are_those_of_named_modules() -> None:
    one = model()
    paths = in_a_step(one)
    assert {paths.path(module) for module in one.modules()} == {"", "0", "1", "1.0"}
    assert paths.path(one[1][0]) == "1.0"
    found = paths.parameter(id(one[0].weight))
    assert found is not None and found[0] == "0.weight" and found[1] is one[0].weight
    assert paths.parameter(id(one)) is None


def test_several_models_are_under_their_names() -> None:
    actor, critic = model(), model()
    paths = in_a_step({"actor": actor, "critic": critic})
    assert (paths.path(actor), paths.path(critic[1][0])) == ("actor", "critic.1.0")
    found = paths.parameter(id(critic[0].bias))
    assert found is not None and found[0] == "critic.0.bias"


def test_a_model_learnt_first_is_plain_and_later_ones_have_their_class_in_front() -> None:
    first, second, third = model(), model(), nn.Linear(1, 1)
    paths = in_a_step()
    assert [paths.path(m) for m in (first, second, third)] == ["", "Sequential", "Linear"]
    assert (paths.path(first[0]), paths.path(second[1][0])) == ("0", "Sequential.1.0")


def test_a_shared_parameter_and_a_shared_module_keep_their_first_names() -> None:
    layer = nn.Linear(2, 2)
    tied = nn.Linear(2, 2)
    tied.weight = layer.weight
    paths = in_a_step(nn.ModuleDict({"a": layer, "b": layer, "c": tied}))
    assert paths.path(layer) == "a"
    found = paths.parameter(id(tied.weight))
    assert found is not None and found[0] == "a.weight"


def test_modules_added_or_replaced_are_known_after_a_refresh() -> None:
    one = model()
    paths = in_a_step({"net": one})
    one.append(nn.Linear(3, 1))
    one[0].weight = nn.Parameter(one[0].weight.detach().clone())
    assert paths.parameter(id(one[0].weight)) is None
    paths.refresh()
    assert paths.path(one[2]) == "net.2"
    found = paths.parameter(id(one[0].weight))
    assert found is not None and found[0] == "net.0.weight"


def test_parts_of_a_model_that_is_gone_keep_their_paths() -> None:
    """As with ``DumpMode(config, model=nn.ModuleDict({"actor": actor, "critic": critic}))``."""
    actor, critic = model(), nn.Linear(2, 1)
    paths = in_a_step(nn.ModuleDict({"actor": actor, "critic": critic}))
    gc.collect()
    for _ in range(2):
        paths.refresh()
        assert (paths.path(actor[0]), paths.path(critic)) == ("actor.0", "critic")
        found = paths.parameter(id(critic.weight))
        assert found is not None and found[0] == "critic.weight"
    assert paths.path(nn.Linear(1, 1)) == "Linear", "what is learnt then cannot meet them"
    gone = weakref.ref(critic)
    del critic, found
    gc.collect()
    paths.refresh()
    assert gone() is None and paths.path(actor) == "actor"


def test_no_model_is_held_alive_and_no_id_used_again_is_mistaken() -> None:
    one = model()
    paths = in_a_step(one)
    gone, number = weakref.ref(one), id(one[0].weight)
    del one
    gc.collect()
    assert gone() is None
    assert paths.parameter(number) is None


def test_a_new_model_that_lies_where_one_lay_that_is_gone_has_its_own_paths() -> None:
    paths, gone = in_a_step(), weakref.ref(nn.Linear(1, 1))
    lost = weakref.ref(nn.Parameter(torch.ones(1)))
    assert gone() is None and lost() is None
    other = nn.Linear(1, 1)
    paths._modules[id(other)] = (gone, "of another", gone)
    assert paths._parameters is not None
    paths._parameters[id(other.weight)] = _Parameter(lost, "of another", False)
    assert paths.path(other) == ""
    found = paths.parameter(id(other.weight))
    assert found is not None and found[0] == "weight"


def test_no_parameter_of_plain_tensors_is_a_shard() -> None:
    assert in_a_step(model()).sharded() == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (3, "the int 3 as"),
        ("model", "the str 'model' as"),
        (nn.Linear, "the type <class"),
        ([model(), None], "the NoneType None as"),
        ({"a": "b"}, "the str 'b' as"),
        ({1: nn.ReLU()}, "the name 1 of"),
        (torch.ones(2), "the Tensor tensor"),
    ],
)
def test_what_is_no_model_is_named(given: Any, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModulePaths(given)
    assert found in str(caught.value) and "allowed: an nn.Module" in str(caught.value)


def test_no_parameter_is_referred_to_but_in_a_step() -> None:
    one = model()
    weight = one[0].weight
    paths = ModulePaths(one)
    assert not weakref.getweakrefs(weight) and paths.parameter(id(weight)) is None
    paths.refresh()
    assert weakref.getweakrefs(weight)
    with paths.unreferred(weight, torch.ones(1)):
        assert not weakref.getweakrefs(weight)
    found = paths.parameter(id(weight))
    assert found is not None and found[0] == "0.weight" and found[1] is weight
    paths.let_go()
    assert not weakref.getweakrefs(weight)
    paths.path(nn.Linear(1, 1))
    assert not weakref.getweakrefs(weight) and paths.parameter(id(weight)) is None


def test_parameters_that_a_model_is_given_within_a_step_are_known_when_they_are_looked_for() -> None:
    one, other = model(), model()
    paths = in_a_step(one)
    one.load_state_dict(other.state_dict(), assign=True)
    number = id(one[0].weight)
    assert paths.parameter(number) is None
    paths.look_for([number])
    found = paths.parameter(number)
    assert found is not None and found[0] == "0.weight" and found[1] is one[0].weight

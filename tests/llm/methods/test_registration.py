"""Methods that a user registers are named in configs, with their fields as options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from sparsebit import llm
from sparsebit.config.llm import METHOD_RULES
from sparsebit.errors import ConfigError, RegistryError
from sparsebit.llm.methods import METHODS, Solved, WeightSpec, register_method
from sparsebit.llm.methods.grid_search import search_grid
from tests.llm.models import DECODERS


@pytest.fixture
def name() -> Iterator[str]:
    yield "test_method"
    METHODS.remove("test_method")


def test_a_solver_of_the_user_is_used_with_its_options(name: str) -> None:
    @register_method(name)
    @dataclass(frozen=True, kw_only=True)
    class Halved:
        factor: float = 0.5
        needs_data = False
        follow = 0.0

        def solve(self, weight: torch.Tensor, statistics: object, spec: WeightSpec) -> Solved:
            grid = search_grid(weight * self.factor, None, spec, steps=1)
            return Solved(grid.snap(weight * self.factor), grid, latent=weight, remark=f"times {self.factor}")

    config = {"METHOD": [{"Test-Method": {"factor": 0.25}}], "W": {"BIT": 8}}
    model = DECODERS["llama"]()
    small = llm.quantize(model, None, config, progress=False)
    weight = model.get_parameter("model.layers.0.mlp.up_proj.weight")
    assert torch.allclose(small.weights["model.layers.0.mlp.up_proj.weight"].numbers(), weight / 4, atol=1e-3)
    assert {record.remark for record in small.records} == {"times 0.25"}
    with pytest.raises(
        ConfigError, match=r"an option of test_method, not 'facto', got .*; did you mean 'factor'"
    ):
        llm.quantize(model, None, {"METHOD": {name: {"facto": 1}}}, progress=False)


def test_names_that_are_taken_and_classes_that_are_no_method_are_refused(name: str) -> None:
    class Tuner:
        follow = 1.0

        def tune(self) -> None: ...

    with pytest.raises(RegistryError, match="method 'gptq' is already taken"):
        register_method("gptq")(Tuner)
    with pytest.raises(RegistryError, match="method 'rtn' is already taken"):
        register_method("nearest")(Tuner)  # another spelling
    with pytest.raises(
        RegistryError, match="int is not a method\n  expected: a class with solve or start or tune"
    ):
        register_method(name)(int)
    register_method(name)(Tuner)
    assert METHOD_RULES[name].moment == "after" and METHODS[name] is Tuner
    del Tuner.follow
    with pytest.raises(RegistryError, match="Tuner has no follow"):
        register_method(name, replace=True)(Tuner)

"""Methods that a user registers are named in configs, with their fields as options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from sparsebit import llm
from sparsebit.config.llm import METHOD_RULES
from sparsebit.errors import ConfigError, PlugInError, RegistryError
from sparsebit.llm import quantize_blocks
from sparsebit.llm.methods import METHODS, Solved, WeightSpec, register_method, solver
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


def _noted(**wrong: Any) -> Callable[..., Any]:
    """A solution by rounding to nearest, with these fields changed."""

    def solve(self: object, weight: torch.Tensor, statistics: object, spec: WeightSpec) -> Solved:
        grid = search_grid(weight, None, spec, steps=1)
        right = Solved(grid.snap(weight), grid, latent=weight)
        return right._replace(**{name: make(right) for name, make in wrong.items()})

    return solve


@pytest.mark.parametrize(
    ("solve", "told"),
    [
        (
            lambda *_: 1 / 0,
            r"cannot solve this weight: ZeroDivisionError: .*\n  where: line \d+ of",
        ),
        (lambda *_: None, "did not return a solution"),
        (_noted(weight=lambda right: right.latent), r"cannot be stored[\s\S]*expected: weights on the grid"),
        (_noted(weight=lambda right: right.weight * torch.nan), r"cannot be stored[\s\S]*finite weights"),
        (_noted(weight=lambda right: right.weight[:1]), "returned a wrong weight"),
        (_noted(grid=lambda right: None), r"cannot be stored[\s\S]*a grid of int8"),
        (_noted(grid=lambda right: 3), "AttributeError"),
        (
            _noted(grid=lambda right: replace(right.grid, scale=right.grid.scale.float() * 1.0001)),
            r"cannot[\s\S]*scales in torch.float16",
        ),
        (
            _noted(kept=lambda right: torch.zeros_like(right.weight)),
            r"cannot[\s\S]*zeros where it keeps no weights",
        ),
        (_noted(latent=lambda right: None), "returned a wrong latent"),
    ],
)
def test_a_solution_that_is_not_what_was_asked_for_is_refused(name: str, solve: Any, told: str) -> None:
    """The loss in the report would be that of other numbers than the ones that are stored."""
    register_method(name)(type("Mine", (), {"needs_data": False, "follow": 0.0, "solve": solve}))
    with pytest.raises(PlugInError, match=f"the method Mine .*{told}"):
        llm.quantize(DECODERS["llama"](), None, {"METHOD": name, "W": {"BIT": 8}}, progress=False)


@pytest.mark.parametrize(
    ("method", "kind", "told"),
    [
        ("tune", lambda *_: 1 / 0, "cannot train 'model.layers.0': ZeroDivisionError"),
        (
            "tune",
            lambda self, runs, targets, solved: solved[:1],
            "did not return the matrices of 'model.layers.0'",
        ),
        ("start", lambda *_: None, "cannot prepare 'model.layers.0': TypeError"),
        ("start", lambda *_: 1 / 0, "cannot start: ZeroDivisionError"),
    ],
)
def test_mistakes_of_preparations_and_tuners_are_reported_as_theirs(
    name: str, method: str, kind: Any, told: str
) -> None:
    register_method(name)(type("Mine", (), {"follow": 0.0, method: kind}))
    config = {"METHOD": ["rtn", name], "W": {"BIT": 8}, "CALIBRATION": {"LENGTH": 8, "SAMPLES": 1}}
    if method == "start":
        config["METHOD"] = [name, "rtn"]
    with pytest.raises(PlugInError, match=f"the method Mine {told}"):
        llm.quantize(DECODERS["llama"](), torch.arange(8)[None], config, progress=False)


@pytest.mark.parametrize("name", [name for name, rule in METHOD_RULES.items() if rule.moment != "before"])
def test_the_librarys_own_methods_would_pass_the_checks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (solver, quantize_blocks):
        monkeypatch.setattr(module, "is_plug_in", lambda one: True)
    steps = [name] if METHOD_RULES[name].moment == "solve" else ["rtn", {name: {"steps": 2}}]
    weights = {"BIT": 4, "GROUP_SIZE": 16, "SPARSITY": "2:4"}
    config = {"METHOD": steps, "W": weights, "CALIBRATION": {"LENGTH": 8, "SAMPLES": 2}}
    done = llm.quantize(DECODERS["llama"](), torch.arange(16).reshape(2, 8), config, progress=False)
    assert done.records

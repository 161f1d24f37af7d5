"""The steps of a config as objects, and what they need."""

from __future__ import annotations

from sparsebit.config.llm.methods import METHOD
from sparsebit.llm.methods.gptq import Gptq
from sparsebit.llm.methods.pipeline import Pipeline
from sparsebit.llm.methods.tune import Tune


def pipeline(*steps: object) -> Pipeline:
    return Pipeline.of(METHOD.parse(list(steps)))  # type: ignore[arg-type]


def test_steps_become_objects_with_their_options() -> None:
    found = pipeline({"gptq": {"damping": 0.5}}, {"tune": {"steps": 3}})
    assert found.solver == Gptq(damping=0.5) and found.tuners == (Tune(steps=3),)


def test_what_needs_data_and_the_float_model() -> None:
    assert not pipeline("rtn").names_with_data and not pipeline("rtn").follows
    assert pipeline("rtn", "tune").names_with_data == ("tune",) and pipeline("rtn", "tune").follows
    assert not pipeline({"gptq": {"follow": 0}}).follows

"""What an algorithm is: a name, fields as options, a stage, and a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest
import torch

from sparsebit.config.quantization import recovery
from sparsebit.errors import PlugInError, RegistryError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms import ALGORITHMS, Algorithm, Job, Stage, register_algorithm
from sparsebit.quantization.algorithms.layers import find_quantized_layers
from sparsebit.quantization.observers import CalibrationError
from tests.quantization.algorithms.jobs import is_same, snapshot
from tests.quantization.nets import config, images, residual

SEEN: list[tuple[str, float]] = []


@pytest.fixture
def shrinking() -> Iterator[type[Algorithm]]:
    @register_algorithm
    @dataclass(frozen=True, kw_only=True)
    class Shrink(Algorithm):
        """Makes weights smaller before they are measured."""

        NAME = "shrink"
        stage: ClassVar[Stage] = "before"
        factor: float = 0.5

        def apply(self, job: Job) -> None:
            for layer in find_quantized_layers(job.gm):
                layer.set(weight=layer.weight * self.factor)
                SEEN.append((layer.weight_path, self.factor))

    yield Shrink
    ALGORITHMS.remove("shrink")
    SEEN.clear()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_runs_with_nothing_said_but_its_name(name: str) -> None:
    kind = ALGORITHMS[name]
    assert name == kind.NAME and kind.__doc__ and kind.stage in ("before", "after")
    net, x = residual(), images()
    before = snapshot(net)
    step = {name: {"steps": 2}} if "steps" in {f.name for f in fields(kind)} else name  # type: ignore[arg-type]
    qmodel = QuantModel(net, config(SCHEDULE={"FUSE_BN": True, "RECOVERY": [step]}), x)
    qmodel.calibrate([x, images(3, 1)], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert (qmodel(x) - net(x)).abs().max() < 0.1 * net(x).abs().max()
    assert is_same(net, before), "the user's model"
    assert not qmodel.training and not any(q.observing for q in qmodel.quantizers.values())


@pytest.mark.parametrize("asym", [False, True])
def test_one_of_your_own(shrinking: type[Algorithm], asym: bool) -> None:
    x = images()
    made = config(SCHEDULE={"FUSE_BN": True, "RECOVERY": [{"shrink": {"factor": 0.25}}]})
    qmodel = QuantModel(residual(), made, x)
    qmodel.calibrate([x], asym=asym, progress=False)
    plain = QuantModel(residual(), config(), x)
    plain.calibrate([x], progress=False)
    assert {path for path, _ in SEEN} == {"conv1.weight", "conv2.weight", "fc.weight"}
    for name in ("conv1.weight", "fc.weight"):
        torch.testing.assert_close(qmodel.quantizers[name].scale, plain.quantizers[name].scale / 4)
    assert qmodel.quantizers["relu"].scale < plain.quantizers["relu"].scale, "measured behind the new weights"
    with pytest.raises(RegistryError, match="shrink"):
        register_algorithm(shrinking)


def test_a_cell_of_a_notebook_may_be_run_again(shrinking: type[Algorithm]) -> None:
    again = type("Shrink", (shrinking,), {})
    assert register_algorithm(replace=True)(again) is again and ALGORITHMS["shrink"] is again


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"NAME": "late", "stage": "during"}, r"Late has no stage 'during'[\s\S]*before or after"),
        ({}, "None is not a name for a recovery step"),
        ({"NAME": 5}, "5 is not a name for a recovery step"),
    ],
)
def test_a_step_has_a_name_and_a_stage(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(RegistryError, match=told):
        register_algorithm(type("Late", (Algorithm,), {"apply": lambda self, job: None, **fields}))
    assert "late" not in ALGORITHMS and "late" not in recovery.STEP_RULES


def test_a_step_that_leaves_infinity_is_refused(
    shrinking: type[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shrinking, "stage", "after")
    made = config(SCHEDULE={"RECOVERY": [{"shrink": {"factor": 1e300}}]})
    with pytest.raises(CalibrationError, match=r"'conv1.weight' of the model holds NaN[\s\S]*after shrink"):
        QuantModel(residual(), made, images()).calibrate([images()], progress=False)


def _fail(self: Algorithm, job: Job) -> None:
    raise KeyError("mine")


def _write(self: Algorithm, job: Job) -> None:
    for layer in find_quantized_layers(job.gm):
        layer.weight.data.mul_(0.5)


@pytest.mark.parametrize(
    ("apply", "told"),
    [
        (_fail, r"the recovery step 'shrink' failed: KeyError: 'mine'\n  where: line \d+ of .*test_base.py"),
        (_write, r"the recovery step 'shrink' wrote into '\w+.weight', which your model shares"),
    ],
)
def test_a_step_that_fails_leaves_nothing_measuring(
    shrinking: type[Algorithm], monkeypatch: pytest.MonkeyPatch, apply: Any, told: str
) -> None:
    monkeypatch.setattr(shrinking, "apply", apply)
    qmodel = QuantModel(residual(), config(SCHEDULE={"RECOVERY": ["shrink"]}), images())
    with pytest.raises(PlugInError, match=told):
        qmodel.calibrate([images()], progress=False)
    assert not any(q.observing for q in qmodel.quantizers.values())


def test_frozen_parameters_stay_frozen() -> None:
    net = residual()
    net.requires_grad_(False)
    steps = ["equalization", "smoothquant", "weight_correction", {"brecq": {"steps": 2}}]
    qmodel = QuantModel(net, config(SCHEDULE={"FUSE_BN": True, "RECOVERY": steps}), images())
    qmodel.calibrate([images()], progress=False)
    assert not any(p.requires_grad for p in qmodel.parameters())

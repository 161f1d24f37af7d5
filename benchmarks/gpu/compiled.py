"""``torch.compile`` of a quantized model: without a graph break or a second compilation, to the same results?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparsebit
from sparsebit.numerics import snapping


@dataclass(frozen=True)
class Case:
    """A small network with one kind of quantizer."""

    kind: str = "lsq"
    device: str = "cuda"
    backend: str = "inductor"
    kernels: bool = True
    training: bool = True
    weight_scheme: str = "per-channel-symmetric"
    activation_scheme: str = "per-tensor-affine"
    frozen: bool = False


KINDS = ("lsq", "uniform", "lsq+", "pact", "dorefa")
CASES = [
    Case("lsq", backend="aot_eager"),
    Case("lsq", device="cpu", backend="aot_eager"),
    Case("uniform", backend="aot_eager"),
    Case("lsq"),
    Case("uniform", "cuda", "aot_eager", training=False, frozen=True),
    Case("uniform", training=False),
    *(Case(kind, backend="aot_eager") for kind in ("lsq+", "pact", "dorefa")),
    Case("uniform", backend="aot_eager", activation_scheme="per-channel-affine"),
    Case("uniform", backend="aot_eager", weight_scheme="per-group-symmetric"),
    *(Case(kind, device="cpu", backend="aot_eager") for kind in KINDS[1:]),
    Case("uniform"),
    Case("lsq", device="cpu"),
    Case("lsq", kernels=False),
    Case("uniform", kernels=False),
]


def make(case: Case) -> tuple[sparsebit.QuantModel, Tensor]:
    """The network, calibrated, and a batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))
    x = torch.randn(2, 3, 8, 8)
    kind_of_activation = "uniform" if case.kind == "dorefa" else case.kind
    kind_of_weight = "uniform" if case.kind == "pact" else case.kind
    weight: dict[str, Any] = {"QSCHEME": case.weight_scheme, "QUANTIZER": {"TYPE": kind_of_weight, "BIT": 4}}
    if "group" in case.weight_scheme:
        weight["GROUP_SIZE"] = 4
    config = {
        "W": weight,
        "A": {"QSCHEME": case.activation_scheme, "QUANTIZER": {"TYPE": kind_of_activation, "BIT": 4}},
    }
    model = sparsebit.QuantModel(net, config, example_inputs=(x,))
    model.calibrate([x], progress=False)
    if case.training:
        model.init_QAT()
    model.set_quant(True, True)
    if case.frozen:
        model.freeze()
    return model.to(case.device).train(case.training), x.to(case.device)


def compare(case: Case) -> str | None:
    """What differs between the model as it is and compiled, in three steps; None where nothing does."""
    before, snapping.USE_KERNELS = snapping.USE_KERNELS, case.kernels
    try:
        found = [_run(case, wrap) for wrap in (lambda model: model, _compile(case.backend))]
    finally:
        snapping.USE_KERNELS = before
    wrong = [
        f"{name}: differs by {float((a - b).abs().max()):.3g} of {float(a.abs().max()):.3g}"
        for (name, a), b in zip(found[0].items(), found[1].values(), strict=True)
        if not torch.allclose(a, b, rtol=1e-2, atol=1e-3)
    ]
    return "; ".join(wrong) or None


def _compile(backend: str) -> Callable[[nn.Module], Any]:
    def wrap(model: nn.Module) -> Any:
        torch._dynamo.reset()
        return torch.compile(model, fullgraph=True, backend=backend)

    return wrap


def _run(case: Case, wrap: Callable[[nn.Module], Any]) -> dict[str, Tensor]:
    model, x = make(case)
    function, found = wrap(model), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if case.training else None
    for step in range(4):
        with torch._dynamo.config.patch(error_on_recompile=step >= 2):
            if optimizer is None:
                with torch.no_grad():
                    found[f"outputs {step}"] = function(x).clone()
                continue
            optimizer.zero_grad()
            function(x).square().mean().backward()
            if step == 0:
                found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
    return found

"""Deploy a quantized model in torch: save it, load it where it serves, compile it.

The folder holds packed integers and no code. The loaded model computes the same numbers, compiled or not, with fewer
passes over memory when it is compiled. For integer arithmetic on a CPU, write an ONNX file instead; this is for GPUs,
and for models that have no ONNX form.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import torch
from torch import nn

from sparsebit import QuantModel


def seconds(model: nn.Module, x: torch.Tensor, calls: int) -> float:
    """The shortest of some calls."""
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        model(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken)


def main(words: list[str] | None = None) -> dict[str, float]:
    """Quantize, save, load, compile; returns the largest difference relative to the largest output."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--backend", default="inductor", help="of torch.compile; aot_eager needs no compiler"
    )
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--calls", type=int, default=20)
    options.add_argument("--folder", help="where the model is saved; a temporary folder if left out")
    options = options.parse_args(words)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    x = torch.randn(16, 3, 32, 32)
    config = {
        "DEVICE": options.device,
        "SCHEDULE": {"FUSE_BN": True},
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 8}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 8}},
    }
    qmodel = QuantModel(model, config, example_inputs=(x,)).to(options.device)
    qmodel.calibrate([x], progress=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or f"{temporary}/quantized"
        qmodel.save(folder)
        # It needs the architecture of the model, not its weights.
        served = QuantModel.load(folder, model).to(options.device)
    compiled = torch.compile(served, backend=options.backend)
    with torch.no_grad():
        there = x.to(options.device)
        plain, fast = qmodel(there), compiled(there)
        times = {
            name: seconds(m, there, options.calls) for name, m in (("plain", qmodel), ("compiled", compiled))
        }
    difference = float((plain - fast).abs().max() / plain.abs().max())
    print(
        f"plain {1e3 * times['plain']:.2f} ms, compiled {1e3 * times['compiled']:.2f} ms, difference {difference:.1e}"
    )
    return {"difference": difference}


if __name__ == "__main__":
    main()

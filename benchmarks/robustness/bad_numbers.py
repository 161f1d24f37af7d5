"""NaN and infinite numbers, and batches of no or one sample: is any of it taken silently?

    python -m benchmarks.robustness.bad_numbers --output result.json

One bad number is put into weights, statistics, calibration data or a language model. Right is an error of ours, or
scales and results that are all finite. Each case ends in ``refused``, ``ok``, ``CRASH`` (an error that is not ours) or
``WRONG`` (something that is not finite was taken silently).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.environment import describe
from benchmarks.robustness.tamper import images, net
from sparsebit import QuantModel, SparseModel, capture, llm
from sparsebit.errors import SparsebitError

BAD = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "1e38": 1e38}
PRUNE = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}


def spoiled(value: float, name: str) -> nn.Module:
    """The network with one bad number in the tensor of this name."""
    model = net()
    with torch.no_grad():
        model.state_dict()[name].view(-1)[0] = value
    return model


def bad_batch(value: float) -> Tensor:
    """Images with one bad pixel."""
    batch = images().clone()
    batch[0, 0, 0, 0] = value
    return batch


def require_finite(model: nn.Module) -> str:
    """What is not finite among the numbers of a quantized model, or an empty text."""
    return ", ".join(
        name for name, tensor in model.state_dict().items() if not torch.isfinite(tensor.float()).all()
    )


def calibrated(model: nn.Module, batches: list[Tensor]) -> str:
    """Calibrate; every scale must be finite."""
    qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=(images(),))
    qmodel.calibrate(batches, progress=False)
    scales = {
        name: tensor for name, tensor in qmodel.state_dict().items() if name.endswith(("scale", "zero_point"))
    }
    return ", ".join(name for name, tensor in scales.items() if not torch.isfinite(tensor.float()).all())


def pruned(model: nn.Module, strategy: str) -> str:
    """Prune; the weights that are left must be those that are finite, or an error."""
    config = {"SPARSER": {**PRUNE["SPARSER"], "STRATEGY": strategy}}
    smodel = SparseModel(model, config, example_inputs=(images(),))
    smodel.calc_params()
    return require_finite(smodel.shrink())


def language(value: float, name: str, method: str) -> str:
    """Quantize a language model with one bad number in it."""
    import transformers

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=50, max_position_embeddings=64, **small)
    ).eval()
    with torch.no_grad():
        model.state_dict()[name].view(-1)[3] = value
    calibration = {"LENGTH": 32, "SAMPLES": 4}
    config = {"W": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": method, "CALIBRATION": calibration}
    done = llm.quantize(model, torch.randint(0, 50, (4, 32)), config, progress=False)
    logits = done(torch.arange(8)[None]).logits
    return "" if torch.isfinite(logits).all() else "logits are not finite"


def batch_sizes(example: int, other: int) -> str:
    """Captured and quantized at one batch, called at another."""
    model = net()
    gm = capture(model, (images()[:example],))
    x = images()[:other]
    if not torch.equal(gm(x), model(x)):
        return "the captured graph differs"
    qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=(images()[:example],))
    qmodel.calibrate([images(), images()[:other]], progress=False)
    found = qmodel(x)
    if tuple(found.shape) != (other, 4):
        return f"shape {tuple(found.shape)}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.onnx"
        qmodel.export_onnx(images()[:example], path)
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        shape = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0].shape
    return "" if shape == (other, 4) else f"the file gives shape {shape}"


def cases() -> dict[str, Callable[[], str]]:
    """Every case by name; each returns what is wrong."""
    found: dict[str, Callable[[], str]] = {}
    for kind, value in BAD.items():
        for name in ("0.weight", "1.weight", "1.running_var", "6.weight", "6.bias"):
            found[f"calibrate, {kind} in {name}"] = lambda v=value, n=name: calibrated(
                spoiled(v, n), [images()]
            )
        found[f"calibrate, {kind} in the data"] = lambda v=value: calibrated(net(), [images(), bad_batch(v)])
        for strategy in ("l1norm", "fpgm"):
            found[f"prune {strategy}, {kind} in 3.weight"] = lambda v=value, s=strategy: pruned(
                spoiled(v, "3.weight"), s
            )
        for method in ("rtn", "gptq", "hqq"):
            for name in (
                "model.layers.0.mlp.up_proj.weight",
                "model.embed_tokens.weight",
                "model.norm.weight",
            ):
                found[f"llm {method}, {kind} in {name}"] = lambda v=value, n=name, m=method: language(v, n, m)
    for example in (1, 4):
        for other in (0, 1, 3):
            found[f"batch {other} after {example}"] = lambda e=example, o=other: batch_sizes(e, o)
    return found


def outcome(case: Callable[[], str]) -> tuple[str, str]:
    """How a case ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrong = case()
    except SparsebitError as error:
        return "refused", str(error).splitlines()[0][:160]
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            "CRASH",
            f"{type(error).__name__}: {str(error)[:120]} ({Path(last.filename).name}:{last.lineno})",
        )
    return ("WRONG", wrong) if wrong else ("ok", "")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, case in cases().items():
        if arguments.only in name:
            found[name] = outcome(case)
            print(f"{name}: {found[name]}", flush=True)
    if arguments.output:
        text = json.dumps({"environment": describe(0), "outcomes": found}, indent=1)
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

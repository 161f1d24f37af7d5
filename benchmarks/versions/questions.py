"""What a user waits for: run as a file, with the tree to measure on ``PYTHONPATH``.

Gets ready for one question, answers it once without counting, and then prints the seconds of one answer for each line
of its input, by the clock and of the processor. Only names that every version has are used.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Action = Callable[[], Any]
INT8 = "int8_onnxruntime"
LSQ = {
    "BACKEND": "virtual",
    "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 4, "TYPE": "lsq"}},
    "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 4, "TYPE": "lsq"}},
}
HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}


def bert() -> Any:
    """Six layers of width 384."""
    import transformers

    small = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
    return transformers.BertModel(transformers.BertConfig(vocab_size=1000, **small)).eval()


def example(name: str) -> tuple[Any, Any]:
    """A model and its input."""
    import torch
    from torch import nn

    from tests.zoo.nets import resnet, vit

    torch.manual_seed(0)
    image = torch.randn(1, 3, 64, 64)
    if name == "bert":
        return bert(), torch.randint(1000, (2, 32))
    if name == "lstm":
        return nn.Sequential(nn.LSTM(32, 64, 2, batch_first=True)).eval(), torch.randn(2, 20, 32)
    if name == "vit":
        return vit.ViT().eval(), torch.randn(1, 3, 224, 224)
    return getattr(resnet, name)().eval(), image


def command(*words: str) -> Action:
    """A Python process."""
    return lambda: subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def capture_of(name: str) -> Action:
    """One capture."""
    from sparsebit import capture

    model, x = example(name)
    return lambda: capture(model, (x,))


def calibration(observer: str) -> Action:
    """Eight batches through ResNet-18 at 64x64, and the grids found from them."""
    import torch

    from sparsebit import QuantModel

    model, _ = example("resnet18")
    config = {
        "BACKEND": "virtual",
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 8}},
        "A": {"QSCHEME": "per-tensor-affine", "OBSERVER": {"TYPE": observer}, "QUANTIZER": {"BIT": 8}},
    }
    batches = [torch.randn(8, 3, 64, 64) for _ in range(8)]
    qmodel = QuantModel(model, config, example_inputs=(batches[0],))

    def once() -> None:
        qmodel.prepare_calibration()
        with torch.no_grad():
            for batch in batches:
                qmodel(batch)
        qmodel.calc_qparams()

    return once


def export(name: str) -> Action:
    """Write and check an int8 file."""
    from sparsebit import QuantModel

    model, x = example(name)
    qmodel = QuantModel(model, INT8, example_inputs=(x,))
    qmodel.prepare_calibration()
    qmodel(x)
    qmodel.calc_qparams()
    qmodel.set_quant(w_quant=True, a_quant=True)
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("QUESTION_FOLDER")))
    return lambda: qmodel.export_onnx(x, folder / "model.onnx")


def training_step() -> Action:
    """A step of ResNet-20, LSQ at four bits, 32 images."""
    import torch

    from sparsebit import QuantModel
    from tests.zoo.nets.cifar_resnet import cifar_resnet20

    torch.manual_seed(0)
    x, labels = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    qmodel = QuantModel(cifar_resnet20().eval(), LSQ, example_inputs=(x,))
    qmodel.prepare_calibration()
    qmodel(x)
    qmodel.init_QAT()
    qmodel.train()
    optimizer = torch.optim.SGD(qmodel.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(qmodel(x), labels).backward()
        optimizer.step()

    return step


def grouping(name: str) -> Action:
    """The channels that must go together, from a captured graph."""
    from sparsebit import capture
    from sparsebit.sparse.channels import find_groups

    model, x = example(name)
    gm = capture(model, (x,))
    return lambda: find_groups(gm)


def pruning(name: str) -> Action:
    """Capture, choose half of the channels, shrink."""
    from sparsebit import SparseModel

    model, x = example(name)

    def once() -> None:
        smodel = SparseModel(model, HALF, example_inputs=(x,))
        smodel.calc_params()
        smodel.shrink()

    return once


QUESTIONS: dict[str, Callable[[], Action]] = {
    "import sparsebit": lambda: command("-c", "import sparsebit"),
    "sparsebit --help": lambda: command("-m", "sparsebit", "--help"),
    **{f"capture {name}": lambda name=name: capture_of(name) for name in ("resnet50", "bert", "vit", "lstm")},
    **{
        f"calibrate {name}": lambda name=name: calibration(name) for name in ("minmax", "mse", "kl_histogram")
    },
    **{f"export {name}": lambda name=name: export(name) for name in ("resnet18", "bert")},
    "QAT step": training_step,
    **{f"group {name}": lambda name=name: grouping(name) for name in ("resnet50", "bert")},
    "prune resnet18": lambda: pruning("resnet18"),
}


def processor_seconds() -> float:
    """What this process and those it has started and waited for have computed."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answer = QUESTIONS[sys.argv[1]]()
    answer()
    print("ready", flush=True)
    for _ in sys.stdin:
        began, used = time.perf_counter(), processor_seconds()
        answer()
        print(f"seconds {time.perf_counter() - began} {processor_seconds() - used}", flush=True)

"""What does capturing cost, and does the graph run as fast as the model?

Two questions, as ratios against the same model run eagerly in the same process:
- capture time against three eager forwards plus half a second (the goal);
- the captured graph's forward against eager's, interleaved, medians (the goal: at most 1.05).

Run from the repository root: ``python -m benchmarks.capture.run``

On a CPU the C library's allocator gives memory back to the system and takes it again between operators, more or less by
luck of the order in which tensors die; ``--allocator default`` leaves that luck in, the default keeps freed memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from benchmarks.environment import describe
from sparsebit import capture
from tests.zoo.nets import cifar_resnet, efficientnet_lite, mobilenet, resnet, unet, vit

SEED = 0
Case = tuple[str, Callable[[], nn.Module], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]


def image(batch: int, size: int) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]:
    return lambda: ((torch.randn(batch, 3, size, size),), {})


def tokens(
    batch: int, length: int, vocabulary: int = 1000
) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]:
    return lambda: ((), {"input_ids": torch.randint(vocabulary, (batch, length))})


def transformers_model(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        return getattr(transformers, kind)(getattr(transformers, config)(**options))

    return make


def cases() -> list[Case]:
    small = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
    return [
        ("ResNet-20, CIFAR, batch 32", cifar_resnet.cifar_resnet20, image(32, 32)),
        ("ResNet-18, 224, batch 1", resnet.resnet18, image(1, 224)),
        ("ResNet-50, 224, batch 1", resnet.resnet50, image(1, 224)),
        ("ResNet-50, 224, batch 8", resnet.resnet50, image(8, 224)),
        ("MobileNetV2, 224, batch 1", mobilenet.MobileNetV2, image(1, 224)),
        ("EfficientNet-Lite0, 224, batch 1", efficientnet_lite.EfficientNetLite0, image(1, 224)),
        ("U-Net, 256, batch 1", unet.UNet, image(1, 256)),
        ("ViT-small, 224, batch 1", vit.ViT, image(1, 224)),
        (
            "BERT 6x384, 128 tokens",
            transformers_model("BertModel", "BertConfig", vocab_size=1000, **small),
            tokens(1, 128),
        ),
        (
            "Llama 6x384 GQA, 128 tokens",
            transformers_model(
                "LlamaForCausalLM",
                "LlamaConfig",
                vocab_size=1000,
                num_key_value_heads=2,
                use_cache=False,
                **small,
            ),
            tokens(1, 128),
        ),
        (
            "Swin-tiny, 224, batch 1",
            transformers_model("SwinModel", "SwinConfig"),
            lambda: ((torch.randn(1, 3, 224, 224),), {}),
        ),
    ]


def keep_freed_memory() -> None:
    """Tell glibc not to return freed memory to the system (M_TRIM_THRESHOLD and M_MMAP_THRESHOLD)."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(-1, 2**31 - 1)
    libc.mallopt(-3, 2**30)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(case: Case, rounds: int, device: str = "cpu") -> dict[str, Any]:
    name, make, example = case
    torch.manual_seed(SEED)
    model = make().eval().to(device)
    args, kwargs = pytree.tree_map(lambda value: value.to(device), example())

    @torch.no_grad()
    def eager() -> object:
        return model(*args, **kwargs)

    eager(), eager()
    forward = statistics.median(seconds(eager) for _ in range(5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = capture(model, args, kwargs)  # the first one also pays for imports
        captures = sorted(seconds(lambda: capture(model, args, kwargs)) for _ in range(3))

    @torch.no_grad()
    def captured() -> object:
        return graph(*args, **kwargs)

    captured(), captured()
    ratios, times = [], []
    for index in range(rounds):
        pair = (eager, captured) if index % 2 == 0 else (captured, eager)
        first, second = seconds(pair[0]), seconds(pair[1])
        one, two = (first, second) if index % 2 == 0 else (second, first)
        ratios.append(two / one)
        times.append(one)
    allowed = 3 * forward + 0.5
    return {
        "model": name,
        "nodes": len(graph.graph.nodes),
        "eager_ms": round(1e3 * statistics.median(times), 3),
        "capture_ms": round(1e3 * captures[1], 1),
        "capture_over_allowed": round(captures[1] / allowed, 3),
        "graph_over_eager": round(statistics.median(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=41, help="interleaved pairs of forwards per model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--allocator", choices=("keep", "default"), default="keep")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.allocator == "keep":
        keep_freed_memory()
    rows = [measure(case, options.rounds, options.device) for case in track(cases(), "measuring")]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "environment": describe(SEED, ("torch", "transformers")),
        "rounds": options.rounds,
        "allocator": options.allocator,
        "rows": rows,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()

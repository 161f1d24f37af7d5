"""What does a model with packed weights do on a GPU: tokens per second beside bfloat16, and training of adapters?

Decoding: batch 1, one token after the other with a cache of fixed size. ``eager`` starts every kernel from Python, so
its speed is that of the host; ``graph`` replays one step as a CUDA graph, so its speed is that of the GPU. Models are
measured in turns. SmolLM2 is small enough that most of a step is not products; the second model has the shapes of
Llama-2-7B, random weights and fewer blocks.

Adapters: rank 16 over SmolLM2 in 4 bits, rounded to nearest, from zero and from the quantization error (LoftQ, EoRA);
perplexity of held-out text before and after training on other text.

    python -m benchmarks.llm.on_gpu MODEL_FOLDER --text wikitext2_valid.txt --out benchmarks/llm/results/on_gpu.json
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.environment import describe, report
from benchmarks.llm.memory import SIZES
from benchmarks.llm.run import HELD_OUT, WINDOW, open_model
from sparsebit import llm
from sparsebit.llm.evaluate.perplexity import evaluate
from sparsebit.llm.lora import add_lora, load_lora, remove_lora, save_lora, train_lora
from sparsebit.llm.tokens import as_ids

PROMPT, DECODED, ROUNDS = 64, 64, 5
WIDTHS: dict[str, dict[str, Any]] = {
    "4 bits, groups of 32": {"BIT": 4, "GROUP_SIZE": 32},
    "4 bits, groups of 128": {"BIT": 4, "GROUP_SIZE": 128},
    "3 bits, groups of 64, affine": {"BIT": 3, "GROUP_SIZE": 64, "SCHEME": "affine"},
    "2 bits, groups of 64, affine": {"BIT": 2, "GROUP_SIZE": 64, "SCHEME": "affine"},
}


class Decoder:
    """A model behind a prompt, with a cache of fixed size; ``step`` decodes one token, in eager mode or as a graph."""

    def __init__(self, model: Any, prompt: Tensor, graph: bool) -> None:
        from transformers import StaticCache

        self.model, self.cache = model, StaticCache(config=model.config, max_cache_len=4 * DECODED)
        self.token = self._next(prompt)
        self.step: Callable[[], object] = self._eager
        if graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # what is compiled at the first call
                for _ in range(3):
                    self._eager()
            torch.cuda.current_stream().wait_stream(side)
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made):
                self._eager()
            self.step = made.replay

    def _next(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids, past_key_values=self.cache, use_cache=True).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def _eager(self) -> None:
        self.token.copy_(self._next(self.token))


@torch.inference_mode()
def speed(model: nn.Module, prompt: Tensor, graph: bool) -> float:
    """Tokens per second of one run."""
    decoder = Decoder(model, prompt, graph)
    decoder.step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(DECODED):
        decoder.step()
    torch.cuda.synchronize()
    return DECODED / (time.perf_counter() - start)


def decode_table(
    floats: nn.Module, widths: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every width beside bfloat16, in turns: in eager mode, then as a graph."""
    models: dict[str, nn.Module] = {"bfloat16": copy.deepcopy(floats).bfloat16()}
    for name, width in widths.items():
        head = {"BIT": 4, "GROUP_SIZE": 32}
        made = llm.quantize(floats, None, {"W": width, "HEAD": head, "METHOD": "rtn"}, progress=False)
        models[name] = made.model.bfloat16()
    prompt = torch.randint(100, 30000, (1, PROMPT), generator=torch.Generator().manual_seed(0)).cuda()
    for way in ("eager", "graph"):
        speeds: dict[str, list[float]] = {name: [] for name in models}
        try:
            for turn in range(ROUNDS + 1):
                for name, model in models.items():
                    found = speed(model, prompt, way == "graph")
                    speeds[name] += [found] if turn else []  # the first turn warms up
        except Exception as error:
            traceback.print_exc()
            yield way, {"error": f"{type(error).__name__}: {error}"[:500]}
            continue
        base = speeds["bfloat16"]
        yield (
            way,
            {
                name: {
                    "tokens_per_second": statistics.median(found),
                    "over_bfloat16": statistics.median(a / b for a, b in zip(found, base, strict=True)),
                }
                for name, found in speeds.items()
            },
        )


def lora_table(floats: nn.Module, ids: Tensor, held_out: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Adapters from zero and from the error, trained on the same batches, saved and loaded again."""
    rows: dict[str, Any] = {
        "float": evaluate(floats, held_out, length=WINDOW, batch=1).perplexity,
    }
    starts: dict[str, dict[str, Any]] = {
        "from zero": {},
        "LoftQ": {"floats": floats},
        "EoRA": {"floats": floats, "ids": ids[: 16 * 512].view(16, 512)},
    }
    for name, start in starts.items():
        small = llm.quantize(floats, None, {"W": {"BIT": 4}, "METHOD": "rtn"}, progress=False)
        quantized = evaluate(small.model, held_out, length=WINDOW, batch=1).perplexity
        small.model.to(dtype)
        add_lora(small, rank=16, **start)  # in float32, over a base in any precision
        begin = evaluate(small.model, held_out, length=WINDOW, batch=1).perplexity
        torch.cuda.synchronize()
        clock = time.perf_counter()
        losses = train_lora(small, ids, steps=100, rate=2e-4, batch=8, length=512)
        seconds = (time.perf_counter() - clock) / 100
        after = evaluate(small.model, held_out, length=WINDOW, batch=1).perplexity
        with tempfile.TemporaryDirectory() as folder:
            save_lora(small, folder)
            remove_lora(small)
            load_lora(small, folder)
            again = evaluate(small.model, held_out, length=WINDOW, batch=1).perplexity
        rows[name] = {
            "quantized": quantized, "with adapters": begin, "trained": after, "loaded again": again,
            "first_losses": sum(losses[:10]) / 10, "last_losses": sum(losses[-10:]) / 10, "seconds_a_step": seconds,
        }  # fmt: skip
        print(name, rows[name], flush=True)
    return rows


def shapes_of_7b(blocks: int) -> nn.Module:
    """A model with random weights and the shapes of Llama-2-7B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SIZES, num_hidden_layers=blocks, num_key_value_heads=32, tie_word_embeddings=False)
    torch.manual_seed(0)
    with torch.device("cuda"):
        made: nn.Module = LlamaForCausalLM(config)
    return made.eval()


def main() -> None:
    """Measure, show, write after every part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="of SmolLM2; not needed for the shapes of Llama-2-7B")
    parser.add_argument("--text")
    parser.add_argument("--parts", default="*", help="a pattern; the other parts stay as they are in --out")
    parser.add_argument("--blocks", type=int, default=8, help="of the model with the shapes of Llama-2-7B")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    @functools.cache
    def open_text() -> tuple[Tensor, Tensor]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
        ids = as_ids(Path(options.text), tokenizer)
        return ids[:-HELD_OUT], ids[-HELD_OUT:][:4096]

    @functools.cache
    def floats() -> nn.Module:
        return open_model(options.model, None, "cuda")

    environment = describe(0, ("torch", "transformers"))
    result: dict[str, Any] = {
        "question": "packed weights on a GPU: decoding beside bfloat16, and adapters",
        "how": f"batch 1, {PROMPT} tokens of prompt, {DECODED} decoded, {ROUNDS} rounds in turns; medians",
    }
    if options.out is not None and options.out.exists():
        result |= json.loads(options.out.read_text(encoding="utf-8"))
    result |= environment
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "decode SmolLM2-135M": lambda: dict(
            decode_table(floats(), {k: WIDTHS[k] for k in list(WIDTHS)[::2]})
        ),
        "adapters in bfloat16": lambda: lora_table(floats(), *open_text(), torch.bfloat16),
        f"decode shapes of Llama-2-7B, {options.blocks} blocks": lambda: dict(
            decode_table(shapes_of_7b(options.blocks), WIDTHS)
        ),
    }
    for name, part in parts.items():
        if not fnmatchcase(name, options.parts):
            continue
        try:
            result[name] = {**part(), "commit": environment["commit"]}
        except Exception as error:
            traceback.print_exc()
            result[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        report(result, options.out)


if __name__ == "__main__":
    main()

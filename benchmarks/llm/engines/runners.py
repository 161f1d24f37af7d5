"""One class per engine: how fast it runs a file on one thread, and what it predicts.

Speeds are tokens per CPU second of the process, so that other processes on the machine count little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Speed(NamedTuple):
    """Tokens per CPU second."""

    prompt: float
    decode: float


class Runner(Protocol):
    """A file that an engine has loaded."""

    def time(self, prompt: list[int], count: int) -> Speed:
        """Take in a prompt, then generate ``count`` tokens behind the first one."""
        ...

    def log_probabilities(self, ids: list[int], count: int) -> Tensor:
        """The logarithms of the next-token distributions behind each of the last ``count`` ids, [count, vocabulary]."""
        ...


class LlamaCppRunner:
    """xllamacpp's server, in this process."""

    def __init__(self, path: Path) -> None:
        import gguf
        import xllamacpp

        fields = gguf.GGUFReader(path).fields
        self._size = int(fields["llama.vocab_size"].contents())
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        parameters.n_ctx, parameters.n_parallel = 512, 1
        self._server = xllamacpp.Server(parameters)

    def time(self, prompt: list[int], count: int) -> Speed:
        """The prompt's own time is measured alone and taken off the rest."""
        once = self._spend(prompt, 1)
        return Speed(len(prompt) / once, count / max(self._spend(prompt, count + 1) - once, 1e-9))

    def _spend(self, prompt: list[int], count: int) -> float:
        asked = {"prompt": prompt, "n_predict": count, "ignore_eos": True, "temperature": 0.0}
        start = time.process_time()
        self._server.handle_completions({**asked, "cache_prompt": False})
        return time.process_time() - start

    def log_probabilities(self, ids: list[int], count: int) -> Tensor:
        """One request for each position; the server keeps what the prompts have in common."""
        found = torch.full((count, self._size), -torch.inf, dtype=torch.float64)
        for row, end in zip(found, range(len(ids) - count + 1, len(ids) + 1), strict=True):
            asked = {"prompt": ids[:end], "n_predict": 1, "n_probs": self._size, "temperature": 0.0}
            answer: Any = self._server.handle_completions({**asked, "cache_prompt": True})
            pairs = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            row[torch.tensor([one["id"] for one in pairs])] = torch.tensor(
                [one["logprob"] for one in pairs], dtype=torch.float64
            )
        return found.log_softmax(-1)


class GenAIRunner:
    """ONNX Runtime GenAI."""

    def __init__(self, path: Path) -> None:
        import onnxruntime_genai

        self._genai: Any = onnxruntime_genai
        config = onnxruntime_genai.Config(str(path))
        config.overlay('{"model":{"decoder":{"session_options":{"intra_op_num_threads":1}}}}')
        self._model = onnxruntime_genai.Model(config)

    def _generator(self, length: int) -> Any:
        settings = self._genai.GeneratorParams(self._model)
        settings.set_search_options(max_length=length, min_length=length)
        return self._genai.Generator(self._model, settings)

    def time(self, prompt: list[int], count: int) -> Speed:
        """One generator."""
        generator = self._generator(len(prompt) + count + 2)
        start = time.process_time()
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        begun = time.process_time()
        for _ in range(count):
            generator.generate_next_token()
        return Speed(len(prompt) / (begun - start), count / (time.process_time() - begun))

    def log_probabilities(self, ids: list[int], count: int) -> Tensor:
        """One id after the other, as the engine generates."""
        generator = self._generator(len(ids) + 1)
        found = []
        for index in ids:
            generator.append_tokens(np.array([[index]], np.int32))
            found.append(torch.from_numpy(np.array(generator.get_logits())).flatten(0, -2)[-1].double())
        return torch.stack(found[-count:]).log_softmax(-1)


class OpenVinoRunner:
    """OpenVINO's CPU plugin with the settings it chooses itself, keys and values kept by the model."""

    def __init__(self, path: Path) -> None:
        import openvino

        model = path / "openvino_model.xml"
        core = openvino.Core()
        self._compiled: Any = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
        self._names = {name for one in self._compiled.inputs for name in one.names}

    def _feed(self) -> Callable[[list[int]], np.ndarray[Any, Any]]:
        """A function that takes in ids behind those it has taken in, and returns all logits."""
        request, taken = self._compiled.create_infer_request(), 0

        def feed(ids: list[int]) -> np.ndarray[Any, Any]:
            nonlocal taken
            total = taken + len(ids)
            every: dict[str, Any] = {
                "input_ids": np.array([ids], np.int64),
                "attention_mask": np.ones((1, total), np.int64),
                "position_ids": np.arange(taken, total)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            request.infer({name: value for name, value in every.items() if name in self._names})
            taken = total
            logits: np.ndarray[Any, Any] = request.get_tensor("logits").data[0]
            return logits

        return feed

    def time(self, prompt: list[int], count: int) -> Speed:
        """Greedy choice in this process, the same for every file."""
        feed = self._feed()
        start = time.process_time()
        logits = feed(prompt)
        begun = time.process_time()
        for _ in range(count):
            logits = feed([int(logits[-1].argmax())])
        return Speed(len(prompt) / (begun - start), count / (time.process_time() - begun))

    def log_probabilities(self, ids: list[int], count: int) -> Tensor:
        """One id after the other, as a model generates."""
        feed = self._feed()
        found = [torch.from_numpy(np.array(feed([index])[-1])).double() for index in ids]
        return torch.stack(found[-count:]).log_softmax(-1)


RUNNERS: dict[str, Callable[[Path], Runner]] = {
    "llama.cpp": LlamaCppRunner,
    "onnxruntime-genai": GenAIRunner,
    "openvino": OpenVinoRunner,
}

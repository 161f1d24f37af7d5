"""A language model with packed weights, and a record of how each was made."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.evaluate.perplexity import Evaluation, evaluate
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLinear
from sparsebit.llm.tokens import Text, as_ids
from sparsebit.llm.weights.uses import stores_transposed
from sparsebit.numerics.packed import PackedTensor

if TYPE_CHECKING:
    from sparsebit.llm.proof import ExportReport


class Made(NamedTuple):
    """One matrix as it was packed, and how."""

    name: str  # of the parameter in the model; followed by "[3]" for the third of stacked experts
    held: PackedTensor | None  # None where it stays in float and was only pruned
    loss: float  # energy of the error in its outputs, relative to the energy of the outputs
    tokens: int  # of the calibration data that reached it
    remark: str = ""
    transposed: bool = False  # the parameter holds it as [in, out]


@dataclass(frozen=True)
class LayerRecord:
    """How one matrix was quantized, in words and numbers."""

    name: str
    code: str  # such as "int4_full"
    group_size: int | None
    bits: float  # per weight, scales and zero points counted
    loss: float
    tokens: int
    remark: str = ""


@dataclass(eq=False)
class LanguageModel:
    """The result of ``sparsebit.llm.quantize``: an ordinary module whose linear layers hold packed weights.

    Attributes:
        model: the module; call it, ``generate`` with it, or move it like any other.
        weights: every quantized matrix by its name in the original state dict.
        records: how each was made, in the order of the model.
        tokenizer: of the folder the model came from, where there was one.
    """

    model: nn.Module
    weights: dict[str, PackedTensor]
    records: list[LayerRecord]
    tokenizer: Any = None
    ignored: dict[str, str] = field(default_factory=dict)  # weights left in float, with the reason

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module."""
        return self.model(*args, **kwargs)

    def add(self, made: Iterable[Made]) -> None:
        """Take in matrices: packed layers take the place of those that held them."""
        for one in made:
            held = one.held
            if held is None:
                self.records.append(
                    LayerRecord(one.name, "float32", None, 32.0, one.loss, one.tokens, one.remark)
                )
                continue
            self.weights[one.name] = held
            bits = 8 * held.nbytes / (held.shape[0] * held.shape[1])
            code, size = str(held.grid.code), held.grid.layout.group_size
            self.records.append(LayerRecord(one.name, code, size, bits, one.loss, one.tokens, one.remark))
            install(self.model, one.name, held)

    @property
    def bits(self) -> float:
        """Mean bits of a quantized weight, with scales and zero points."""
        sizes = [held.shape[0] * held.shape[1] for held in self.packed]
        return 8 * sum(held.nbytes for held in self.packed) / max(sum(sizes), 1)

    @property
    def packed(self) -> list[PackedTensor]:
        """Every packed matrix once, also where the head and the embedding are one."""
        return list({held.bits.data_ptr(): held for held in self.weights.values()}.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the model as they are held."""
        seen = {t.untyped_storage().data_ptr(): t.nbytes for t in self.model.state_dict().values()}
        return sum(seen.values())

    def evaluate(self, tokens: Text, *, reference: nn.Module | None = None, length: int = 2048) -> Evaluation:
        """Perplexity of token ids or a text, and divergence from ``reference``; see ``sparsebit.llm.evaluate``."""
        return evaluate(self.model, as_ids(tokens, self.tokenizer), reference=reference, length=length)

    def export(
        self, path: str | os.PathLike[str], format: str, *, ids: Tensor | None = None, **options: Any
    ) -> ExportReport:
        """Write the model for an engine, bit for bit, and load it there if the engine is installed.

        Args:
            path: a new folder, or the name of a new file for formats that are one file.
            format: "gguf" (llama.cpp), "onnxruntime-genai", "openvino", "gptq", or "compressed-tensors" (vLLM,
                SGLang, transformers).
            ids: token ids to compare predictions with; by default those of a sentence.
            options: of the format; "onnxruntime-genai" has ``rounding_budget``, what 8-bit activations may cost in
                nats (0.02) before layers are computed in float.

        Returns:
            what was written and what the engine read: ``print`` it, or test ``ok`` and ``proven``. A layer that the
            format cannot store exactly is an error, and nothing is written.
        """
        from sparsebit.llm.export_file import export_file

        return export_file(self, path, format, ids=ids, **options)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to a folder that ``LanguageModel.load`` reads: packed weights, records, tokenizer."""
        from sparsebit.llm.folders.saved_model import save_model

        save_model(self, folder)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that transformers loads with packed layers, after ``sparsebit.llm.register_transformers()``.

        Then ``AutoModelForCausalLM.from_pretrained(folder)`` gives the model, for generation and for adapters.
        """
        from sparsebit.llm.folders.pretrained import save_pretrained

        save_pretrained(self, folder)

    def save_tokenizer(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer's files, where there is one."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: nn.Module | None = None) -> LanguageModel:
        """Read what ``save`` wrote. No code in the folder is run.

        Args:
            folder: written by ``save``.
            model: the float model, for one that transformers does not make; its weights are not used, it is unchanged.
        """
        from sparsebit.llm.folders.saved_model import load_model

        return load_model(folder, model)


def install(model: nn.Module, name: str, held: PackedTensor) -> None:
    """Put a packed weight in the place of the module that holds the parameter ``name``.

    Parameters of modules without a packed form (stacked experts) get the numbers of the grid instead, in float.
    """
    path, _, key = name.partition("[")[0].rpartition(".")
    module = model.get_submodule(path)
    packed: nn.Module
    if key == "weight" and isinstance(module, nn.Embedding):
        packed = PackedEmbedding(held, float(getattr(module, "scalar_embed_scale", 1.0)))
    elif key == "weight" and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"):
        packed = PackedLinear(held, getattr(module, "bias", None), transposed=stores_transposed(module))
    else:
        if getattr(module, key).is_meta:  # a model that is being loaded
            setattr(module, key, nn.Parameter(torch.empty(getattr(module, key).shape), requires_grad=False))
        target = getattr(module, key).data
        target = target[int(name.partition("[")[2][:-1])] if "[" in name else target
        numbers = held.numbers(target.dtype)
        turned = target.shape != numbers.shape or stores_transposed(module)
        target.copy_(numbers.T if turned else numbers)
        return
    above, _, last = path.rpartition(".")
    setattr(model.get_submodule(above), last, packed)


def require_no_adapters(model: LanguageModel, what: str) -> None:
    """Raise where layers hold adapters, which only peft's files have a place for."""
    adapted = [name for name, one in model.model.named_modules() if "lora_A" in one._parameters]
    if adapted:
        raise SparsebitError(
            f"the model has adapters, which {what} does not store",
            where=adapted[0],
            hint="write them with save_lora(model, folder), then call remove_lora(model)",
        )


def require_language_model(model: object) -> None:
    """Raise for anything but a quantized language model."""
    if not isinstance(model, LanguageModel):
        raise SparsebitError(
            f"{type(model).__name__} is not a quantized language model",
            expected="what sparsebit.llm.quantize or LanguageModel.load returns",
        )

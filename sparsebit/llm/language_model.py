"""A language model with packed weights, and a record of how each was quantized."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.evaluate.perplexity import Evaluation, evaluate
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLayer, PackedLinear
from sparsebit.llm.packed.plain_linear import multiplies_only
from sparsebit.llm.packed.stack import PackedStack
from sparsebit.llm.tokens import Text, as_ids, write_tokenizer
from sparsebit.numerics.packed import PackedTensor

if TYPE_CHECKING:
    from sparsebit.llm.proof import ExportReport


class Made(NamedTuple):
    """One packed matrix, and how it was quantized."""

    name: str  # of the parameter in the model; with "[3]" for one of stacked experts
    held: PackedTensor | None  # None if it stays in float and was only pruned
    loss: float  # energy of the error in its outputs, relative to the energy of the outputs
    tokens: int  # calibration tokens that reached it
    remark: str = ""
    transposed: bool = False  # the parameter holds it as [in, out]


@dataclass(frozen=True)
class LayerRecord:
    """How one matrix was quantized: settings and measured error."""

    name: str
    code: str  # such as "int4_full"
    group_size: int | None
    bits: float  # per weight, including scales and zero points
    loss: float
    tokens: int
    remark: str = ""
    transposed: bool = False  # the parameter holds it as [in, out]


@dataclass(eq=False, repr=False)
class LanguageModel:
    """The result of ``sparsebit.llm.quantize``: an ordinary module whose linear layers hold packed weights.

    Attributes:
        model: the module; call it, ``generate`` with it, or move it like any other.
        weights: every quantized matrix by its name in the original state dict.
        records: how each was made, in the order of the model.
        tokenizer: that of the model's folder, if there is one.
    """

    model: nn.Module
    weights: dict[str, PackedTensor]
    records: list[LayerRecord]
    tokenizer: Any = None
    ignored: dict[str, str] = field(default_factory=dict)  # weights left in float, with the reason
    prepared: tuple[str, ...] = ()  # the methods that changed float weights before they were quantized

    def __repr__(self) -> str:
        weights = f"{len(self.weights)} weights in {self.bits:.2f} bits each, including scales"
        return f"LanguageModel({type(self.model).__name__}: {weights}; {self.nbytes / 1e6:.1f} MB)"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module."""
        return self.model(*args, **kwargs)

    def add(self, made: Iterable[Made]) -> None:
        """Add matrices: packed layers replace the layers that held them."""
        packed: dict[str, PackedTensor] = {}
        for one in made:
            code, size, bits, held = "float32", None, 32.0, one.held
            if held is not None:
                packed[one.name] = held
                code, size = str(held.grid.code), held.grid.layout.group_size
                bits = 8 * held.nbytes / (held.shape[0] * held.shape[1])
            self.records.append(
                LayerRecord(one.name, code, size, bits, one.loss, one.tokens, one.remark, one.transposed)
            )
        install(self.model, packed, self.transposed)
        self.weights |= packed

    @property
    def transposed(self) -> set[str]:
        """The matrices that the model holds as [in, out]; packed ones are always [out, in]."""
        return {record.name for record in self.records if record.transposed}

    @property
    def bits(self) -> float:
        """Mean bits per quantized weight, including scales and zero points."""
        sizes = [held.shape[0] * held.shape[1] for held in self.packed]
        return 8 * sum(held.nbytes for held in self.packed) / max(sum(sizes), 1)

    @property
    def packed(self) -> list[PackedTensor]:
        """Every packed matrix once, even if the head and the embedding share it."""
        return list({held.bits.data_ptr(): held for held in self.weights.values()}.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the model as stored in memory."""
        seen = {t.untyped_storage().data_ptr(): t.nbytes for t in self.model.state_dict().values()}
        return sum(seen.values())

    def evaluate(
        self,
        tokens: Text,
        *,
        reference: nn.Module | None = None,
        length: int = 2048,
        stride: int | None = None,
    ) -> Evaluation:
        """Perplexity of token ids or a text, and divergence from ``reference``; see ``sparsebit.llm.evaluate``."""
        ids = as_ids(tokens, self.tokenizer)
        return evaluate(self.model, ids, reference=reference, length=length, stride=stride)

    def export(
        self, path: str | os.PathLike[str], format: str, *, ids: Tensor | None = None, **options: Any
    ) -> ExportReport:
        """Write the model for an engine, bit for bit, and load it there if the engine is installed.

        Args:
            path: a new folder, or the name of a new file for formats that are one file.
            format: "gguf" (llama.cpp), "onnxruntime-genai", "openvino", "gptq", or "compressed-tensors" (vLLM,
                SGLang, transformers).
            ids: token ids to compare predictions with; by default those of a sentence.
            options: of the format; "onnxruntime-genai" has ``rounding_budget``, the nats that 8-bit activations
                may cost (0.02) before layers are computed in float.

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
        """Write the tokenizer's files, if there is one."""
        if self.tokenizer is not None:
            write_tokenizer(self.tokenizer, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: nn.Module | None = None) -> LanguageModel:
        """Read what ``save`` wrote. No code in the folder is run.

        Args:
            folder: written by ``save``.
            model: the float model, if transformers cannot build it; its weights are not used, and it is unchanged.
        """
        from sparsebit.llm.folders.saved_model import load_model

        return load_model(folder, model)


def install(model: nn.Module, weights: Mapping[str, PackedTensor], transposed: Collection[str]) -> None:
    """Install packed weights, by the names of their parameters, in place of the modules that hold them.

    All experts of a stack ("experts.down[3]") have to be there. A parameter of a module without a packed form gets the
    dequantized values instead, in float. The model holds those named in ``transposed`` as [in, out].
    """
    stacks: dict[str, dict[str, PackedTensor]] = {}
    for name, held in weights.items():
        parameter, bracket, index = name.partition("[")
        if bracket:
            stacks.setdefault(parameter, {})[index.removesuffix("]")] = held
        else:
            _install_matrix(model, name, held, name in transposed)
    for name, experts in stacks.items():
        path, _, key = name.rpartition(".")
        module = model.get_submodule(path)
        expected = [str(index) for index in range(len(getattr(module, key)))]
        if different := set(expected) ^ set(experts):
            raise SparsebitError(
                f"expert {min(different)!r} of {name!r} is missing, or the model does not have it"
            )
        in_order = [experts[index] for index in expected]
        delattr(module, key)
        setattr(module, key, PackedStack(in_order, transposed=f"{name}[0]" in transposed))


def _install_matrix(model: nn.Module, name: str, held: PackedTensor, transposed: bool) -> None:
    path, _, key = name.rpartition(".")
    module = model.get_submodule(path)
    packed: nn.Module
    if key == "weight" and isinstance(module, nn.Embedding):
        packed = PackedEmbedding(held, _factor(module))
    elif key == "weight" and (type(module).__name__ == "Conv1D" if transposed else multiplies_only(module)):
        packed = PackedLinear(held, getattr(module, "bias", None), transposed=transposed)
    else:
        if getattr(module, key).is_meta:  # while a model is loaded
            setattr(module, key, nn.Parameter(torch.empty(getattr(module, key).shape), requires_grad=False))
        numbers = held.numbers()
        getattr(module, key).data.copy_(numbers.T if transposed else numbers)
        return
    above, _, last = path.rpartition(".")
    setattr(model.get_submodule(above), last, packed)


def _factor(embedding: nn.Embedding) -> float:
    """What a scaled embedding multiplies its rows by: Gemma's, and BART's."""
    if type(embedding).forward is nn.Embedding.forward:
        return 1.0
    return float(
        getattr(embedding, "scalar_embed_scale", None) or getattr(embedding, "embed_scale", None) or 1.0
    )


def is_quantized(model: object) -> bool:
    """Whether this is a quantized language model, or a module with packed layers."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    return isinstance(model, LanguageModel) or any(isinstance(part, PackedLayer) for part in parts)


def require_language_model(model: object) -> None:
    """Raise for anything but a quantized language model."""
    if not isinstance(model, LanguageModel):
        raise SparsebitError(
            f"{type(model).__name__} is not a quantized language model",
            expected="what sparsebit.llm.quantize or LanguageModel.load returns",
        )

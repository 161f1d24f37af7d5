"""The tensors of a model as a GGUF file stores them: names, order of rows, stacks of experts.

Quantized matrices keep their bytes. If llama.cpp needs rows in another order, complete rows move, so no value changes.
This concerns architectures that rotate neighbouring channels where transformers rotates halves, and fused matrices of
query, key and value that the model stores head by head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.format import float_state
from sparsebit.llm.formats.gguf.blocks import block_type, pack_blocks
from sparsebit.llm.formats.gguf.families import Family, head_width
from sparsebit.llm.formats.gguf.settings import key_value_heads
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.weights.uses import stores_transposed


class StoredTensor(NamedTuple):
    """One tensor of the file: float32 values, or the bytes of blocks."""

    name: str
    values: Tensor
    kind: str = "F32"


def stored_tensors(model: LanguageModel, family: Family, names: Any) -> Iterator[StoredTensor]:
    """Every tensor of a model; ``names`` is gguf's map from transformers names to those of the file."""
    module, once = model.model, family.head != "own"
    config: Any = module.config
    stacks = {name.partition("[")[0] for name in model.weights if "[" in name}
    for name, tensor in float_state(module, once=once).items():
        if name not in stacks and name not in model.weights:  # some modules have no packed form
            values = float_values(module, name, tensor, family)
            yield from placed(name, values, "F32", config, family, names)
    written: set[int] = set()
    for name, held in model.weights.items():
        stack = name.partition("[")[0]
        if (once and held.bits.data_ptr() in written) or not name.endswith(("[0]", ".weight")):
            continue  # a head tied to the embedding, or an expert of a stack
        written.add(held.bits.data_ptr())
        kind = block_type(held)
        values = pack_blocks(held, kind)
        if stack in stacks:
            count = sum(other.startswith(f"{stack}[") for other in model.weights)
            values = torch.stack(
                [pack_blocks(model.weights[f"{stack}[{index}]"], kind) for index in range(count)]
            )
        yield from placed(stack, values, kind, config, family, names)


def float_values(module: nn.Module, name: str, tensor: Tensor, family: Family) -> Tensor:
    """A float tensor as [out, in], with the values that llama.cpp multiplies by."""
    values = tensor.float()
    if values.dim() > 1 and stores_transposed(module.get_submodule(name.rpartition(".")[0])):
        values = values.transpose(-1, -2)
    return values + 1 if family.norms_add_one and name.endswith("norm.weight") else values


def placed(
    name: str, values: Tensor, kind: str, config: Any, family: Family, names: Any
) -> Iterator[StoredTensor]:
    """Tensors under the names of the file, with rows in its order."""
    if name.endswith("experts.gate_up_proj"):
        down = file_name(names, name.replace("gate_up_proj", "down_proj"))
        for part, half in zip(("gate", "up"), values.chunk(2, 1), strict=True):
            yield StoredTensor(f"{down.replace('down', part)}.weight", half, kind)
    elif name.endswith("experts.down_proj"):
        yield StoredTensor(f"{file_name(names, name)}.weight", values, kind)
    else:
        rows = row_order(name, config, family)
        yield StoredTensor(file_name(names, name), values if rows is None else values[rows], kind)


def row_order(name: str, config: Any, family: Family) -> Tensor | None:
    """For each row of the file, its row in the original; None if the order is the same.

    Example:
        >>> from types import SimpleNamespace
        >>> from sparsebit.llm.formats.gguf.families import FAMILIES
        >>> config = SimpleNamespace(
        ...     model_type="llama", num_attention_heads=2, hidden_size=8, num_key_value_heads=2, head_dim=4
        ... )
        >>> row_order("model.layers.0.self_attn.q_proj.weight", config, FAMILIES["llama"])
        tensor([0, 2, 1, 3, 4, 6, 5, 7])
    """
    layer = name.rpartition(".")[0]
    width, heads, shared = head_width(config), config.num_attention_heads, key_value_heads(config)
    if family.rotates_neighbours and layer.endswith((".q_proj", ".k_proj")):
        count = heads if layer.endswith(".q_proj") else shared
        return torch.arange(count * width).view(count, 2, width // 2).transpose(1, 2).flatten()
    if family.splits_by_head and layer.endswith(".query_key_value"):
        # Each key head follows the queries that use it and precedes its values.
        rows = torch.arange((heads + 2 * shared) * width).view(shared, heads // shared + 2, width)
        return torch.cat([rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()])
    return None


def file_name(names: Any, name: str) -> str:
    """The name of a tensor in the file; an unknown tensor is an error."""
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise SparsebitError(f"gguf has no name for the tensor {name!r}", hint="choose another format")
    return str(found)

"""Rotation: put the residual stream and the values of attention into a basis without outlier channels.

Ashkboos et al., "QuaRot" (arXiv 2404.00456), the part without a cost at run time: R1 rotates the hidden states between
the blocks, R2 the values of each head. Both fold into the weights around them. A norm must commute with R1: its weight
is folded into its readers, and an RMS norm then commutes; norms that subtract a mean are refused. Products are made in
float64, and the rotated block is compared with the original one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.config.llm.methods import RotateSettings
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.blocks.channel_sources import ChannelSource, find_channel_source, is_same
from sparsebit.llm.blocks.measure import stored
from sparsebit.llm.blocks.route import Route
from sparsebit.llm.blocks.stages import find_stages
from sparsebit.llm.methods.preparation import PrepareBlock
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.solver import SpecOf
from sparsebit.llm.weights.uses import Matrix


@METHODS.register("rotate")
class Rotate(RotateSettings):
    """The method; its settings are documented where they are declared."""

    @torch.no_grad()
    def start(self, model: nn.Module, route: Route) -> PrepareBlock:
        """Turn embedding and head, and return what turns a block."""
        if not route.direct:
            raise _refusal(
                f"{type(model).__name__} computes something between its blocks, or calls one again"
            )
        embedding, head = _ends(model)
        size = embedding.weight.shape[1]
        rotation = make_rotation(size, self.seed).to(embedding.weight.device)
        norm = _final_norm(model, route, size)
        probe = torch.randn(4, size, generator=torch.Generator().manual_seed(0)).to(rotation.device)
        wanted = head(norm(probe))
        weight = head.weight.double() * norm.weight.double()
        # New tensors: those of the user's module are shared with this one, and a tied head is no longer the embedding.
        head.weight = nn.Parameter((weight @ rotation).float(), requires_grad=False)
        embedding.weight = nn.Parameter((embedding.weight.double() @ rotation).float(), requires_grad=False)
        norm.weight = nn.Parameter(torch.ones_like(norm.weight), requires_grad=False)
        turned = head(norm((probe.double() @ rotation).float()))
        _require_same(turned, wanted, wanted, "the last norm and the head")
        config: Any = getattr(model, "config", None)
        if getattr(config, "tie_word_embeddings", False):
            config.tie_word_embeddings = False

        def prepare(runs: BlockRuns, spec_of: SpecOf) -> None:
            rotate_block(runs.first_sequence(), rotation, head_seed=self.seed if self.heads else None)

        return prepare


@torch.no_grad()
def rotate_block(runs: BlockRuns, rotation: Tensor, *, head_seed: int | None) -> None:
    """Rotate inputs and outputs of a block by ``rotation`` [hidden, hidden], and with a seed the values of each head.

    The block then runs on rotated hidden states.
    """
    block = runs.block
    parameters = dict(block.named_parameters())
    matrices = {name: parameter for name, parameter in parameters.items() if parameter.dim() == 2}
    plain = runs.on([(runs.hidden[0].double() @ rotation.T).float()])
    before = plain.run()
    stages = find_stages(plain, matrices)
    found = [
        (group, find_channel_source(plain, group, stages[:index]))
        for index, stage in enumerate(stages)
        for group in stage.groups
    ]
    norms: dict[str, float] = {}
    for group, source in found:
        is_norm = source is not None and parameters[source.names[0]].dim() == 1
        # A norm of another size is inside attention (DeepSeek), where nothing is rotated.
        if source is not None and is_norm and len(source.channels) == len(rotation):
            norms[source.names[0]] = source.offset
            norm = (parameters[source.names[0]].data + source.offset).double()
            for matrix in group.matrices:
                view = stored(parameters, matrix)
                view.copy_((view.double() * norm @ rotation).float())
            continue
        for matrix in group.matrices:
            if head_seed is not None and source is not None and not is_norm and len(group.matrices) == 1:
                _turn_heads(block, parameters, source, matrix, head_seed)
            view = stored(parameters, matrix)
            if len(view) == len(rotation):
                view.copy_((rotation.T @ view.double()).float())
                bias = parameters.get(f"{matrix.name.removesuffix('weight')}bias")
                if bias is not None:
                    bias.data.copy_((bias.data.double() @ rotation).float())
    for name, offset in norms.items():
        parameters[name].data.fill_(1.0 - offset)
    left = next(
        (f", in which {name} is not rotated," for name, one in parameters.items() if one.dim() == 3), ""
    )
    wanted = (before.double() @ rotation).float()
    _require_same(runs.run(), wanted, wanted - runs.hidden[0], f"a block{left}")


def _turn_heads(
    block: nn.Module, parameters: dict[str, Any], source: ChannelSource, matrix: Matrix, seed: int
) -> None:
    """Rotate the values of each head and the weight that reads them, if the source is the values of attention."""
    owners = (
        block.get_submodule(name.rpartition(".")[0].rpartition(".")[0])
        for name in (source.names[0], matrix.name)
    )
    value_owner, reader_owner = owners
    size = getattr(value_owner, "head_dim", 0)
    if value_owner is not reader_owner or not isinstance(size, int):
        return
    values, reader = parameters[source.names[0]].data, stored(parameters, matrix)
    if not size or source.transposed or len(values) % size or reader.shape[1] % size:
        return
    whole_heads = source.channels.reshape(-1, size)
    if not bool((whole_heads - whole_heads[:, :1] == torch.arange(size, device=values.device)).all()):
        return
    turn = make_rotation(size, seed + 1).to(values.device)
    for name in source.names:
        data = parameters[name].data
        heads = data.double().reshape(-1, size, *data.shape[1:])
        data.copy_(torch.einsum("ij,hi...->hj...", turn, heads).reshape(data.shape).float())
    columns = reader.double().reshape(len(reader), -1, size)
    reader.copy_((columns @ turn).reshape(reader.shape).float())


def make_rotation(size: int, seed: int) -> Tensor:
    """A random orthogonal matrix [size, size] in float64: Hadamard for the factor that is a power of two, random signs.

    Example:
        >>> turn = make_rotation(12, 0)
        >>> bool(torch.allclose(turn @ turn.T, torch.eye(12, dtype=torch.float64), atol=1e-12))
        True
    """
    generator = torch.Generator().manual_seed(seed)
    odd = size
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while odd % 2 == 0:
        odd //= 2
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    rest = torch.linalg.qr(torch.randn(odd, odd, dtype=torch.float64, generator=generator)).Q.contiguous()
    signs = torch.randint(2, (size,), generator=generator).double() * 2 - 1
    return torch.kron(hadamard / len(hadamard) ** 0.5, rest) * signs[:, None]


def _ends(model: nn.Module) -> tuple[nn.Embedding, nn.Linear]:
    """The embedding and the head."""
    found = [getattr(model, f"get_{name}_embeddings", lambda: None)() for name in ("input", "output")]
    if isinstance(found[0], nn.Embedding) and isinstance(found[1], nn.Linear):
        return found[0], found[1]
    raise _refusal(f"{type(model).__name__} does not say which layers are its embedding and its head")


def _final_norm(model: nn.Module, route: Route, size: int) -> Any:
    """The one norm outside the blocks."""
    inside = tuple(f"{name}." for name in route.names)
    norms = [
        name
        for name, parameter in model.named_parameters()
        if parameter.shape == (size,) and name.endswith(".weight") and not name.startswith(inside)
    ]
    if len(norms) != 1:
        raise _refusal(f"{type(model).__name__} has {len(norms)} norms outside its blocks")
    return model.get_submodule(norms[0].rpartition(".")[0])


def _require_same(got: Tensor, wanted: Tensor, at_stake: Tensor, what: str) -> None:
    if not is_same(got, wanted, at_stake):
        change = float((got - wanted).norm() / at_stake.norm().clamp(min=1e-30))
        raise _refusal(f"{what} computes a different result in a rotated basis (it changed by {change:.2g})")


def _refusal(message: str) -> SparsebitError:
    return SparsebitError(
        f"rotate: {message}",
        expected="a decoder with RMS norms before attention and MLP and one before the head, such as Llama or Qwen",
        hint="leave rotate out of METHOD",
    )

"""The source of a model's weights: a module in memory, or a folder of safetensors read block by block."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparsebit.errors import ArtifactError, SparsebitError
from sparsebit.graph.capture.unwrap import unwrap
from sparsebit.graph.copies import copy_module
from sparsebit.llm.blocks.find import find_stacks
from sparsebit.llm.folders.folder_config import offline, read_config, require_plain_files
from sparsebit.llm.folders.stored_tensors import StoredTensors, open_tensors
from sparsebit.numerics.finite import is_finite
from sparsebit.storage import Fields
from sparsebit.storage.json_text import read_json
from sparsebit.storage.text_file import read_bytes

LONGEST = 2**26  # positions of a table that a model computes when it is built
MOST_INDEX = 2**28  # bytes
LARGE = 2**16  # elements from which a tensor is not loaded until it is needed


class WeightSource:
    """A model whose blocks get their float weights one at a time, as tensors that may be overwritten.

    Attributes:
        tied: parameters of blocks that are also an earlier parameter of the blocks, with the name of that one.

    The user's module is never changed: it is copied without the tensors of its blocks, and each block gets copies of
    its tensors when it is processed.
    """

    def __init__(
        self,
        model: nn.Module,
        stored: StoredTensors | None,
        folder: Path | None,
        device: str | torch.device | None = None,
    ) -> None:
        self.model, self.folder = model, folder
        self._device = device  # of the tensors of a folder
        run_experts_in_turn(model)
        separate_blocks(model)
        self.blocks = tuple(name for stack in find_stacks(model) for name in stack.names)
        self.tied = _tied(model, self.blocks)
        self._stored = stored
        self._filled: set[str] = set()  # blocks with weights of their own
        self._buffers: dict[str, Tensor] = {}
        self._note_buffers(name for name, one in model.named_buffers() if not one.is_meta)

    @classmethod
    def open(
        cls, origin: nn.Module | str | os.PathLike[str], device: str | torch.device = "cpu"
    ) -> WeightSource:
        """Open a module where it is, or a folder that ``save_pretrained`` wrote, whose tensors go to ``device``."""
        if isinstance(origin, nn.Module):
            return cls(twin_of(float_module(origin)), None, None)
        folder = Path(origin)
        files = tensor_files(folder)
        model = empty_model(folder, len(files))
        stored = StoredTensors(files, model)
        for name, buffer in list(model.named_buffers(remove_duplicate=False)):
            if not buffer.is_meta:  # computed, and not in the folder
                put(model, name, buffer.to(device))
        for name in sorted(_computed(model, stored)):
            put(model, name, _compute(model, name).to(device))
        source = cls(model, stored, folder, device)
        inside = tuple(f"{name}." for name in source.blocks)
        source._load([name for name in _expected(model, stored) if not name.startswith(inside)])
        if hasattr(model, "tie_weights"):
            model.tie_weights()  # type: ignore[operator]
        return source

    @property
    def device(self) -> torch.device:
        """Where token ids go: for a module, the device of the first weight that is not on its way."""
        if self._device is not None:
            return torch.device(self._device)
        parameters = (one.device for one in self.model.parameters() if not one.is_meta)
        return next(parameters, torch.device("cpu"))

    def fill(self, name: str) -> nn.Module:
        """The block of this name, with its own float32 weights."""
        block = self.model.get_submodule(name)
        if self._stored is None:
            for module in block.modules():
                for key, parameter in module.named_parameters(recurse=False):
                    dtype = torch.float32 if parameter.is_floating_point() else parameter.dtype
                    own = parameter.detach().to(dtype, copy=True)
                    setattr(module, key, nn.Parameter(own, requires_grad=False))
        else:
            names = [f"{name}.{key}" for key in block.state_dict()]
            missing = [one for one in names if one in self.tied and one not in self._stored]
            self._load([one for one in names if one not in missing])
            for one in missing:  # a folder holds a shared tensor under its first name
                for _, tensor, _ in self._stored.read([self.tied[one]]):
                    put(self.model, one, tensor.clone())
        for one, first in self.tied.items():
            if one.startswith(f"{name}.") and first.startswith(f"{name}."):
                path, _, key = one.rpartition(".")
                setattr(self.model.get_submodule(path), key, self.model.get_parameter(first))
        self._filled.add(name)
        return block.eval()

    @contextmanager
    def lend(self, name: str) -> Iterator[nn.Module]:
        """The block of this name as it is if it was filled before, else with float weights until the context ends."""
        block = self.model.get_submodule(name)
        if name in self._filled:
            yield block
            return
        before = [
            (one, key, tensor)
            for one in block.modules()
            for held in (one._parameters, one._buffers)
            for key, tensor in held.items()
        ]
        try:
            yield self.fill(name)
        finally:
            for one, key, tensor in before:
                setattr(one, key, tensor)
            self._filled.discard(name)

    def restore_buffers(self) -> None:
        """Give buffers that the model changed while it ran (a counter, a running mean) their first values."""
        for name, value in self._buffers.items():
            path, _, key = name.rpartition(".")
            held = self.model.get_submodule(path)._buffers
            now = held.get(key)
            if now is not None and not torch.equal(now, value):
                held[key] = value

    def _note_buffers(self, names: Iterable[str]) -> None:
        self._buffers |= {name: self.model.get_buffer(name).clone() for name in names}

    def _load(self, names: list[str]) -> None:
        assert self._stored is not None
        missing = set(names)
        for name, tensor, path in self._stored.read(names):
            require_fits(self.model, name, tensor, str(path))
            # A copy: a view would keep every touched page of the mapped file in memory.
            put(self.model, name, tensor.to(self._device, copy=True))
            missing.discard(name)
        if missing:
            raise _no_tensor(self.folder or "", min(missing))
        self._note_buffers(set(names) & {name for name, _ in self.model.named_buffers()})


def _tied(model: nn.Module, blocks: Sequence[str]) -> dict[str, str]:
    """Parameters of blocks that are there under an earlier name too (Zamba's), with that name."""
    inside = tuple(f"{name}." for name in blocks)
    first: dict[int, str] = {}
    found = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        if name.startswith(inside) and first.setdefault(id(one), name) != name:
            found[name] = first[id(one)]
    return found


def _expected(model: nn.Module, stored: StoredTensors) -> list[str]:
    """The tensors that a folder must contain for a model; tied and computed ones may be missing."""
    missing = set(getattr(model, "all_tied_weights_keys", None) or ()) | _computed(model, stored)
    return [name for name in model.state_dict() if name not in missing or name in stored]


def _computed(model: nn.Module, stored: StoredTensors) -> set[str]:
    """Tables that transformers never saves and computes when it loads a model (the positions of Marian)."""
    unsaved: set[str] = getattr(model, "_keys_to_ignore_on_save", None) or set()
    return {name for name in unsaved & set(model.state_dict()) if name not in stored}


def _compute(model: Any, name: str) -> Tensor:
    """The values that a model initializes a tensor with."""
    path, _, key = name.rpartition(".")
    module = copy.deepcopy(model.get_submodule(path)).to_empty(device="cpu")
    with torch.random.fork_rng(devices=[]):
        model._init_weights(module)
    found: Tensor = getattr(module, key).detach()
    return found


def _no_tensor(folder: str | os.PathLike[str], name: str) -> SparsebitError:
    return SparsebitError(
        f"{os.fspath(folder)!r} has no tensor {name!r}",
        expected="the names of the model's own state dict",
        hint="load it with transformers and pass the module: AutoModelForCausalLM.from_pretrained(folder)",
    )


def twin_of(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose blocks share the model's tensors until they are replaced.

    All else is float32, as in the blocks and in models from folders. Buffers follow where parameters have their dtype.
    """
    blocks = [block for stack in find_stacks(model) for block in stack.modules]
    shared = {id(tensor): tensor for block in blocks for tensor in block.parameters()}
    others = {one.dtype for one in model.parameters() if one.is_floating_point()} - {torch.float32}
    made = copy_module(model, dict(shared)).eval()
    for tensor in [*made.parameters(), *made.buffers()]:
        if tensor.dtype in others and id(tensor) not in shared:
            tensor.data = tensor.data.float()
    return made


def separate_blocks(model: nn.Module) -> None:
    """Give each block a copy of a module that several blocks hold; they go on sharing its parameters."""
    seen: set[nn.Module] = set()

    def separate(parent: nn.Module) -> None:
        for key, child in parent.named_children():
            if child in seen and next(child.parameters(), None) is not None:
                held = {id(tensor): tensor for tensor in child.parameters()}
                setattr(parent, key, copy.deepcopy(child, held))
            else:
                separate(child)

    for stack in find_stacks(model):
        for block in stack.modules:
            separate(block)
            seen.update(block.modules())


def run_experts_in_turn(model: Any) -> None:
    """Run experts one after the other, so that each can be measured and sums are reproducible."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Set a tensor by its dotted name, in float32 if it is floating-point."""
    path, _, key = name.rpartition(".")
    module = model.get_submodule(path)
    value = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
    if key in module._parameters:
        value = nn.Parameter(value, requires_grad=False)
    setattr(module, key, value)


def tensor_at(model: nn.Module, name: str, where: str) -> Tensor:
    """The model's tensor for a name in a folder."""
    path, _, key = name.rpartition(".")
    try:
        found = getattr(model.get_submodule(path), key)
    except AttributeError:
        found = None
    if not isinstance(found, Tensor):
        raise ArtifactError(f"the model has no tensor {name!r}, which the folder holds", where=where)
    return found


def require_fits(model: nn.Module, name: str, tensor: Tensor, where: str) -> None:
    """Raise unless the model has a tensor of this name, shape and kind, and parameters are finite."""
    found = tensor_at(model, name, where)
    if found.shape != tensor.shape:
        raise ArtifactError(
            f"{name!r} has another shape in the folder",
            where=where,
            expected=str(tuple(found.shape)),
            got=str(tuple(tensor.shape)),
        )
    if found.is_floating_point() != tensor.is_floating_point():
        expected = "floating-point numbers" if found.is_floating_point() else "integers"
        raise ArtifactError(
            f"{name!r} has another type", where=where, expected=expected, got=str(tensor.dtype)
        )
    if isinstance(found, nn.Parameter) and not is_finite(tensor):
        raise ArtifactError(f"{name!r} holds NaN or infinite values", where=where)


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of each tensor in a safetensors folder."""
    if not folder.is_dir():
        raise SparsebitError(
            f"there is no folder {os.fspath(folder)!r}", expected="a folder with config.json"
        )
    require_plain_files(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            said = Fields(read_json(read_bytes(index, MOST_INDEX), index), str(index))
        except OSError as error:
            raise ArtifactError(f"{index} cannot be read: {error.strerror or error}") from None
        names = said.names("weight_map")
        if outside := next((file for file in names.values() if Path(file).name != file), None):
            raise ArtifactError(
                "the index of the weights names a file outside the folder",
                where=str(index),
                got=f"{outside[:80]!r}",
            )
        return {name: folder / file for name, file in names.items()}
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise SparsebitError(
            f"{os.fspath(folder)!r} holds no *.safetensors",
            expected="a folder that save_pretrained wrote",
            hint="other formats: load with transformers and pass the module",
        )
    found: dict[str, Path] = {}
    for path in paths:
        with open_tensors(path) as file:
            found.update(dict.fromkeys(file.keys(), path))
    return found


class LeaveLargeEmpty(TorchFunctionMode):
    """Creates large tensors without memory; small ones, and all computed buffers, are real.

    Args:
        stored: how many tensors the files hold. A config that needs many times as many is an error, raised before
            they are all created.
    """

    def __init__(self, stored: int) -> None:
        super().__init__()
        self.left = 1000 + 8 * stored

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones, torch.randn) and kwargs.get("device") is None:
            self.left -= 1
            if self.left < 0:
                raise ArtifactError("the config describes a larger model than the files hold")
            shape = torch.Size(args[0] if args and isinstance(args[0], (tuple, list)) else args)
            if shape.numel() >= LARGE:
                kwargs["device"] = "meta"
        if (
            func is torch.arange
            and max((x for x in args if isinstance(x, (int, float))), default=0) > LONGEST
        ):
            raise ArtifactError("the config describes a table of positions that is too long", got=str(args))
        return func(*args, **kwargs)


def empty_model(folder: Path, stored: int) -> nn.Module:
    """The model that a folder's config.json describes, with its large tensors still without memory.

    No code of the folder is run. ``stored`` is how many tensors its files hold.
    """
    config = read_config(folder)
    held = getattr(config, "quantization_config", None)
    if isinstance(held, dict):
        raise ArtifactError(
            "the weights of this folder are quantized already",
            where=os.fspath(folder),
            got=f"quantization_config with quant_method {held.get('quant_method')!r}",
            hint="pass the folder of the float model",
        )
    with making_empty(stored, "the model of this folder", str(folder)):
        kind = _class_for(config)
        make = getattr(kind, "_from_config", None) or kind.from_config
        model: nn.Module = make(config, dtype=torch.float32)
    return model.eval()


@contextmanager
def making_empty(stored: int, what: str, where: str) -> Iterator[None]:
    """A context in which transformers creates large tensors without memory; its errors become ours."""
    try:
        with LeaveLargeEmpty(stored), offline():
            yield
    except Exception as error:  # transformers passes on whatever its config classes raise
        raise ArtifactError(f"transformers cannot build {what}", where=where, got=str(error)[:200]) from error


def float_module(model: nn.Module) -> nn.Module:
    """The model inside its wrappers; an error if it holds adapters, or weights that are NaN or without values."""
    model = unwrap(model)
    if name := next((n for n, one in model.named_modules() if isinstance(one, torch.jit.ScriptModule)), None):
        raise SparsebitError(
            "weights of TorchScript modules cannot be replaced",
            where=name,
            hint="pass the module that was given to torch.jit.script or torch.jit.trace",
        )
    if callable(getattr(model, "merge_and_unload", None)):
        raise SparsebitError(
            f"a {type(model).__name__} contains adapters in addition to its weights",
            hint="pass model.merge_and_unload(), or quantize the base model and add adapters to the result",
        )
    if empty := next((n for n, p in model.named_parameters() if p.is_meta), None):
        raise SparsebitError(
            f"{empty!r} of the model has a shape but no values (device 'meta')",
            hint="load the model's weights, or pass the folder they are in",
        )
    if bad := next((n for n, p in model.named_parameters() if not is_finite(p)), None):
        raise SparsebitError(
            f"{bad!r} of the model holds NaN or infinite values",
            hint="load the model again, or train it in float32",
        )
    return model


def load_module(folder: str | os.PathLike[str]) -> nn.Module:
    """The float model of a folder, completely in memory. No code in the folder is run."""
    files = tensor_files(Path(folder))
    # transformers would make any number of layers, and give random numbers to those that the folder does not hold.
    empty = empty_model(Path(folder), len(files))
    stored = StoredTensors(files, empty)
    if missing := next((name for name in _expected(empty, stored) if name not in stored), None):
        raise _no_tensor(folder, missing)
    try:
        made = _class_for(read_config(folder))
        with offline():
            model: nn.Module = made.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    except ArtifactError:
        raise
    except Exception as error:  # transformers passes on whatever its config classes raise
        raise ArtifactError(
            "transformers cannot load a float model from this folder",
            where=os.fspath(folder),
            expected="a folder that save_pretrained wrote",
            got=str(error)[:200],
        ) from error
    return model.eval()


def stored_dtype(folder: str | os.PathLike[str]) -> torch.dtype | None:
    """The dtype of the weights in a folder according to its config; None if it gives none."""
    named = getattr(read_config(folder), "dtype", None)
    return named if isinstance(named, torch.dtype) else None


def _class_for(config: Any) -> Any:
    """The transformers class that a config names, such as an encoder; otherwise the causal model of its type."""
    import transformers

    named = getattr(transformers, (config.architectures or [""])[0], None)
    known = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    return named if known else transformers.AutoModelForCausalLM

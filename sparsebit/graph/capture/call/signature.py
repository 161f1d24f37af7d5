"""How a captured graph is called: the model's own signature around flat tensor inputs and outputs."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from sparsebit.graph.capture.call.input_size import InputSize
from sparsebit.graph.capture.call.match import match_leaves
from sparsebit.graph.capture.call.structure import (
    Constant,
    Leaf,
    Tree,
    flatten,
    leaves_of,
    shift,
    unflatten,
    with_limits,
)
from sparsebit.graph.codegen import SafeCodeGen


def _is_literal(value: Any) -> bool:
    """Whether ``repr`` of a value is valid source text; torch.fx drops lines that contain its own marker texts."""
    if type(value) is str:
        return "#" not in value
    return value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value))


def is_tensor(value: Any) -> bool:
    """Whether a value is a leaf of the inputs."""
    return isinstance(value, torch.Tensor)


class CallSignature:
    """The parameters of ``forward``, and trees that locate the tensors in them.

    Immutable once built; copies of a graph share it.
    """

    def __init__(
        self, parameters: inspect.Signature, inputs: dict[str, Tree], output: Tree | None = None
    ) -> None:
        self.parameters = parameters
        self.inputs = inputs
        self.output: Tree = output if output is not None else Constant(None, "output")
        self.plain = all(isinstance(tree, Leaf) for tree in inputs.values())

    @classmethod
    def of_call(
        cls, parameters: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[CallSignature, list[torch.Tensor]]:
        """The signature of one example call, and its tensors in order."""
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        inputs: dict[str, Tree] = {}
        leaves: list[torch.Tensor] = []
        for name, value in bound.arguments.items():
            found, tree = flatten(value, name, is_tensor)
            inputs[name] = shift(tree, len(leaves))
            leaves += found
        return cls(parameters, inputs), leaves

    def rebuild_call(
        self, leaves: Sequence[Any], positional: int, keywords: Collection[str]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example call with other leaves, passed in the same way: for decorators the way may matter."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for index, (name, tree) in enumerate(self.inputs.items()):
            kind = self.parameters.parameters[name].kind
            value = unflatten(tree, tuple(leaves))
            if kind is inspect.Parameter.VAR_POSITIONAL:
                args += value
            elif kind is inspect.Parameter.VAR_KEYWORD:
                kwargs |= value
            elif index < positional and kind is not inspect.Parameter.KEYWORD_ONLY:
                args.append(value)
            elif name in keywords:
                kwargs[name] = value
        return tuple(args), kwargs

    def input_leaves(self) -> list[Leaf]:
        """What is known of each tensor of a call, in the order of the graph's placeholders."""
        found = (leaf for tree in self.inputs.values() for leaf in leaves_of(tree))
        return sorted(found, key=lambda leaf: leaf.index)

    def flatten_inputs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors of a call, in the order of the graph's placeholders."""
        bound = self.parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.leaves(*(bound.arguments[name] for name in self.inputs))

    def leaves(self, *values: Any) -> list[Any]:
        """The tensors of the values of all parameters; called by the generated ``forward``."""
        found: list[Any] = []
        for tree, value in zip(self.inputs.values(), values, strict=True):
            match_leaves(tree, value, found)
        return found

    def with_limits(
        self, sizes: Sequence[tuple[InputSize, ...]], reads_dtype: str | None = None
    ) -> CallSignature:
        """The same signature with what is known of its tensors: sizes in the order of the placeholders, and the line of
        the model that computes with their dtype.
        """
        inputs = {name: with_limits(tree, sizes, reads_dtype) for name, tree in self.inputs.items()}
        return CallSignature(self.parameters, inputs, self.output)

    def default(self, name: str) -> Any:
        """The default of a parameter; called by the generated ``forward`` if it is not a literal."""
        return self.parameters.parameters[name].default

    def build(self, flat: Sequence[Any]) -> Any:
        """The user's output structure around flat outputs; called by the generated ``forward``."""
        return unflatten(self.output, tuple(flat))

    def __deepcopy__(self, memo: dict[int, Any]) -> CallSignature:
        return self


def _another_kind(leaf: Leaf, variable: str) -> str:
    """A condition as source text: the tensor differs in kind from the example, or has a size that is not proven."""
    if leaf.anything:
        return f"{variable} is None" if leaf.given else "False"
    wrong = [f"not isinstance({variable}, torch.Tensor)"]
    if leaf.dtype is not None:
        floating = leaf.dtype.is_floating_point
        wrong.append(f"{variable}.dim() != {leaf.rank} or {variable}.is_floating_point() is not {floating}")
    if leaf.reads_dtype is not None:
        wrong.append(f"{variable}.dtype != {leaf.dtype}")
    for free, run in itertools.groupby(leaf.sizes, lambda size: size.free):
        sizes = list(run)
        if not free:
            first, extents = sizes[0].dim, tuple(size.least for size in sizes)
            wrong.append(f"{variable}.shape[{first}:{first + len(sizes)}] != {extents}")
    wrong += [
        f"{variable}.size({size.dim}) < {size.least}" for size in leaf.sizes if size.free and size.least
    ]
    wrong += [f"{variable}.size({size.dim}) > {size.most}" for size in leaf.sizes if size.free and size.most]
    return " or ".join(wrong)


class CapturedCodeGen(SafeCodeGen):
    """Generates a ``forward`` with the model's own parameters, defaults and output structure."""

    def __init__(self, signature: CallSignature) -> None:
        super().__init__()
        self.signature = signature

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Objects the generated code names."""
        return [("_signature", self.signature)]

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        """The ``def`` line, and the line that extracts the tensors from nested arguments."""
        placeholders = [text.split(":")[0].split("=")[0].strip() for text in free_vars]
        parameters = self.signature.parameters.parameters
        own = dict(zip(self.signature.inputs, placeholders, strict=False)) if self.signature.plain else {}
        pieces, star_seen = ["self"], False
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                star_seen = True
            elif parameter.kind is parameter.KEYWORD_ONLY and not star_seen:
                pieces.append("*")
                star_seen = True
            pieces.append(self._parameter(name, parameter))
        lines = [f"def forward({', '.join(pieces)}){maybe_return_annotation}:"]
        if self.signature.plain:
            renamed = {name: variable for name, variable in own.items() if variable != name}
            if renamed:
                lines.append(f"    {', '.join(renamed.values())} = {', '.join(renamed)}")
            wrong = " or ".join(
                _another_kind(tree, own[name])
                for name, tree in self.signature.inputs.items()
                if isinstance(tree, Leaf) and (tree.given or not tree.anything)
            )
            if wrong:
                lines.append(f"    if {wrong}: _signature.leaves({', '.join(own.values())})")
        else:
            targets = "".join(f"{name}, " for name in placeholders)
            call = f"_signature.leaves({', '.join(self.signature.inputs)})"
            lines.append(f"    {targets}= {call}" if placeholders else f"    {call}")
        return "\n".join(lines)

    def _parameter(self, name: str, parameter: inspect.Parameter) -> str:
        if parameter.kind is parameter.VAR_POSITIONAL:
            return f"*{name}"
        if parameter.kind is parameter.VAR_KEYWORD:
            return f"**{name}"
        if parameter.default is parameter.empty:
            return name
        literal = _is_literal(parameter.default)
        return f"{name}={parameter.default!r}" if literal else f"{name}=_signature.default({name!r})"

    def generate_output(self, output_args: Any, **_: Any) -> str:
        """The ``return`` line."""
        text = _expression(self.signature.output, [repr(arg) for arg in output_args])
        return f"return {text}" if text is not None else f"return _signature.build({output_args!r})"

    def process_inputs(self, *args: Any) -> Any:
        """Flat placeholders' values of a positional call (the protocol of ``torch.fx.Interpreter``)."""
        return self.signature.flatten_inputs(args, {})

    def flatten_inputs(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Flat placeholders' values of any call."""
        return self.signature.flatten_inputs(args, kwargs)

    def process_outputs(self, outputs: Any) -> Any:
        """The user's structure around flat outputs."""
        return self.signature.build(outputs)


def _expression(tree: Tree, leaves: list[str]) -> str | None:
    """Source text that builds a simple output, or None if an object must be rebuilt."""
    if isinstance(tree, Leaf):
        return leaves[tree.index]
    if isinstance(tree, Constant):
        return repr(tree.value) if _is_literal(tree.value) else None
    parts = [_expression(child, leaves) for child in tree.children]
    if any(part is None for part in parts):
        return None
    if tree.type is tuple:
        return f"({''.join(f'{part}, ' for part in parts)})"
    if tree.type is list:
        return f"[{', '.join(map(str, parts))}]"
    if tree.type is dict and all(type(key) is str and _is_literal(key) for key in tree.keys):
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in zip(tree.keys, parts, strict=True))}}}"
    return None

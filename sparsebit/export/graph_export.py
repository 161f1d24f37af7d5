"""From a graph with quantizers in it to an ONNX file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.batches import device_of
from sparsebit.display import short_bytes
from sparsebit.errors import ExportError
from sparsebit.export.draft import ModelDraft
from sparsebit.export.forms.container import BLOCK_OPSET, needed_opset
from sparsebit.export.forms.target_form import bring_into_form
from sparsebit.export.translate.axes import (
    AxisNames,
    DynamicAxes,
    FixedAxes,
    axis_choices,
    fixed_axes,
)
from sparsebit.export.translate.engines import Engine, possible_axes, translate
from sparsebit.export.translate.example_run import run_example
from sparsebit.export.translate.fixed_sizes import fix_sizes
from sparsebit.export.translate.flat_graph import FlatGraph, example_leaves
from sparsebit.export.translate.marker import Markers, mark_tensor, quantizers_of
from sparsebit.export.translate.naming import label_shapes, own_output_names, strip_prefix
from sparsebit.export.translate.request import TranslationRequest
from sparsebit.export.translate.undisturbed import undisturbed, writes_in_place
from sparsebit.graph.autocast import autocast_is_on
from sparsebit.graph.effects import written_tensors
from sparsebit.graph.run import SavedState, flatten_call
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.switches import substituted
from sparsebit.runtime.isolation import start_child
from sparsebit.runtime.packages import require
from sparsebit.targets import TARGETS

DEFAULT_OPSET = 20
HIGHEST_OPSET = 25
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A written file, and how it was made."""

    path: Path
    files: tuple[Path, ...]
    opset: int
    target: str
    engine: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    axes: AxisNames
    tensors: tuple[str, ...]  # quantized, by name
    bytes: int
    seconds: float
    attempts: tuple[str, ...] = ()  # what failed before; if the batch is fixed, the reason is the first
    rewrites: dict[str, int] = field(default_factory=dict)
    markers: Markers = field(default_factory=Markers, repr=False)
    quantized: bool = True  # whether the model's quantizers were to be written
    batch_lost: bool = False  # whether the batch was to be free, as by default, and is not

    def __str__(self) -> str:
        what = f"{short_bytes(self.bytes)}, opset {self.opset}, {len(self.tensors)} integer tensors"
        fixed = f"\n  {self.sizes}" if self.batch_lost else ""
        return f"{self.path}: {what}, for {self.target}, in {self.seconds:.1f} s{fixed}"

    @property
    def sizes(self) -> str:
        """The batch sizes that the file accepts if the batch could not be dynamic, and the first reason."""
        reason = f": {self.attempts[0].partition(chr(10))[0]:.160}" if self.attempts else ""
        return f"batch: fixed, the file accepts only inputs of the example's size{reason}"


def export_graph(
    gm: GraphModule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    path: str | Path = "model.onnx",
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: DynamicAxes | Literal["batch"] | None = "batch",
    opset: int | None = None,
    target: str = "onnxruntime",
    extra_info: bool = False,
    engine: Engine = "auto",
    external_data: bool | None = None,
    quantized: bool = True,
    inspect: Callable[[Exported], None] | None = None,
) -> Exported:
    """Write a captured graph as ONNX, with every quantizer in it, whether it is switched on or not.

    Args:
        gm: what ``capture`` returned, or the graph of a quantized model. It is not changed.
        args: example positional inputs; their sizes become fixed except for the dynamic axes.
        kwargs: example keyword inputs.
        path: the file to write. If this fails, no file is left.
        input_names, output_names, opset, extra_info, quantized: as for ``export_onnx``.
        dynamic_axes: as for ``torch.onnx.export``: ``{"x": {0: "batch", 1: "length"}}`` or ``{"x": [0, 1]}``. By
            default the batch, and the sequence of text, where the model allows it. ``{}`` fixes every size.
        target: the runtime to write for, a name in ``sparsebit.targets.TARGETS``.
        engine: which of torch's exporters translates; ``auto`` takes the fast one if its result is right.
        external_data: whether to keep the weights in a second file; by default from 1.9 GB on.
        inspect: called with the written file before it takes its place; if it raises an error, nothing is changed.

    Raises:
        ExportError: if it cannot be done, with the reason of each engine.
    """
    started = time.perf_counter()
    TARGETS[target]  # raises, with the names there are
    if autocast_is_on():
        raise ExportError(
            "torch.autocast is on, and a file has the types of the model itself",
            hint="export outside of the autocast block",
        )
    _refuse_bfloat16(gm)
    for package in ("onnx", "onnx_ir", "onnxscript", "onnxruntime"):
        require(package)
    path = Path(path)
    start_child()  # the first file is ready to run in half a second
    with ExitStack() as stack:
        stack.enter_context(undisturbed(gm, quantized=quantized))
        stack.enter_context(torch.no_grad())
        draft = stack.enter_context(ModelDraft(path))
        flat = FlatGraph(gm).eval()
        _warn_of_state(gm)
        stateful = writes_in_place(flat.body)
        inputs = example_leaves(flat, _flat_inputs(gm, tuple(args), dict(kwargs or {})), device_of(gm))
        quantizers = quantizers_of(flat)
        markers, results = _run_marked(flat, inputs, quantizers, stateful)
        opset = _opset(markers, opset)
        names = _names("input_names", input_names, flat.input_names)
        outputs = _names("output_names", output_names, own_output_names(gm, len(results), names))
        if both := sorted(set(names) & set(outputs)):
            raise ExportError(f"{both[0]!r} names an input and an output", hint="give them different names")
        proven = fixed_axes(gm, names)
        request = TranslationRequest(
            flat,
            inputs,
            names,
            outputs,
            axis_choices(dynamic_axes, names, outputs, inputs, proven),
            opset,
            stateful=stateful,
            marked=markers.tensors,
        )
        with substituted(quantizers, mark_tensor):
            request.choices, refused = possible_axes(request)
            fix_sizes(request)
            translation = translate(request, engine)
        # the reasons of the batch alone stand before those of the batch and the sequence
        batch_refused = request.choices == [{}]
        failed = (
            [*refused[::-1], *translation.attempts] if batch_refused else [*translation.attempts, *refused]
        )
        model = translation.model
        strip_prefix(model)
        lowered, rewrites = bring_into_form(
            model, markers, target=target, opset=opset, extra_info=extra_info, dynamic=bool(translation.axes)
        )
        label_shapes(model, translation.axes, results, outputs, translation.resized)
        draft.write(model, external=external_data)
        exported = Exported(
            path=draft.file,
            files=draft.files,
            opset=opset,
            target=target,
            engine=translation.engine,
            input_names=tuple(names),
            output_names=tuple(outputs),
            axes=translation.axes,
            tensors=tuple(lowered),
            bytes=sum(file.stat().st_size for file in draft.files),
            seconds=time.perf_counter() - started,
            attempts=(*_fixed_batches(proven), *failed),
            rewrites=rewrites,
            markers=markers,
            quantized=quantized,
            batch_lost=dynamic_axes == "batch"
            and _fixes_batch(inputs, [translation.axes.get(n, {}) for n in names]),
        )
        del model, translation, request, flat  # running the file needs their memory
        if inspect is not None:
            inspect(exported)
        exported = replace(exported, path=path, files=draft.publish())
    logger.info("wrote %s", exported)
    return exported


def _warn_of_state(gm: GraphModule) -> None:
    """Log which tensors of the model its own calls change: a file has none that last from call to call."""
    if written := written_tensors(gm):
        logger.warning(
            "calls of the model change %s; calls of the file do not: each starts from the values at export",
            ", ".join(written[:3]),
        )


def _run_marked(
    flat: FlatGraph, inputs: list[Tensor], quantizers: Sequence[Quantizer], stateful: bool
) -> tuple[Markers, tuple[Tensor, ...]]:
    """What the quantizers hold, and the results of the example; the state of the model is restored."""
    markers = Markers(dynamic=[q.name for q in quantizers if q.layout.kind == "token"])
    static = [quantizer for quantizer in quantizers if quantizer.layout.kind != "token"]
    with substituted(static, markers.note), SavedState(flat, parameters=stateful).undone():
        return markers, run_example(flat, inputs, markers)


def _fixes_batch(inputs: Sequence[Tensor], axes: Iterable[Mapping[int, str]]) -> bool:
    """Whether there is a batch, and no input has a free one."""
    return any(x.dim() for x in inputs) and not any(0 in own for own in axes)


def _flat_inputs(gm: GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    try:
        return flatten_call(gm, args, kwargs)
    except TypeError as error:  # as Python says it of a call
        names = ", ".join(str(node.target) for node in gm.graph.nodes if node.op == "placeholder")
        raise ExportError(
            f"the example input does not fit the model: {error}",
            expected=names,
            got=f"{len(args)} inputs by position{''.join(f', {name} by name' for name in kwargs)}",
        ) from error


def _fixed_batches(proven: FixedAxes) -> list[str]:
    return [f"the batch of {name!r} is fixed: {found[0]}" for name, found in proven.items() if 0 in found]


def _refuse_bfloat16(gm: GraphModule) -> None:
    """Raise at once the error that exporters would raise after half a minute."""
    for name, tensor in (*gm.named_parameters(), *gm.named_buffers()):
        if tensor.dtype == torch.bfloat16:
            raise ExportError(
                "bfloat16 models cannot be exported: ONNX Runtime has no bfloat16 kernels on a CPU",
                where=name,
                hint="call .float() on the model before capturing or quantizing it",
            )


def _opset(markers: Markers, asked: int | None) -> int:
    needs = {name: needed_opset(tensor) for name, tensor in markers.tensors.items()}
    lowest = max(needs.values(), default=0)
    if asked is None:
        matrices_alone = markers.tensors and all(
            t.side == "W" and len(t.shape) == 2 for t in markers.tensors.values()
        )
        # weights of a product with a float input are stored in blocks, which need a later opset
        return max(DEFAULT_OPSET, lowest, BLOCK_OPSET if matrices_alone and not markers.dynamic else 0)
    if not isinstance(asked, int):
        raise ExportError("opset_version is not a number", got=f"{asked!r:.80}")
    if asked > HIGHEST_OPSET:
        raise ExportError("opset too high", expected=f"at most {HIGHEST_OPSET}", got=str(asked))
    if asked < lowest:
        name = max(needs, key=lambda name: needs[name])
        raise ExportError(
            f"opset {asked} has no type for {name!r}",
            expected=f"opset {lowest} or later for {markers.tensors[name].scheme}",
            hint="leave opset_version out to get the lowest that works",
        )
    return asked


def _names(kind: str, asked: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    """The requested names, or the model's own."""
    if asked is None:
        return list(own)
    if (
        not isinstance(asked, Sequence)
        or not all(isinstance(name, str) and name and name.isprintable() for name in asked)
        or len(set(asked)) != len(own)
        or len(asked) != len(own)
    ):
        raise ExportError(
            f"{kind} does not fit the model",
            expected=f"{len(own)} different names, for {', '.join(own)}",
            got=f"{asked!r:.200}",
        )
    return list(asked)

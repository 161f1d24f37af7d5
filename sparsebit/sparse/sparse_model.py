"""``SparseModel``: the public verbs of pruning."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.batches import Call, Loss, ModelInputs, copied, device_of, fit_examples
from sparsebit.config import SConfig
from sparsebit.display import in_notebook
from sparsebit.errors import refuse_pickle
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.graph.capture.dynamic import Dynamic
from sparsebit.graph.capture.unwrap import unwrap
from sparsebit.graph.copies import copy_module
from sparsebit.graph.passes.copy_written_inputs import copy_written_inputs
from sparsebit.graph.passes.replace_patterns import replace_patterns
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.channels.trace import tensors_of
from sparsebit.sparse.choose import Latency, make_pruner, require_channels, runtime_latency
from sparsebit.sparse.evidence.gather import collect
from sparsebit.sparse.guess_inputs import guess_inputs
from sparsebit.sparse.layer_sparser import LayerSparser, keep_layers_before_add
from sparsebit.sparse.layers import require_finite_weights
from sparsebit.sparse.masking import MaskedGraph, MaskStore, hold_all
from sparsebit.sparse.report import SparseReport, make_report, require_choice
from sparsebit.sparse.schedule import progress_at, ratio_at
from sparsebit.sparse.shrink import ShrinkPlan
from sparsebit.sparse.shrink.forms import ShrunkForm, make_smaller
from sparsebit.sparse.sparse_config import parse_sconfig

Data = Iterable[Any] | None
_SHARED = ("cfg", "pruner", "masked", "examples", "inputs")  # by copies


class SparseModel(nn.Module):
    """A model that is being pruned. A call runs the captured copy ``.model``, whose pruned weights are zero.

    Args:
        model: any ``nn.Module``; it is copied and not changed. Build the optimizer from this object's parameters.
        config: the result of ``parse_sconfig``, or anything that it accepts.
        example_inputs, example_kwargs: inputs to record the model with; guessed if needed and none are given.
        match: whether a pattern of the config that matches no layer is an error.
        copy_model: False prunes the weights of ``model`` itself, without a second copy.
        dynamic: dimensions of the inputs that must be free, as for ``sparsebit.capture``.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
        >>> smodel = SparseModel(net, config, torch.zeros(1, 4))
        >>> smodel.calc_params()
        >>> [tuple(p.shape) for p in smodel.shrink().parameters()]
        [(8, 4), (8,), (2, 8), (2,)]
    """

    model: CapturedModule
    original: nn.Module  # shares the graph's parameters: not a submodule of its own
    schedule_step: Tensor
    accepts_loss_kwargs = False  # transformers' Trainer would add its own arguments to the model's
    _repr_html_ = in_notebook
    __reduce__ = refuse_pickle

    @property
    def why_not_capture(self) -> str | None:
        """Why it cannot be captured: removed channels would be quantized. Unstructured zeros can be captured."""
        told = "pass the smaller model, sparse_model.shrink(), or the masked one, sparse_model.model"
        return told if self.cfg.SPARSER.TYPE == "structured" else None

    def __init__(
        self,
        model: nn.Module,
        config: SConfig | Mapping[str, Any] | str | os.PathLike[str],
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
        *,
        match: bool = True,
        copy_model: bool = True,
        dynamic: Dynamic | None = None,
    ) -> None:
        super().__init__()
        model, self.cfg = unwrap(model), parse_sconfig(config)
        self.__dict__["original"] = copy_module(model) if copy_model else model
        self.inputs = ModelInputs(model, example_inputs, example_kwargs)
        self.examples: Call = self.inputs.example
        self.sizes_known = any(self.examples)
        if self.cfg.SPARSER.TYPE == "structured" and not self.sizes_known:
            self.examples = Call(guess_inputs(self.original, self.cfg.SKIP_TRACE_MODULES))
        self.model = capture(self.original, *self.examples, skip=self.cfg.SKIP_TRACE_MODULES, dynamic=dynamic)
        replace_patterns(self.model)
        copy_written_inputs(self.model)
        self.pruner = make_pruner(self.model, self.cfg, sizes_known=self.sizes_known)
        if match:
            self.cfg.require_matched(self.pruner.pattern_layers(), dict(self.model.named_modules()))
        self.register_buffer("schedule_step", torch.zeros((), dtype=torch.int64, device="cpu"))
        self.masks = MaskStore(self.pruner.everything())
        self.masked = MaskedGraph(self.model)
        self.decided = False  # whether calc_params() or step() has chosen anything yet
        self._seen: list[Call] | None = None  # calls since prepare_calibration
        self.register_load_state_dict_post_hook(lambda model, _: model._hold({}))  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call at its full size, with pruned values as zeros."""
        if self._seen is not None:
            self._seen.append(copied(Call(args, dict(kwargs))))  # the caller may fill the same tensors again
        return self.masked(*args, **kwargs)

    def train(self, mode: bool = True) -> SparseModel:
        """Switch the mode; an error, with nothing switched, if the model runs different operations in that mode."""
        self.model.train(mode)
        return super().train(mode)

    def prepare_calibration(self) -> None:
        """Record the inputs of the following calls, for a criterion that needs activations."""
        self.model.eval()
        self._seen = []

    def calc_params(
        self, data: Data = None, loss: Loss | None = None, *, latency: Latency | None = None
    ) -> None:
        """Choose what to remove, in one step, and hold it at zero; an error if nothing can be removed.

        Args:
            data: batches (see ``sparsebit.batches``); by default the inputs seen since ``prepare_calibration``.
            loss: called as ``loss(output, *rest)``; without one the output must hold a ``loss``.
            latency: seconds that a model takes, for ``TARGET: latency``; by default in ONNX Runtime, on one thread.
        """
        self._hold(self.choose(data, loss, latency=latency), decided=True)
        require_choice(self.pruner, self.kept(), decided=True)

    def choose(
        self, data: Data = None, loss: Loss | None = None, *, latency: Latency | None = None
    ) -> dict[str, Tensor]:
        """What ``calc_params`` would keep, without changing any weight: bool by name, for ``shrink_to``."""
        seen, self._seen = self._seen, None
        return self._choose(1.0, data, loss, latency, seen=seen)

    def step(self, data: Data = None, loss: Loss | None = None, *, latency: Latency | None = None) -> bool:
        """Call it once per training step: prunes when the schedule says so, and returns whether it did.

        Without data, a criterion uses the gradients of the training step: call it before ``zero_grad()``.
        """
        progress = progress_at(self.cfg.SCHEDULE, int(self.schedule_step))
        self.schedule_step += 1
        if progress is None:
            return False
        self._hold(self._choose(progress, data, loss, latency, training=True), decided=True)
        return True

    def penalty(self) -> Tensor:
        """The criterion's training term (slimming: strength · Σ|γ|), to add to the loss; 0 for those without one."""
        found = self.pruner.penalty(tensors_of(self.model))
        return torch.zeros((), device=self.device) if found is None else found

    def disable_sparse_before_add(self) -> None:
        """Do not prune layers whose results reach an addition before any other layer."""
        keep_layers_before_add(self.model, self.pruner.layers, self.sparsers)

    @property
    def sparsers(self) -> dict[str, LayerSparser]:
        """The pruning settings of every layer, by name."""
        return self.pruner.sparsers

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return device_of(self.model)

    def groups(self) -> ChannelGroups:
        """Which channels can only be removed together, and which cannot be removed and why. Printable."""
        return require_channels(self.pruner).groups

    def kept(self) -> dict[str, Tensor]:
        """What is kept: bool tensors on the CPU, by the name of a group or weight."""
        return {name: flags.cpu().clone() for name, flags in self.masks.items()}

    def report(self) -> SparseReport:
        """What is pruned, layer by layer, and the current cost of the model. Printable."""
        return make_report(self.pruner, self.masks.as_dict())

    def plan(self) -> ShrinkPlan:
        """What shrinking will do, as data: also for state dicts, optimizer and averaged state."""
        return require_channels(self.pruner).plan(self.kept())

    def shrink(self, form: ShrunkForm = "graph") -> nn.Module:
        """An ordinary model without the pruned channels, or with zeros instead of pruned single weights.

        Args:
            form: "graph": the captured graph with the model's own signature. "module": the user's own class, checked
                against the graph; refused if a size is hard-coded in a forward. "pretrained": a class of
                ``transformers`` with a smaller config; an error if none fits. "module" tries that first.
        """
        kept = self.kept()
        require_choice(self.pruner, kept, decided=self.decided)
        return self.shrink_to(kept, form)

    def shrink_to(self, kept: Mapping[str, Tensor], form: ShrunkForm = "graph") -> nn.Module:
        """Like ``shrink``, for your own choice: bool [channels] by the name of a group (see ``groups``)."""
        examples = fit_examples(self.model, self.examples)
        return make_smaller(self.pruner, kept, form, self.original, examples, remember=self.sizes_known)

    def export_onnx(self, dummy_data: Any, name: str | os.PathLike[str], *names: Any, **options: Any) -> Any:
        """Write the result of ``shrink`` as ONNX; arguments and report as for ``sparsebit.export.export_onnx``."""
        from sparsebit.export import export_onnx

        return export_onnx(self.shrink(), dummy_data, name, *names, **options)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write weights, masks, step and config to a folder; for a shrunk model use ``sparsebit.sparse.save``."""
        from sparsebit.sparse import storage

        storage.save(self, folder)

    @staticmethod
    def load(folder: str | os.PathLike[str], model: nn.Module, *examples: Any, **named: Any) -> SparseModel:
        """Load what ``save`` wrote into a model of the original class; see ``sparsebit.sparse.load``."""
        from sparsebit.sparse import storage

        return storage.load_session(folder, model, *examples, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseModel:
        memo[id(self)] = twin = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            twin.__dict__[name] = value if name in _SHARED else copy.deepcopy(value, memo)
        sparsers = {name: copy.copy(one) for name, one in self.sparsers.items()}
        twin.pruner = make_pruner(twin.model, twin.cfg, sparsers, sizes_known=twin.sizes_known)
        twin._hold({})
        return twin

    def _choose(
        self, progress: float, data: Any, loss: Loss | None, latency: Latency | None, **known: Any
    ) -> dict[str, Tensor]:
        evidence = collect(self.masked, self.pruner, self.inputs, data, loss, **known)
        require_finite_weights(self.model)
        if latency is None and self.cfg.SPARSER.TARGET == "latency":
            latency = runtime_latency(fit_examples(self.model, self.examples) if self.sizes_known else Call())
        ratio = functools.partial(ratio_at, self.cfg.SCHEDULE, progress)
        return self.pruner.choose(self.masks.as_dict(), evidence, ratio, latency)

    def _hold(self, chosen: Mapping[str, Tensor], *, decided: bool = False) -> None:
        """Apply a choice: hold the removed parts of tensors at zero, and release all other tensors."""
        self.decided |= decided
        self.masks.update(chosen)
        kept = self.masks.as_dict()
        hold_all(tensors_of(self.model), self.pruner.tensor_masks(kept))
        self.masked = MaskedGraph(self.model, self.pruner.groups, kept, zeros=self.cfg.SPARSER.PRUNE_BIAS)

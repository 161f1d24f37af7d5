"""``SparseModel``: the public verbs of pruning."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.above import call_above, in_notebook
from sparsebit.batches import Call, DataError, ModelInputs
from sparsebit.config import SConfig
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.graph.digest import graph_digest
from sparsebit.graph.ops import op_name
from sparsebit.graph.passes import replace_patterns
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.choose.channel_pruner import ChannelPruner
from sparsebit.sparse.choose.pruner import Latency, Pruner
from sparsebit.sparse.choose.runtime_clock import RuntimeClock
from sparsebit.sparse.choose.weight_pruner import WeightPruner
from sparsebit.sparse.evidence.batch import Loss, fit
from sparsebit.sparse.evidence.gather import Evidence, gather
from sparsebit.sparse.guess_inputs import guess_inputs
from sparsebit.sparse.layer_sparser import LayerSparser, attach, detach
from sparsebit.sparse.layers import find_layers, require_finite, tensors_of
from sparsebit.sparse.masking.compact import CompactCall, compact_where_needed
from sparsebit.sparse.masking.holding import hold, release
from sparsebit.sparse.masking.mask_store import MaskStore
from sparsebit.sparse.origin import Form, Origin, describe_example
from sparsebit.sparse.report import SparseReport
from sparsebit.sparse.schedule import make_schedule
from sparsebit.sparse.shrink import ShrinkPlan, make_plan, shrink_graph, shrink_module
from sparsebit.sparse.sparse_config import parse_sconfig
from sparsebit.sparse.sparsers import ACTIVATIONS

_FROM_TRAINING = frozenset({"gradient", "gradient_square"})


class SparseModel(nn.Module):
    """A model that is being pruned. Calls go to a captured copy, ``.model``, whose pruned weights are held at zero.

    Args:
        model: any ``nn.Module``; it is copied and stays as it is. Build the optimizer from this object's parameters.
        config: what ``parse_sconfig`` gives, or anything it takes.
        example_inputs: positional inputs to record the model with; a lone tensor is taken as one argument. Without
            any the model is traced symbolically to make zeros, and recorded on guessed inputs to remove channels.
        example_kwargs: keyword inputs to record it with.
        match: whether a pattern of the config that matches no layer is an error.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
        >>> smodel = SparseModel(net, config, example_inputs=torch.zeros(1, 4))
        >>> smodel.calc_params()
        >>> [tuple(p.shape) for p in smodel.shrink().parameters()]
        [(8, 4), (8,), (2, 8), (2,)]
    """

    model: CapturedModule
    schedule_step: Tensor

    accepts_loss_kwargs = False  # transformers' Trainer would add arguments of its own to those of the model

    _repr_html_ = in_notebook

    def __init__(
        self,
        model: nn.Module,
        config: SConfig | Mapping[str, Any] | str | os.PathLike[str],
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
        *,
        match: bool = True,
    ) -> None:
        super().__init__()
        self.cfg = parse_sconfig(config)
        original = copy.deepcopy(model)
        self.__dict__["_original"] = (
            original  # shares its parameters with the graph: not a submodule of its own
        )
        self.inputs = ModelInputs(model, example_inputs, example_kwargs)
        self._examples: Call = self.inputs.example
        self._sizes_known = any(self._examples)
        if self.cfg.SPARSER.TYPE == "structured" and not self._sizes_known:
            self._examples = Call(guess_inputs(original, self.cfg.SKIP_TRACE_MODULES))
        self.model = capture(original, *self._examples, skip=self.cfg.SKIP_TRACE_MODULES)
        replace_patterns(self.model)
        self.schedule = make_schedule(self.cfg.SCHEDULE)
        self._find(None)
        if match:
            self.cfg.require_matched(
                [layer.pattern_layer for layer in self._pruner.layers], dict(self.model.named_modules())
            )
        self.register_buffer("schedule_step", torch.zeros((), dtype=torch.int64))
        self.masks = MaskStore(self._pruner.everything())
        self._inputs: list[Any] | None = None
        self._compact: CompactCall | None = None
        self.register_load_state_dict_post_hook(_hold_after_loading)  # type: ignore[no-untyped-call]

    def _find(self, handles: Mapping[str, LayerSparser] | None) -> None:
        """Look at the graph; nothing here belongs to the state."""
        layers = find_layers(self.model)
        self.sparsers = dict(handles or {}) or {
            layer.name: LayerSparser(layer.name, self.cfg.layer(layer.names, layer.call.spec.name))
            for layer in layers
        }
        attach(self.model, layers, self.sparsers)
        kind = ChannelPruner if self.cfg.SPARSER.TYPE == "structured" else WeightPruner
        self._pruner: Pruner = kind(self.model, self.cfg, layers, self.sparsers)
        if isinstance(self._pruner, ChannelPruner):
            self._pruner.cost.shapes_known &= self._sizes_known

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call, as if what is gone were not there.

        Where zeros are as good as absence ``model`` is called; where they are not (a norm over channels would count
        them), the smaller graph is, on the kept parts of the same parameters.
        """
        if self._inputs is not None:
            self._inputs.append(Call(args, dict(kwargs)))
        return (self._compact or self.model)(*args, **kwargs)

    # -- deciding ----------------------------------------------------------------------------------------------

    def prepare_calibration(self) -> None:
        """Remember the inputs of the calls that follow, for a criterion that needs activations."""
        self.model.eval()
        self._inputs = []

    def calc_params(
        self, data: Iterable[Any] | None = None, loss: Loss | None = None, *, latency: Latency | None = None
    ) -> None:
        """Decide what goes, all of it at once, and hold it at zero.

        Args:
            data: batches (see ``sparsebit.batches``), for criteria that need gradients or activations. Without any, the
                inputs seen since ``prepare_calibration``.
            loss: called as ``loss(output, *rest)``; without one the output must hold a ``loss``.
            latency: seconds that a model takes, for ``SPARSER.TARGET: latency``; by default those of the example inputs
                in ONNX Runtime, on one thread.

        What went before stays gone: a smaller ratio than last time brings nothing back.
        """
        self._prune(1.0, self._gather(data, loss), latency)

    def step(
        self, data: Iterable[Any] | None = None, loss: Loss | None = None, *, latency: Latency | None = None
    ) -> bool:
        """To be called once per training step: prunes when the schedule says so, and returns whether it did.

        A criterion that needs gradients takes those of the training step, where no data is given; call it between
        ``backward()`` and ``zero_grad()`` then.
        """
        progress = self.schedule.progress_at(int(self.schedule_step))
        self.schedule_step += 1
        if progress is None:
            return False
        needs = self._pruner.needs
        if data is None and needs and needs <= _FROM_TRAINING:
            evidence = self._from_training()
        else:
            evidence = self._gather(data, loss)
        self._prune(progress, evidence, latency)
        return True

    def penalty(self) -> Tensor:
        """The criterion's training term (slimming: strength · Σ|γ|), to add to the loss; 0 for those without one."""
        tensors = tensors_of(self.model)
        found = []
        for strategy in {handle.spec.strategy for handle in self.sparsers.values()}:
            criterion = self._pruner.criterion(strategy)
            named = {name: tensors[name] for name in self._scored(criterion.roles)}
            found.append(criterion.penalty(list(named.values())))
        terms = [term for term in found if term is not None]
        return torch.stack(terms).sum() if terms else torch.zeros((), device=self.device)

    def disable_sparse_before_add(self) -> None:
        """Leave whole what is added to something else: every layer whose result reaches an addition first."""
        by_node = {layer.node: self.sparsers[layer.name] for layer in self._pruner.layers}
        additions = [node for node in self.model.graph.nodes if op_name(self.model, node) == "add"]
        waiting, seen = [source for node in additions for source in node.all_input_nodes], set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in by_node:
                by_node[node].set_ratio(0.0)
            else:
                waiting += node.all_input_nodes

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next((tensor.device for tensor in self.model.parameters()), torch.device("cpu"))

    def groups(self) -> ChannelGroups:
        """What can only go together, and what cannot go at all and why. Printable."""
        return self._channels().groups

    def report(self) -> SparseReport:
        """What is gone, layer by layer, and what the model costs now. Printable."""
        kept = self.masks.as_dict()
        rows = tuple(self._pruner.rows(kept))
        before = sum(parameter.numel() for parameter in self.model.parameters())
        if not isinstance(self._pruner, ChannelPruner):
            zeros = sum(row.before - row.after for row in rows)
            return SparseReport(
                kind=self.cfg.SPARSER.TYPE, rows=rows, params_before=before, params_after=before - zeros
            )
        cost, flags = self._pruner.cost, {name: flag.cpu() for name, flag in kept.items()}
        return SparseReport(
            kind="structured",
            rows=rows,
            params_before=before,
            params_after=cost.params(flags),
            macs_before=cost.macs({}) if cost.shapes_known else None,
            macs_after=cost.macs(flags) if cost.shapes_known else None,
            reached=self._pruner.reached,
        )

    # -- taking away -------------------------------------------------------------------------------------------

    def plan(self) -> ShrinkPlan:
        """What shrinking will do, as data: also for state dicts, optimizer and averaged state."""
        return make_plan(self.model, self._channels().groups, self._kept())

    def shrink(self, form: Form = "graph") -> nn.Module:
        """An ordinary model without what is gone: smaller for channels, the same with zeros for single weights.

        Args:
            form: "graph" gives the captured graph, smaller, with the model's own signature. "module" gives a model of
                the user's own class, checked against the graph on the example inputs; it is refused where a forward
                has a size written into its code.
        """
        return self.shrink_to(self._kept(), form)

    def shrink_to(self, kept: Mapping[str, Tensor], form: Form = "graph") -> nn.Module:
        """As ``shrink``, for a choice of one's own: by the name of a group (see ``groups``), bool [units]."""
        original: nn.Module = self.__dict__["_original"]
        small: nn.Module
        if not isinstance(self._pruner, ChannelPruner):
            small = copy.deepcopy(self.model if form == "graph" else original)
            for name, mask in self._pruner.tensor_masks(kept).items():
                hold(small.get_parameter(name), mask.to(self.device))
        else:
            plan = make_plan(self.model, self._pruner.groups, kept)
            graph = shrink_graph(self.model, plan)
            args, kwargs = self._fitting_examples()
            small = graph if form == "graph" else shrink_module(original, plan, graph, args, kwargs)
        detach(small)
        small.__dict__["shrunk_from"] = self.origin(kept, form)
        return small

    def origin(self, kept: Mapping[str, Tensor] | None = None, form: Form = "graph") -> Origin:
        """What it takes, beside the weights, to make this model again from the original class."""
        flags = self._kept() if kept is None else {name: flag.clone() for name, flag in kept.items()}
        example = describe_example(*self._examples) if self._sizes_known else None
        return Origin(self.cfg.to_dict(), graph_digest(self.model), flags, example, form)

    def export_onnx(
        self,
        dummy_data: Any,
        name: str | os.PathLike[str],
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        dynamic_axes: Mapping[str, Any] | None = None,
        opset_version: int | None = None,
        verbose: bool = False,
        extra_info: bool = False,
        **options: Any,
    ) -> Any:
        """Write the model as ONNX: shrunk where channels are removed, with zeros in its weights where those are masked.

        The arguments and the report that comes back are those of ``sparsebit.export.export_onnx``.
        """
        model = self.shrink() if self.cfg.SPARSER.TYPE == "structured" else self.model
        return call_above(
            "sparsebit.export.export_onnx",
            model,
            dummy_data,
            name,
            input_names,
            output_names,
            dynamic_axes,
            opset_version,
            verbose,
            extra_info,
            **options,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write weights, masks, step and config to a folder; ``SparseModel.load`` brings them back.

        For what ``shrink()`` returned there is ``sparsebit.sparse.save``.
        """
        from sparsebit.sparse.storage import save

        save(self, folder)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: nn.Module,
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
    ) -> SparseModel:
        """What ``save`` wrote, onto a model of the original class."""
        from sparsebit.sparse.storage import load

        found = load(folder, model, example_inputs, example_kwargs)
        if not isinstance(found, cls):
            raise SparsebitError(
                "this folder holds a shrunk model", where=str(folder), hint="use sparsebit.sparse.load"
            )
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseModel:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        shared = ("cfg", "schedule", "_pruner", "sparsers", "_examples", "inputs", "_compact")
        for name, value in self.__dict__.items():
            twin.__dict__[name] = value if name in shared else copy.deepcopy(value, memo)
        twin._find({name: copy.copy(handle) for name, handle in self.sparsers.items()})
        twin._hold()
        return twin

    # -- inside ------------------------------------------------------------------------------------------------

    def _kept(self) -> dict[str, Tensor]:
        return {name: flags.cpu().clone() for name, flags in self.masks.items()}

    def _fitting_examples(self) -> Call:
        """The example inputs on the device of the parameters, and in their type."""
        parameter = next(self.model.parameters(), None)
        found: Call = self._examples if parameter is None else fit(self._examples, parameter)
        return found

    def _channels(self) -> ChannelPruner:
        if not isinstance(self._pruner, ChannelPruner):
            raise SparsebitError(
                "only whole channels have groups", got=f"SPARSER.TYPE {self.cfg.SPARSER.TYPE}"
            )
        return self._pruner

    def _scored(self, roles: tuple[str, ...]) -> list[str]:
        if not isinstance(self._pruner, ChannelPruner):
            return []
        slices = [where for group in self._pruner.groups.free for where in group.slices]
        return list(dict.fromkeys(where.tensor for where in slices if where.role in roles))

    def _gather(self, data: Iterable[Any] | None, loss: Loss | None) -> Evidence:
        needs = self._pruner.needs
        seen, self._inputs = self._inputs, None
        if not needs:
            return {}
        if data is None and seen and needs <= ACTIVATIONS:
            return gather(self.model, self._pruner.layers, (), needs, seen, compact=self._compact)
        if data is None:
            raise DataError(
                f"the criterion needs data: {', '.join(sorted(needs))}",
                where=f"SPARSER.STRATEGY {self.cfg.SPARSER.STRATEGY}",
                hint="pass batches" + ("" if needs <= ACTIVATIONS else " of (inputs, targets) and loss=..."),
            )
        options = self._pruner.criterion(self.cfg.SPARSER.STRATEGY)
        return gather(
            self.model,
            self._pruner.layers,
            self._pruner.extra_tensors,
            needs,
            data,
            loss,
            samples=getattr(options, "samples", 1),
            seed=getattr(options, "seed", 0),
            compact=self._compact,
            inputs=self.inputs,
        )

    def _from_training(self) -> Evidence:
        """Gradients that the training step has left."""
        tensors = tensors_of(self.model)
        names = [*(layer.tensor for layer in self._pruner.layers), *self._pruner.extra_tensors]
        found = {name: tensors[name].grad for name in names}
        if all(gradient is None for gradient in found.values()):
            raise DataError(
                "the criterion needs gradients, and there are none",
                hint="call step() between backward() and zero_grad(), or pass data and loss",
            )
        plain = {name: g if g is not None else torch.zeros_like(tensors[name]) for name, g in found.items()}
        squares = {name: gradient.square() for name, gradient in plain.items()}
        return {"gradient": plain, "gradient_square": squares}

    def _prune(self, progress: float, evidence: Evidence, latency: Latency | None) -> None:
        require_finite(self.model)
        if latency is None and self.cfg.SPARSER.TARGET == "latency":
            latency = RuntimeClock(self._fitting_examples() if self._sizes_known else ((), {}))
        kept = self.masks.as_dict()
        self.masks.update(self._pruner.choose(kept, evidence, self.schedule, progress, latency))
        self._hold()

    def _hold(self) -> None:
        """Hold every tensor that lost something, and let go of those that did not."""
        masks, tensors = self._pruner.tensor_masks(self.masks.as_dict()), tensors_of(self.model)
        for name, tensor in tensors.items():
            if name not in masks:
                release(tensor)
        for name, mask in masks.items():
            if isinstance(tensors[name], nn.Parameter):
                hold(tensors[name], mask.to(tensors[name].device))
            else:  # statistics follow the zeros that reach them
                with torch.no_grad():
                    tensors[name].masked_fill_(~mask.to(tensors[name].device), 0)
        if isinstance(self._pruner, ChannelPruner):
            self._compact = compact_where_needed(self.model, self.plan(), self._pruner.groups, self._examples)


def _hold_after_loading(model: nn.Module, keys: Any) -> None:
    assert isinstance(model, SparseModel)
    model._hold()

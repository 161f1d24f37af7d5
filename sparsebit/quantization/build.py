"""From a float model to a graph with quantizers on its edges, and the recovery steps of its config."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from sparsebit.batches import Call, device_of
from sparsebit.config import QConfig
from sparsebit.errors import SparsebitError, with_article
from sparsebit.graph.capture.dynamic import Dynamic
from sparsebit.graph.capture.frontend import capture
from sparsebit.graph.capture.unwrap import how_to_get_module, unwrap
from sparsebit.graph.ops import OPS
from sparsebit.graph.passes import SIMPLIFY, run_passes
from sparsebit.graph.passes.copy_written_inputs import copy_written_inputs
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.passes.fold_computed_weights import fold_computed_weights
from sparsebit.graph.passes.remove_dead_nodes import remove_dead_nodes
from sparsebit.graph.passes.split_gated_activations import split_gated_activations
from sparsebit.graph.run import evaluating
from sparsebit.quantization.algorithms import ALGORITHMS, AdaRoundLayers, Algorithm
from sparsebit.quantization.algorithms.reconstruction import Reconstruction
from sparsebit.quantization.batch_norm.statistics import statistics_of
from sparsebit.quantization.modules.insert import build_own_quantizers, insert_quantizers, replace_registered
from sparsebit.quantization.modules.leaves import own_leaves
from sparsebit.quantization.modules.qmodules import QuantOpr, require_same_results
from sparsebit.quantization.modules.quant_graph import QuantGraph
from sparsebit.quantization.plan import QuantPlan, make_plan
from sparsebit.quantization.plan.layers import layers_for_config
from sparsebit.quantization.quantizers import AdaRound, Quantizer
from sparsebit.targets import TARGETS

_logger = logging.getLogger(__name__)


def require_float_model(model: Any) -> nn.Module:
    """The module without wrappers that compile or distribute it; an error for other objects and quantized models."""
    if not isinstance(model, nn.Module):
        raise SparsebitError(
            "QuantModel takes a torch.nn.Module",
            got=with_article(type(model).__name__),
            hint=how_to_get_module(model),
        )
    if any(isinstance(module, QuantGraph) for module in model.modules()):
        raise SparsebitError(
            "the model is quantized already",
            got=f"{with_article(type(model).__name__)} with quantizers inside",
            hint="pass the float model; qmodel.calibrate(loader) calibrates a QuantModel again",
        )
    return unwrap(model)


class Built(NamedTuple):
    """A graph with quantizers, the plan they follow, and the statistics of batch norms that were folded."""

    graph: QuantGraph
    plan: QuantPlan
    batch_norms: dict[str, tuple[Tensor, Tensor]]


def build_graph(
    model: nn.Module, example: Call, config: QConfig, plan: QuantPlan | None, dynamic: Dynamic | None = None
) -> Built:
    """Capture and simplify a model, decide what is quantized (or follow ``plan``), and insert the quantizers."""
    if not isinstance(plan, QuantPlan | None):
        raise SparsebitError(
            "plan must be a QuantPlan",
            got=with_article(type(plan).__name__),
            hint="pass the plan of another QuantModel",
        )
    by_hand = [name for name, module in model.named_modules() if isinstance(module, QuantOpr)]
    captured = capture(model, *example, skip=(*config.SKIP_TRACE_MODULES, *by_hand), dynamic=dynamic)
    target = TARGETS[config.BACKEND]
    if unknown := [name for name in target.rules if name not in OPS]:
        _logger.warning(
            "target %s has rules for operators that are not registered: %s", target.name, ", ".join(unknown)
        )
    own_leaves(captured)
    run_passes(captured, SIMPLIFY)
    with evaluating(captured, if_possible=True):
        run_passes(captured, (fold_computed_weights,))
    copy_written_inputs(captured)
    known = layers_for_config(captured)
    batch_norms: dict[str, tuple[Tensor, Tensor]] = {}
    if config.SCHEDULE.FUSE_BN and not config.SCHEDULE.BN_TUNING:
        with evaluating(captured):
            batch_norms = statistics_of(captured)
            run_passes(captured, (fold_batch_norm, remove_dead_nodes))
    owned = replace_registered(captured, config)
    split_gated_activations(captured, target.split, keep=owned)
    build_own_quantizers(captured, config, owned)
    plan = plan or make_plan(captured, config, target, known=known, owned=owned)
    if not plan.tensors and not owned:
        _logger.warning("nothing in this model is quantized for %s; print(qmodel.plan) says why", plan.target)
    insert_quantizers(captured, plan)
    require_same_results(captured, example)
    device = device_of(captured)
    for module in captured.modules():
        if isinstance(module, Quantizer):
            module.to(device)
    return Built(QuantGraph.around(captured), plan, batch_norms)


def make_recovery(config: QConfig, quantizers: Iterable[Quantizer]) -> list[Algorithm]:
    """The steps in order; created with the model, so that a wrong option is reported before any work."""
    made: list[Algorithm] = [ALGORITHMS.make(step.name, **step.options) for step in config.SCHEDULE.RECOVERY]
    rounding = any(isinstance(quantizer, AdaRound) for quantizer in quantizers)
    if rounding and not any(isinstance(step, Reconstruction) for step in made):
        made.insert(0, AdaRoundLayers())  # the others then see what was decided
    return made

"""Calibration: quantizers measure what flows past them, then become grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.errors import SparsebitError
from sparsebit.graph.run import Runner, RunState
from sparsebit.progress import progress
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.stored import Stored


class Calibration:
    """One round of it: opened by ``prepare_calibration``, fed by the user's own forwards, closed by ``calc_qparams``.

    Observers work while the data streams through, so a plain calibration stores nothing. The inputs are kept
    beside, on disk when they are many, for a calibration in which each layer is measured behind quantized ones.
    """

    def __init__(self, gm: GraphModule, quantizers: Mapping[str, Quantizer]) -> None:
        self.gm, self.quantizers = gm, quantizers
        self.inputs = Stored()
        for quantizer in quantizers.values():
            quantizer.reset()
            quantizer.observing = quantizer.side == "A" and not quantizer.fake_fused

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember the inputs of one forward."""
        self.inputs.append((args, kwargs))

    def close(self) -> None:
        """Stop measuring."""
        for quantizer in self.quantizers.values():
            quantizer.observing = False

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Grids from what was seen: activations by themselves, weights from the weights."""
        self._require_data()
        self.close()
        for name, quantizer in self._active("W"):
            quantizer.observe_whole(weights[name])
        for _, quantizer in self._active("A"):
            quantizer.finish()

    def finish_in_order(self, weights: Mapping[str, Tensor], *, w_quant: bool, a_quant: bool) -> None:
        """Grids in the order of the graph: each activation is measured with all before it as they will be.

        Every batch is run from one quantizer to the next and stopped there, so the whole costs one forward more.
        With ``w_quant`` the weights before a tensor are quantized, with ``a_quant`` the activations.
        """
        self._require_data()
        self.close()
        for name, quantizer in self._active("W"):
            quantizer.observe_whole(weights[name])
            quantizer.use_quant = w_quant
        runner, states = Runner(self.gm), Stored()
        stops = self._stops()
        try:
            with torch.no_grad():
                for stop, quantizer in progress(stops, "calibrating in order"):
                    quantizer.reset()
                    for index in range(len(self.inputs)):
                        state = self._advance(runner, states, index, stop)
                        quantizer.observe(state.values[_source(stop).name])
                    quantizer.finish()
                    quantizer.use_quant = a_quant
        finally:
            for quantizer in self.quantizers.values():
                quantizer.use_quant = False
        for _, quantizer in self._active("A"):
            if not quantizer.calibrated:  # inside an operator of the user's own
                quantizer.finish()

    def _advance(self, runner: Runner, states: Stored, index: int, stop: Node) -> RunState:
        """The state of one batch just before a quantizer."""
        before = stop.prev
        if index == len(states):
            args, kwargs = self.inputs[index]
            state = runner.run_call(args, kwargs, until=before).state
        else:
            state = RunState(**states[index])
            if state.next_node == stop.name:
                return state
            state = runner.run(state=state, until=before).state
        assert state is not None
        fields = {
            "next_node": state.next_node,
            "values": state.values,
            "grad_enabled": state.grad_enabled,
            "regions": state.regions,
        }
        if index == len(states):
            states.append(fields)
        else:
            states[index] = fields
        if _source(stop).op == "get_attr":
            source = _source(stop)
            state.values[source.name] = _attribute(self.gm, str(source.target))
        return state

    def _stops(self) -> Sequence[tuple[Node, Quantizer]]:
        stops = []
        for node in self.gm.graph.nodes:
            if node.op == "call_module":
                module = self.gm.get_submodule(str(node.target))
                if isinstance(module, Quantizer) and module.side == "A" and not module.fake_fused:
                    stops.append((node, module))
        return stops

    def _active(self, side: str) -> list[tuple[str, Quantizer]]:
        return [(n, q) for n, q in self.quantizers.items() if q.side == side and not q.fake_fused]

    def _require_data(self) -> None:
        if not len(self.inputs) and self._active("A"):
            raise SparsebitError(
                "there was no calibration data",
                expected="at least one forward between prepare_calibration() and calc_qparams()",
                hint="for x, _ in loader: qmodel(x)",
            )


def _source(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _attribute(gm: GraphModule, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(gm.get_submodule(owner), name)

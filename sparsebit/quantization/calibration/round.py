"""Calibration: quantizers measure their inputs, then compute their grids."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.errors import SparsebitError
from sparsebit.graph.effects import written_tensors
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.run import RunState, run_graph
from sparsebit.numerics.finite import all_finite, is_finite
from sparsebit.processes import failing_together, gather_values
from sparsebit.progress import progress
from sparsebit.quantization.calibration.record import CalibrationRecord
from sparsebit.quantization.calibration.spill_list import SpillList
from sparsebit.quantization.modules.weights import quantizer_at
from sparsebit.quantization.observers import CalibrationError
from sparsebit.quantization.observers.base import is_free_to_ask
from sparsebit.quantization.quantizers import Quantizer


class CalibrationRound:
    """One round: started by ``prepare_calibration``, fed by the user's forward passes, ended by ``calc_qparams``.

    Observers work while the data streams through, so no activation is stored. The inputs are kept, 16 MiB of them in
    memory and the rest in a temporary folder, for everything that needs them again: recovery steps, layers that are
    measured with quantized inputs, and the check of what is exported.
    """

    def __init__(
        self,
        gm: GraphModule,
        quantizers: Mapping[str, Quantizer],
        record: CalibrationRecord | None = None,
        *,
        keep_biases: bool = False,
    ) -> None:
        self.gm, self.quantizers, self.record = gm, quantizers, record or CalibrationRecord()
        self.inputs = SpillList(copies=True)  # the caller may fill the same tensors again for the next batch
        self._calls = 0  # also those that failed
        self._checks_each_call = all(is_free_to_ask(quantizer.scale) for quantizer in quantizers.values())
        self._grids = {
            name: {key: value.clone() for key, value in q.state_dict().items()}
            for name, q in quantizers.items()
        }
        self._switches = {name: q.use_quant for name, q in quantizers.items()}
        self._state = {name: fetch_tensor(gm, name).clone() for name in written_tensors(gm)}
        self._shifts = dict(self.record.shifts)
        self._biases = self.record.take_back_shifts(gm, keep_biases=keep_biases)
        for quantizer in quantizers.values():
            quantizer.reset()
            quantizer.observing = quantizer.side == "A" and not quantizer.fake_fused

    @contextlib.contextmanager
    def recorded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool = False
    ) -> Iterator[None]:
        """Record the inputs of the forward pass inside the block; if it fails, nothing is recorded.

        NaN and infinity are checked at once on a CPU, where that is free, and elsewhere after all data.
        """
        if training:
            raise SparsebitError(
                "calibration runs in evaluation mode, so that dropout and batch norm behave as they will later",
                hint="call qmodel.eval(), or prepare_calibration() again after train()",
            )
        self.inputs.append((args, kwargs))
        self._calls += 1
        undo = [quantizer.remember() for _, quantizer in self._active("A")]
        try:
            with torch.no_grad():
                yield
            if self._checks_each_call:
                self._require_finite(len(self.inputs) - 1, self._calls)
        except BaseException:
            for put_back in undo:
                put_back()
            self.inputs.pop()
            raise

    def _require_finite(self, first: int = 0, number: int = 1) -> None:
        """Raise if data held NaN or infinity; names the first tensor that does, from this recorded call on.

        ``number`` is that of the call for messages, counted from 1.
        """
        if all_finite(field for _, quantizer in self._active("A") for field in quantizer.fields_to_check()):
            return
        for index in range(first, len(self.inputs)):
            self._name_broken(index, number + index - first)

    def _name_broken(self, index: int, number: int) -> None:
        """Repeat one recorded call; raise for the first tensor with NaN or infinity, or the weight that causes it."""
        measuring = [quantizer for _, quantizer in self._active("A") if quantizer.observing]
        self.close()
        handles = [
            quantizer.register_forward_pre_hook(lambda one, args: one.require_finite(args[0], number))
            for _, quantizer in self._active("A")
        ]
        args, kwargs = self.inputs[index]
        try:
            with torch.no_grad():
                self.gm(*args, **kwargs)
        except CalibrationError as error:
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            if all(map(is_finite, tensors)):
                got = f"data without any, and {error.message}"
                require_finite_tensors(self.gm, row=error.row, where=error.where, got=got)
            raise
        finally:
            for handle in handles:
                handle.remove()
            for quantizer in measuring:
                quantizer.observing = True

    def cancel(self) -> None:
        """Stop, and restore grids, switches and biases from before the round."""
        self.close()
        for name, quantizer in self.quantizers.items():
            quantizer.reset()
            if name in self._grids:
                quantizer.load_state_dict(self._grids[name])
                quantizer.use_quant = self._switches[name]
        for name, bias in self._biases.items():
            fetch_tensor(self.gm, name).data = bias
        self.record.shifts.update(self._shifts)

    def drop_backup(self) -> None:
        """Weights are about to change: the grids from before the round would no longer fit them."""
        self._grids.clear()

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Wraps the steps that compute grids from measurements; if one fails, the round is cancelled."""
        try:
            yield
        except BaseException:
            self.cancel()
            raise
        self.close()

    def close(self) -> None:
        """Stop measuring, and restore buffers that calls of the model changed."""
        for quantizer in self.quantizers.values():
            quantizer.observing = False
        with torch.no_grad():
            for name, value in self._state.items():
                fetch_tensor(self.gm, name).copy_(value)

    def measure_again(self, shown: bool | None = None) -> None:
        """Discard the measurements, and measure the recorded inputs again, because the weights have changed."""
        for _, quantizer in self._active("A"):
            quantizer.reset()
            quantizer.observing = True
        with torch.no_grad():
            for args, kwargs in progress(
                self.inputs, "calibrating again", total=len(self.inputs), shown=shown
            ):
                self.gm(*args, **kwargs)
        self._require_finite()

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Compute the grids of activations from measurements, and those of weights from the weights."""
        self.close()
        for name, quantizer in self._active("W"):
            quantizer.observe_whole(weights[name])
        for _, quantizer in self._active("A"):
            quantizer.finish()

    def finish_in_order(
        self, weights: Mapping[str, Tensor], *, w_quant: bool, a_quant: bool, shown: bool | None = None
    ) -> None:
        """Compute grids in the order of the graph: each activation is measured with all earlier tensors quantized.

        Every batch is run from one quantizer to the next and stopped there, so the total cost is one more forward pass.
        With ``w_quant`` the weights before a tensor are quantized, with ``a_quant`` the activations.
        """
        self.close()
        for name, quantizer in self._active("W"):
            quantizer.observe_whole(weights[name])
            quantizer.use_quant = w_quant
        states = SpillList()
        stops = self._stops()
        try:
            with torch.no_grad():
                for stop, quantizer in progress(stops, "calibrating in order", shown=shown):
                    quantizer.reset()
                    for index in range(len(self.inputs)):
                        state = self._advance(states, index, stop)
                        quantizer.observe(state.values[stop.all_input_nodes[0].name])
                    try:
                        quantizer.finish()
                    except CalibrationError:  # which of the batches it was
                        for index in range(len(self.inputs)):
                            state = self._advance(states, index, stop)
                            quantizer.require_finite(state.values[stop.all_input_nodes[0].name], index + 1)
                        raise
                    quantizer.use_quant = a_quant
        finally:
            for quantizer in self.quantizers.values():
                quantizer.use_quant = False
        for _, quantizer in self._active("A"):
            if not quantizer.calibrated:  # inside an operator of the user's own
                quantizer.finish()

    def _advance(self, states: SpillList, index: int, stop: Node) -> RunState:
        """The state of one batch just before a quantizer."""
        state: RunState
        if index == len(states):
            args, kwargs = self.inputs[index]
            state = run_graph(self.gm, args, kwargs, until=stop.prev.name)
        else:
            state = RunState(**states[index])
            if state.next_node == stop.name:
                return state
            state = run_graph(self.gm, state=state, until=stop.prev.name)
        if index == len(states):
            states.append(vars(state))
        else:
            states[index] = vars(state)
        source = stop.all_input_nodes[0]
        if source.op == "get_attr":
            state.values[source.name] = fetch_tensor(self.gm, str(source.target))
        return state

    def _stops(self) -> Sequence[tuple[Node, Quantizer]]:
        called = [(node, quantizer_at(self.gm, node)) for node in self.gm.graph.nodes]
        return [(node, q) for node, q in called if q is not None and q.side == "A" and not q.fake_fused]

    def _active(self, side: str) -> list[tuple[str, Quantizer]]:
        return [(n, q) for n, q in self.quantizers.items() if q.side == side and not q.fake_fused]

    def require_data(self) -> None:
        """Raise, in all processes, if a tensor received no data in any process, or NaN or infinity in one."""
        active = self._active("A")
        everywhere = gather_values((len(self.inputs), [name for name, q in active if not q.has_seen]))
        if active and not any(calls for calls, _ in everywhere):
            raise SparsebitError(
                "there was no calibration data",
                expected="at least one forward between prepare_calibration() and calc_qparams()",
                hint="for x, _ in loader: qmodel(x)",
            )
        with failing_together():
            if not self._checks_each_call:
                self._require_finite()
            # Tensors that no quantizer measures, such as the bias of the last layer; quantizers check the weights.
            require_finite_tensors(self.gm, skipped={name for name, _ in self._active("W")})
        first = next((n for n in everywhere[0][1] if all(n in names for _, names in everywhere)), None)
        if first is not None:
            raise SparsebitError(
                f"no data reached {first!r}: every batch was empty there",
                expected="calibration data that reaches every quantized tensor",
                hint=f"add such data, or keep the operator that reads {first!r} in float: "
                "A.SPECIFIC {<its name>: [QUANTIZER.DISABLE, true]}",
            )


def require_finite_tensors(gm: GraphModule, skipped: Collection[str] = (), **parts: Any) -> None:
    """Raise if a parameter or buffer holds NaN or infinity; buffers may hold minus infinity, as masks do."""
    names = [
        name for name, parameter in gm.named_parameters() if name not in skipped and not is_finite(parameter)
    ]
    names += [name for name, buffer in gm.named_buffers() if not is_finite(buffer, or_masked=True)]
    if names:
        raise CalibrationError(
            f"{names[0]!r} of the model holds NaN or infinity"
            + (f", and so do {len(names) - 1} more" if len(names) > 1 else ""),
            **{"hint": "load the model again, or train it in float32"} | parts,
        ) from None

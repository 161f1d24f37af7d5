"""The quantizer: a module on one edge of the graph that measures a tensor, then rounds it to a grid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sparsebit.config import Side, TensorSpec
from sparsebit.display import printable
from sparsebit.errors import PlugInError, SparsebitError
from sparsebit.graph.lending import lending
from sparsebit.graph.value import kind_text
from sparsebit.numerics import CodeType, Grid, Layout, choose_grid
from sparsebit.numerics.grid import choose_scale
from sparsebit.numerics.layout import activation_axis, join_blocks, row_blocks, to_rows, to_samples
from sparsebit.numerics.snapping import kernels_run_on, snap_tensor
from sparsebit.processes import is_distributed, sum_tensors
from sparsebit.quantization.observers import (
    OBSERVERS,
    CalibrationError,
    Observer,
    merge_across_processes,
    merge_states,
    observe,
    require_finite,
    require_range,
    require_state,
)
from sparsebit.quantization.quantizers import measured
from sparsebit.quantization.quantizers.prepared_kernels import PreparedKernels

Substitute = Callable[["Quantizer", Tensor], Tensor]

# Layouts by the axis of the channels, made once: torch.compile can read an object, but not make one.
_BY_AXIS = tuple(Layout(kind="channel", axes=(axis,)) for axis in range(64))


class Quantizer(nn.Module):
    """A grid in the state dict, the observer that measures its range, and whether it is applied.

    ``forward`` is the identity until ``enable_quant``; while ``observing`` it also measures its input. Subclasses
    override one of three methods: ``prepare`` (transforms the tensor first), ``scale_and_zero_point`` (returns the
    grid) or ``set_range`` (sets the grid for a measured range). In all cases the result is ``grid().snap(prepare(x))``,
    so every quantizer can be exported.

    Attributes:
        name: of the tensor, unique in the model: that of the node or parameter it belongs to.
        side: "W" or "A".
        spec: the settings, and ``code``, the number format. Replaced by ``set_bit``.
        layout: what shares a scale; for an activation the axis is that of its layout.
        substitute: a function called instead of ``snap``; exporters use it to insert their own operator.
        processes: how many processes train with it, each on a part of every batch.
        ready: a weight and its ``snap`` result, if that was already computed together with other weights.
    """

    TYPE: ClassVar[str] = ""
    MAGNITUDE: ClassVar[bool] = False  # whether a scale below zero counts by its magnitude
    OWN_GRID: ClassVar[bool] = False  # whether a user's class creates grids itself
    HELD_GRID: ClassVar[bool] = True  # whether scale and zero point are used as they are held
    PLAIN: ClassVar[bool] = True  # whether the tensor is snapped unprepared, to this class's own grid
    scale: Tensor
    zero_point: Tensor
    followed: Tensor

    def __init_subclass__(cls) -> None:
        cls.OWN_GRID = cls.grid is not Quantizer.grid
        cls.HELD_GRID = cls.scale_and_zero_point is Quantizer.scale_and_zero_point
        cls.PLAIN = cls.prepare is Quantizer.prepare and cls.snap is Quantizer.snap and not cls.OWN_GRID

    def __init__(self, name: str, side: Side, spec: TensorSpec, layout: Layout | None = None) -> None:
        super().__init__()
        self.name, self.side, self.spec = name, side, spec
        self.code = CodeType.of(spec.bits, spec.symmetric, spec.dtype)
        self.layout = layout or Layout(kind=spec.granularity, group_size=spec.group_size)
        self.use_quant = self.fake_fused = self.observing = self.following = False
        self.substitute: Substitute | None = None
        self.processes = 1
        self.ready: tuple[Tensor, Tensor] | None = None
        self.observer: Observer[Any] = OBSERVERS.make(spec.observer, **spec.observer_options)
        self._state: Any = None
        self._batches = self._rows = 0  # rows of the first batch
        self._some = torch.empty(0)  # of its values
        self._kernels = PreparedKernels()
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("zero_point", torch.empty(0))
        self.register_buffer("followed", torch.empty(0))  # [2, C]: the range that follows training

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def bit(self) -> int:
        """Bits of a quantized value."""
        return self.spec.bits

    @property
    def is_symmetric(self) -> bool:
        """Whether the zero point is 0."""
        return self.spec.symmetric

    @property
    def is_perchannel(self) -> bool:
        """Whether each channel has its own scale."""
        return self.spec.granularity == "channel"

    @property
    def is_enable(self) -> bool:
        """Whether it changes its input."""
        return self.use_quant and not self.fake_fused

    @property
    def only_snaps(self) -> bool:
        """Whether ``forward`` does nothing else than ``snap``."""
        busy = self.fake_fused or self.observing or self.following or self.substitute is not None
        return self.PLAIN and self.use_quant and not busy

    @property
    def calibrated(self) -> bool:
        """Whether there is a grid; per-token grids are computed from each input."""
        return self.scale.numel() > 0 or self.layout.kind == "token"

    @property
    def has_seen(self) -> bool:
        """Whether there are measurements to compute a grid from."""
        return self._state is not None or self.layout.kind == "token"

    def find_problem(self) -> str | None:
        """What scale and zero point should be and are not; None if they are right, or not there yet."""
        scale, zero_point = self.scale, self.zero_point
        if not scale.numel() and not zero_point.numel():
            return None
        dtypes = {part.dtype for part in (scale, zero_point, self.followed) if part.numel()}
        if dtypes not in ({torch.float32}, {torch.float64}):
            return "scales and zero points in float32, or all in float64"
        if scale.shape != zero_point.shape:
            return "a zero point for each scale"
        if self.layout.kind == "token":
            return "no scale, as each token has its own"
        grid = self.grid()  # what counts: training may have pushed a learned scale below zero
        right = {
            "finite scales above 0": bool((grid.scale.isfinite() & (grid.scale > 0)).all()),
            f"whole zero points from {self.code.low} to {self.code.high}": bool(
                ((grid.zero_point == grid.zero_point.round()) & (grid.zero_point >= self.code.low)).all()
                & (grid.zero_point <= self.code.high).all()
            ),
        }
        return next((what for what, holds in right.items() if not holds), None)

    def set_bit(self, bit: int) -> None:
        """Change the number of bits; calibrate again afterwards."""
        code = CodeType.of(bit, self.spec.symmetric)
        if code == self.code:
            return
        self.reset()  # first: a frozen weight refuses it
        self.spec, self.code = replace(self.spec, bits=bit, dtype="int"), code

    def set_fake_fused(self) -> None:
        """Switch off permanently, because a runtime does not round here."""
        self.fake_fused = True

    def enable_quant(self) -> None:
        """Round from now on. Raises if no range was measured."""
        if not self.calibrated and not self.fake_fused:
            raise SparsebitError(
                f"{self.name!r} has no scale yet",
                expected="prepare_calibration(), some batches, calc_qparams(), then set_quant()",
                hint="after set_bit(), calibrate again",
            )
        self.use_quant = True

    def disable_quant(self) -> None:
        """Pass every input on unchanged."""
        self.use_quant = False

    # -- measuring ----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Reset the grid and all measurements."""
        self._state, self._batches, self.use_quant = None, 0, False
        self.followed = self.followed.new_empty(0)
        self.set_grid(torch.empty(0), torch.empty(0))

    def observe(self, x: Tensor) -> None:
        """Add one batch to the measurements."""
        self._batches += 1
        if self.layout.kind == "token" or x.numel() == 0:
            return
        measured.require_real(self.name, x, self._batches)
        with self._measuring(x):
            seen = self._rows_of(x)
            if self._state is None:
                self._rows = seen.shape[0]
                self._some = seen[..., :: max(1, seen.numel() // 256)].clone()
            elif self._rows != seen.shape[0]:
                raise self._other_channels(x, self._rows)
            state = self.observer.init(seen) if self._state is None else self._state
            self._state = require_state(self.observer, self.observer.update(state, seen))

    def _measuring(self, *tensors: Tensor) -> AbstractContextManager[None]:
        """Mistakes of the observer, or of the quantizer, are reported as theirs."""
        named = f"the observer {self.spec.observer!r} or the quantizer {self.spec.quantizer!r}"
        return lending(f"{named} failed on {self.name!r}", (self.observer, self), *tensors)

    def remember(self) -> Callable[[], None]:
        """A function that restores the measurements made so far, so that a batch can be left out."""
        state, batches = self._state, self._batches

        def put_back() -> None:
            self._state, self._batches = state, batches

        return put_back

    def fields_to_check(self) -> list[Tensor]:
        """Tensors that are finite if all observed values were; none without data."""
        with self._measuring():
            return [] if self._state is None else list(self.observer.fields_to_check(self._state))

    def require_finite(self, x: Tensor, batch: int) -> None:
        """Raise if a tensor to observe holds NaN or infinity, and name the batch of calibration."""
        if self.layout.kind == "token" or x.numel() == 0:
            return
        try:
            require_finite(self._rows_of(x))
        except CalibrationError as error:
            raise measured.in_batch(self.name, batch, error) from None

    def _rows_of(self, x: Tensor) -> Tensor:
        """A tensor in the form that its observer expects."""
        x, layout = self.prepare(x.detach()), self.layout_of(x)
        return to_samples(x, layout) if self.observer.by_sample else to_rows(x, layout, any_order=True)

    def observe_whole(self, x: Tensor) -> None:
        """Measure a complete tensor, such as a weight, and set its range."""
        try:
            with self._measuring(x):
                blocks = row_blocks(self.prepare(x.detach()), self.layout)
                ranges = [observe(self.observer, block, self.code) for block in blocks]
        except CalibrationError as error:
            raise CalibrationError(
                f"{self.name!r} cannot be quantized: {error.message}",
                row=error.row,
                got=error.got,
                hint="the model's own weights hold these values; load it again, or train it in float32",
            ) from None
        self._use_range(join_blocks([r.lo for r in ranges]), join_blocks([r.hi for r in ranges]), x)

    def finish(self) -> None:
        """Compute a grid from the measurements of all processes."""
        if self.layout.kind == "token":
            return
        with self._measuring():
            state = merge_across_processes(self.observer, self._state, self.scale.device)
        if state is None:
            raise SparsebitError(
                f"{self.name!r} received no data",
                expected="at least one batch between prepare_calibration() and calc_qparams()",
                got="no batch" if not self._batches else f"{self._batches} empty ones",
            )
        if not self.observer.is_finite(state):
            raise CalibrationError(
                f"{self.name!r} cannot be calibrated: it was NaN or infinite in some batch",
                hint="look at the data and the weights; a float16 model may also have overflowed",
            )
        with self._measuring():
            found = self.observer.finish(state, self.code)
        lo, hi = require_range(self.observer, found, like=self._some if self._rows else None)
        self._use_range(lo, hi, None)
        self._state = None
        step = float(self.scale.detach().abs().min())
        measured.warn_of_outliers(self.name, step, self._some, float(torch.maximum(-lo, hi).max()))

    def _other_channels(self, x: Tensor, before: int) -> SparsebitError:
        """The error for an activation whose number of channels differs from the measured one."""
        (axis,) = self.layout_of(x).axes
        return measured.other_channels(self.name, tuple(x.shape), axis, before)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def follow(self, x: Tensor) -> None:
        """Adjust the grid to the current weight, or to one more training batch, which has a weight of a tenth.

        The range is part of the state dict, so that training resumes identically from a checkpoint. It
        covers the batches of all processes, so that all keep the same grid; a process with an empty batch still takes
        part.
        """
        if self.layout.kind == "token" or (x.numel() == 0 and (self.side == "W" or not is_distributed())):
            return
        if self.side == "W":
            self.observe_whole(x)
            return
        measured.require_real(self.name, x, self._batches)
        seen = self._rows_of(x) if x.numel() else x.detach().new_empty(self.scale.numel(), 0)
        state = self.observer.init(seen)
        state = merge_states(self.observer, self.observer.update(state, seen) if seen.numel() else state)
        share = torch.full((), float(seen.numel() > 0), device=seen.device)
        sum_tensors([share])
        share = share.clamp(max=1) * 0.1  # nothing, where the batch was empty on every process
        if not self.observer.is_finite(state) and share:
            self.require_finite(x, self._batches)
            raise SparsebitError(
                f"{self.name!r} cannot be updated: another process has measured NaN or infinity",
                hint="look at the data and the learning rate",
            )
        lo, hi = (end.to(self.scale) for end in self.observer.finish(state, self.code))
        if not self.followed.numel():
            self.followed = torch.stack(self.grid().ends()).detach()
        self.followed.lerp_(torch.stack([lo, hi]), share)
        self.set_range(self.followed[0], self.followed[1], None)

    def _use_range(self, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
        with self._measuring(*(() if x is None else (x,))):
            self.set_range(lo, hi, x)
        if not self.calibrated:
            raise PlugInError(
                f"the quantizer {self.spec.quantizer!r} set no grid for {self.name!r}",
                hint="call set_grid in set_range",
            )
        if self.scale.shape not in (lo.shape, (1,)):
            raise PlugInError(
                f"the quantizer {self.spec.quantizer!r} set a grid of another shape for {self.name!r}",
                expected=f"a scale and a zero point of shape {list(lo.shape)}, one for each row",
                got=str(list(self.scale.shape)),
            )

    def set_range(self, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
        """Set the grid for a measured range; ``x`` is the complete tensor if there is one (a weight)."""
        grid = choose_grid(lo, hi, self.code)
        self.set_grid(grid.scale, grid.zero_point)

    def set_grid(self, scale: Tensor, zero_point: Tensor) -> None:
        """Copy scale and zero point into the existing tensors, because an optimizer may hold those."""
        for held, value in ((self.scale, scale), (self.zero_point, zero_point)):
            held.data = value.detach().to(held.device)
        self._kernels.clear()

    # -- snapping -----------------------------------------------------------------------------------------------

    def layout_of(self, x: Tensor) -> Layout:
        """Which elements of this tensor share a scale."""
        if self.side == "A" and self.layout.kind == "channel":
            return _BY_AXIS[activation_axis(x.dim(), self.spec.layout)]
        return self.layout

    def prepare(self, x: Tensor) -> Tensor:
        """Transform a tensor before it is rounded. Here it is unchanged."""
        return x

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scale and zero point of the current grid, [C] each; with one scale per token, those of ``x``."""
        if self.layout.kind == "token":
            assert x is not None
            rows = to_rows(x, self.layout)
            return choose_scale(rows.amin(1), rows.amax(1), self.code)
        if x is not None and self.side == "A" and self.layout.kind == "channel" and x.dim() > 0:
            channels = x.shape[activation_axis(x.dim(), self.spec.layout)]
            if self.scale.numel() not in (1, channels):
                raise self._other_channels(x, self.scale.numel())
        return self.scale, self.zero_point

    def grid(self, x: Tensor | None = None) -> Grid:
        """The current grid; with one scale per token, that of ``x``."""
        scale, zero_point = self.scale_and_zero_point(x)
        if self.MAGNITUDE:
            scale = scale.abs()
        return Grid(scale, zero_point, self.code, self.layout if x is None else self.layout_of(x))

    def values_per_scale(self, x: Tensor) -> float:
        """How many values of a tensor share a scale, including its parts on other processes."""
        parts = self.processes if self.side == "A" else 1  # a weight is the same on every process
        return max(x.numel() * parts / max(self.scale.numel(), 1), 1)

    def gradient_scale(self, x: Tensor) -> float | Tensor:
        """The factor of the gradients of scale and zero point, if these are learned."""
        return 1.0

    def snap(self, x: Tensor) -> Tensor:
        """``grid().snap(prepare(x))``, whether switched on or not."""
        x = self.prepare(x)
        if self.OWN_GRID:
            return self.grid(x).snap(x, self.gradient_scale(x))
        if self.HELD_GRID and kernels_run_on(x):
            y = self._kernels.snap(self, x)
            if y is not None:
                return y
        scale, zero_point = self.scale_and_zero_point(x)
        layout, factor = self.layout_of(x), self.gradient_scale(x)
        return snap_tensor(x, scale, zero_point, self.code, layout, factor, magnitude=self.MAGNITUDE)

    def forward(self, x: Tensor, rectify: bool = False) -> Tensor:
        """Measure if observing, round if switched on; with ``rectify``, after a ReLU."""
        if rectify:
            fused = self.only_snaps and self.HELD_GRID and kernels_run_on(x)
            if fused and (y := self._kernels.snap(self, x, rectify)) is not None:
                return y
            x = torch.relu(x)
        if self.observing:
            self.observe(x)
        if not self.use_quant or self.fake_fused:
            return x
        if self.following and self.training:
            self.follow(x)
        if self.substitute is not None:
            return self.substitute(self, x)
        ready = self.ready
        if ready is not None and ready[0] is x:
            return ready[1]
        if not x.numel():  # an expert that no token went to
            return x
        return self.snap(x) if self.PLAIN else self._require_same_kind(self.snap(x), x)

    def _require_same_kind(self, result: Any, x: Tensor) -> Tensor:
        """The result of a class that transforms its tensors, if it can take the place of the tensor."""
        if (
            isinstance(result, Tensor)
            and result.shape == x.shape
            and (result.dtype == x.dtype or torch.is_autocast_enabled(x.device.type))
        ):
            return result
        raise PlugInError(
            f"the quantizer {self.spec.quantizer!r} of {self.name!r} did not return a tensor like its input",
            expected=kind_text(x),
            got=kind_text(result),
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Quantizer:
        """Move to another device with the model, but not to half precision: the grid keeps its dtype."""

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        self._kernels.clear()
        return self

    # -- state dict ---------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.followed.numel():
            del destination[f"{prefix}followed"]
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])  # where torch keeps versions
        if metadata is not None:
            metadata["code"] = str(self.code)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Accept any number of scales, so that a calibrated state loads into a new model, also one in training.

        A state for other codes is refused: its scales would mean other numbers.
        """
        code = local_metadata.get("code", str(self.code))
        if code != str(self.code):
            error_msgs.append(
                f"the state of quantizer {printable(self.name)} is for {code}, and this model has {self.code}: "
                "set the widths as they were (set_bit, or the same config), or use QuantModel.load"
            )
        state_dict.setdefault(f"{prefix}followed", self.followed.new_empty(0))
        own = {**self._buffers, **self._parameters}
        for name, tensor in own.items():
            value = state_dict.get(f"{prefix}{name}")
            if value is not None and tensor is not None and tensor.shape != value.shape:
                tensor.data = torch.empty(value.shape, dtype=tensor.dtype, device=tensor.device)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        self._kernels.clear()

    def describe(self) -> str:
        """One line: tensor, grid, observer, and numbers."""
        state = "" if self.is_enable else " (off)" if self.calibrated else " (not calibrated)"
        numbers = ""
        if self.scale.numel():
            numbers = f" scale {measured.span(self.scale)}"
            numbers += "" if self.spec.symmetric else f" zero point {measured.span(self.zero_point)}"
        return printable(f"{self.side} {self.name}: {self.spec}{numbers}{state}")

    extra_repr = describe

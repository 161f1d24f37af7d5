"""Every tool that is compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.ptq.method import Method
from benchmarks.ptq.onnxruntime_peer import OnnxRuntime
from benchmarks.ptq.sparsebit_method import Sparsebit
from benchmarks.ptq.torchao_peer import TorchAO

OBSERVERS = ("minmax", "mse", "percentile", "kl_histogram", "aciq", "moving_average")
RARE = "A.OBSERVER.PERCENTILE.ALPHA=0.0001"
# For its own runtime, onnxruntime also rounds what convolutions hand to an addition, and it leaves layer norm in float.
# Rows with its name place quantizers as it does and are to be compared with it; the others are placed for `virtual`.
OURS: dict[str, Callable[[], Method]] = {
    **{f"sparsebit_{name}": partial(Sparsebit, name) for name in OBSERVERS},
    "sparsebit_percentile_0.0001": partial(Sparsebit, "percentile", overrides=(RARE,)),
    **{f"sparsebit_onnxruntime_{name}": partial(Sparsebit, name, "onnxruntime") for name in OBSERVERS},
    "sparsebit_onnxruntime_percentile_0.0001": partial(
        Sparsebit, "percentile", "onnxruntime", overrides=(RARE,)
    ),
}
PEERS: dict[str, Callable[[], Method]] = {"torchao": TorchAO, "onnxruntime": OnnxRuntime}
METHODS = OURS | PEERS

"""``dynamic=``: sizes that must be free; otherwise capturing raises an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.module import CapturedModule

Dynamic = Collection[int] | Mapping[str, Collection[int]]


def require_free(captured: CapturedModule, dynamic: Dynamic) -> None:
    """Raise unless every requested dimension is free.

    ``dynamic`` gives dimensions by the name of the argument, or the same for all tensor arguments that have them. A
    graph that was traced without running the model follows every size.
    """
    _require_dimensions(dynamic)
    sizes = captured.capture_report.sizes
    if captured.capture_report.frontend == "symbolic":
        return
    names = list(dict.fromkeys(size.argument for size in sizes))
    requests = dynamic if isinstance(dynamic, Mapping) else dict.fromkeys(names, dynamic)
    for name, dims in requests.items():
        if name not in names:
            raise CaptureError(
                f"dynamic names {name!r}, which is not a tensor argument of the model",
                expected=f"one of {', '.join(names) or 'none: the model takes no tensors'}",
            )
        own = [size for size in sizes if size.argument == name]
        for dim in dims:
            if isinstance(dynamic, Mapping) and not -len(own) <= dim < len(own):
                raise CaptureError(
                    f"dynamic asks for dimension {dim} of {name!r}, which has {len(own)} dimensions in the example"
                )
            size = own[dim] if -len(own) <= dim < len(own) else None
            if size is not None and not size.free:
                raise CaptureError(
                    f"dimension {size.dim} of argument {name!r} cannot be dynamic: {size.why}",
                    where=size.source,
                    hint=f"change that line of the model, or leave dimension {size.dim} out of dynamic",
                )


def _require_dimensions(dynamic: Any) -> None:
    """Raise an error for anything that does not list dimensions."""
    for dims in dynamic.values() if isinstance(dynamic, Mapping) else (dynamic,):
        listed = isinstance(dims, Collection) and not isinstance(dims, str | bytes | Mapping)
        if not listed or not all(isinstance(dim, int) for dim in dims):
            raise CaptureError(
                "dynamic lists dimensions by number",
                expected="[0], or {'images': [0, 2, 3]} with the names of the model's arguments",
                got=f"{dynamic!r:.80}",
            )

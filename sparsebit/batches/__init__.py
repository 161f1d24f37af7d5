"""The one rule for data: how the batches of a loader become calls of a model. The rule is in ``model_inputs``."""

from sparsebit.batches.calls import Call, as_call, copied, crop_like, device_of, example_call, few, to_device
from sparsebit.batches.model_inputs import LABELS, Batch, Feed, ModelInputs, example_from
from sparsebit.batches.reading import MOST_BATCHES, DataError, NoBatchesError, explained, peek, read_batches

__all__ = [
    "LABELS",
    "MOST_BATCHES",
    "Batch",
    "Call",
    "DataError",
    "Feed",
    "ModelInputs",
    "NoBatchesError",
    "as_call",
    "copied",
    "crop_like",
    "device_of",
    "example_call",
    "example_from",
    "explained",
    "few",
    "peek",
    "read_batches",
    "to_device",
]

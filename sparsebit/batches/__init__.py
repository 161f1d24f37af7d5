"""The one rule for data: how the batches of a loader become calls of a model. The rule is in ``model_inputs``."""

from sparsebit.batches.calls import (
    Call,
    as_call,
    copied,
    crop_like,
    device_of,
    example_call,
    few,
    fit_examples,
    to_device,
)
from sparsebit.batches.loss import Loss, call_loss, require_loss
from sparsebit.batches.model_inputs import LABELS, Batch, Feed, ModelInputs, example_from, fitting_example
from sparsebit.batches.reading import MOST_BATCHES, DataError, NoBatchesError, explained, peek, read_batches

__all__ = [
    "LABELS",
    "MOST_BATCHES",
    "Batch",
    "Call",
    "DataError",
    "Feed",
    "Loss",
    "ModelInputs",
    "NoBatchesError",
    "as_call",
    "call_loss",
    "copied",
    "crop_like",
    "device_of",
    "example_call",
    "example_from",
    "explained",
    "few",
    "fit_examples",
    "fitting_example",
    "peek",
    "read_batches",
    "require_loss",
    "to_device",
]

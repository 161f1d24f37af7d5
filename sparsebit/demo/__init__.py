"""A small network, real images, and all steps from training to a report: ``make demo``."""

from sparsebit.demo.digits import held_out_data, training_data
from sparsebit.demo.digits_net import DigitsNet, net
from sparsebit.demo.language import language_model

__all__ = ["DigitsNet", "held_out_data", "language_model", "net", "training_data"]

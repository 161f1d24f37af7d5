"""What the user asked for: read from YAML, checked whole, and answered per tensor. Imports no torch."""

from sparsebit.config.engine.match import Layer
from sparsebit.config.engine.problems import ConfigProblems, Problem
from sparsebit.config.engine.specific import Rule
from sparsebit.config.pruning.criteria import SparserRule, register_sparser_name
from sparsebit.config.pruning.sconfig import SConfig, load_sconfig
from sparsebit.config.quantization.load import load_qconfig
from sparsebit.config.quantization.names import NameRule, register_name
from sparsebit.config.quantization.presets import preset_names, preset_text
from sparsebit.config.quantization.qconfig import QConfig
from sparsebit.config.quantization.tensor_spec import Options, Side, TensorSpec

__all__ = [
    "ConfigProblems",
    "Layer",
    "NameRule",
    "Options",
    "Problem",
    "QConfig",
    "Rule",
    "SConfig",
    "Side",
    "SparserRule",
    "TensorSpec",
    "load_qconfig",
    "load_sconfig",
    "preset_names",
    "preset_text",
    "register_name",
    "register_sparser_name",
]

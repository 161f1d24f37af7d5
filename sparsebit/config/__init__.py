"""The user's settings: read from YAML, checked immediately, and resolved per tensor. Does not import torch."""

from sparsebit.config.engine.match import Layer
from sparsebit.config.engine.options import Options
from sparsebit.config.engine.problems import ConfigProblems, Problem
from sparsebit.config.engine.schema import schema_text
from sparsebit.config.engine.specific import Rule
from sparsebit.config.pruning.criteria import SparserRule
from sparsebit.config.pruning.sconfig import SConfig, load_sconfig
from sparsebit.config.quantization.plugins import NameRule, register_name
from sparsebit.config.quantization.presets import preset_names, preset_text
from sparsebit.config.quantization.qconfig import QConfig, load_qconfig
from sparsebit.config.quantization.tensor_spec import TensorSpec
from sparsebit.targets.schemes import Side

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
    "schema_text",
]

"""What the user asked for: read from YAML, checked whole, and answered per tensor. Imports no torch."""

from sparsebit.config.load import load_qconfig
from sparsebit.config.match import Layer
from sparsebit.config.names import NameRule, register_name
from sparsebit.config.presets import preset_names, preset_text
from sparsebit.config.problems import ConfigProblems, Problem
from sparsebit.config.qconfig import QConfig
from sparsebit.config.sconfig import SConfig, load_sconfig
from sparsebit.config.sconfig_names import SparserRule, register_sparser_name
from sparsebit.config.specific import Rule
from sparsebit.config.tensor_spec import Options, Side, TensorSpec

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

"""Configs for language models: which weights, how many bits, which methods, and how much calibration text."""

from sparsebit.config.llm.llmconfig import FORMAT_NAMES, LlmConfig, MatrixSpec, load_llm_config
from sparsebit.config.llm.methods import METHOD_RULES

__all__ = ["FORMAT_NAMES", "METHOD_RULES", "LlmConfig", "MatrixSpec", "load_llm_config"]

"""Configs for language models: which weights, to how many bits, by which methods, measured on how much text."""

from sparsebit.config.llm.llmconfig import FORMAT_NAMES, LlmConfig, MatrixSpec, load_llm_config
from sparsebit.config.llm.methods import METHOD_RULES

__all__ = ["FORMAT_NAMES", "METHOD_RULES", "LlmConfig", "MatrixSpec", "load_llm_config"]

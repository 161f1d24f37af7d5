"""Configs for language models: which weights, to how many bits, by which method, measured on how much text."""

from sparsebit.config.llm.llmconfig import LlmConfig, MatrixSpec, load_llm_config
from sparsebit.config.llm.methods import METHOD_RULES, GptqSettings, RtnSettings

__all__ = ["METHOD_RULES", "GptqSettings", "LlmConfig", "MatrixSpec", "RtnSettings", "load_llm_config"]

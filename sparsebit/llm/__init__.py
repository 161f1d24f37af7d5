"""Language models: compressed block by block, and written for every engine."""

from sparsebit.llm.evaluate.perplexity import Evaluation
from sparsebit.llm.folders.pretrained import register_transformers
from sparsebit.llm.language_model import LanguageModel, LayerRecord
from sparsebit.llm.prune_model import prune
from sparsebit.llm.quantize_blocks import quantize

__all__ = ["Evaluation", "LanguageModel", "LayerRecord", "prune", "quantize", "register_transformers"]

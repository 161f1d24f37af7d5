"""Low-rank adapters over packed weights (QLoRA): added, initialized from the quantization error, trained, saved."""

from sparsebit.llm.lora.attach import add_lora, remove_lora
from sparsebit.llm.lora.files import load_lora, save_lora
from sparsebit.llm.lora.layer import LoraLinear
from sparsebit.llm.lora.train import train_lora

__all__ = ["LoraLinear", "add_lora", "load_lora", "remove_lora", "save_lora", "train_lora"]

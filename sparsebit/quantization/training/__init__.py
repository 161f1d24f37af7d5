"""What quantization-aware training needs in addition to ordinary training."""

"""What quantization-aware training needs beside ordinary training."""

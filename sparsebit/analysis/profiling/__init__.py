"""Where a quantized model errs: every layer and tensor against float."""

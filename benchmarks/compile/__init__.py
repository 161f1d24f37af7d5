"""Does ``torch.compile`` take a quantized model as one graph, and keep it?"""

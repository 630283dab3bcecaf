"""Data-parallel training of Hugging Face Llama models on torch.distributed."""

__version__ = "0.1.0"

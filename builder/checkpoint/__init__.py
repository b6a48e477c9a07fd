"""TensorRT-LLM checkpoints from Hugging Face models."""

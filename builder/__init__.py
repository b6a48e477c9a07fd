"""engine-builder: from a recipe to TensorRT-LLM engines, served images and published releases."""

__version__ = "0.1.0"

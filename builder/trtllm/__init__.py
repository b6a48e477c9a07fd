"""TensorRT-LLM: the commands that a unit comes to in a release's own containers."""

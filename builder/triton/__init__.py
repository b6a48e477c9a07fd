"""The Triton model repository: its tensors, its `config.pbtxt` files, and checks over a written one."""

"""The reference model: reads a TensorRT-LLM checkpoint of the Llama family as TensorRT-LLM would, in numpy.

It is the oracle of the conversion and the engine of the SKU `cpu`. The room imports nothing of ours.

    errors.py      ReferenceModelError: whatever isn't implemented or isn't as it should be is refused
    config.py      config.json → Config; build_config → Limits
    layout.py      the tensors that each rank must hold
    tensorfile.py  the safetensors format, bfloat16 included
    folder.py      a checkpoint or engine folder, checked as a whole
    linear.py      matrix products, laid out for speed
    layers.py      norm, rotary embedding, attention, MLP
    cache.py       the KV cache of one request
    model.py       ReferenceModel: load, prefill, decode
    sampling.py    SamplingParams, Sampler
    engine.py      write_engine: checkpoint → engine folder
"""

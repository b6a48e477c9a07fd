"""The reference model: reads a TensorRT-LLM checkpoint as TensorRT-LLM would, in numpy, and computes in float32.

It is the oracle of the conversion and the engine of the SKU `cpu`: Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE,
Gemma 1 to 3 and Phi-3, on any number of ranks. Quantised weights are dequantised when they are loaded, and a quantised
KV cache rounds what it stores; activations aren't rounded as kernels round them. The room imports nothing of ours.

    errors.py          ReferenceModelError: whatever isn't implemented or isn't as it should be is refused

    config.py          config.json → Config, from its parts:
    fields.py            a JSON object whose fields are taken out with their types checked
    families.py          what each architecture decides by itself, and the keys it knows
    layer_kinds.py       windows, local layers, experts
    rotary.py            rotary embeddings, and rope_scaling.py how they are stretched
    mapping.py           how the model is split over ranks
    quantization.py      which linears are stored how
    limits.py          build_config → Limits

    tensorfile.py      the safetensors format
    layout.py          the tensors that each rank must hold
    folder.py          a checkpoint or engine folder, checked as a whole
    floats.py          bfloat16, FP8, FP4
    weights.py         RankWeights: the tensors of a file as float32
    dequantize.py      the formats of quantised linears
    stored.py          dequantized, effective: a linear in whatever format it is stored
    loading.py         layers out of the files of their ranks

    linear.py          matrix products, laid out for speed
    layers.py          norm, activations, attention
    mlp.py             gated MLP, mixture of experts
    cache.py           the KV cache of one request
    model.py           ReferenceModel: load, prefill, decode
    sampling.py        SamplingParams, Sampler
    engine.py          write_engine: checkpoint → engine folder
"""

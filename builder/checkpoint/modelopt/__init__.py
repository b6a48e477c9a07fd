"""Quantisation by NVIDIA's ModelOpt in a process of its own: that process (`python -m builder.checkpoint.modelopt`),
which alone imports torch, transformers and the library, and what starts it and understands it.

    child.py         starts the worker, hears what it says, and ends it
    complaints.py    what it says went wrong, as our errors
    limits.py        what the library can't do, known without it

    __main__.py      the worker: a job comes as JSON on standard input, news go as JSON lines to standard output
    configs.py       the library's configs for our precisions
    recipes.py       configs from ModelOpt recipes
    loading.py       the model and its tokenizer
    calibration.py   texts run through the model
    exporting.py     the checkpoint
    ranks.py         its ranks, in TensorRT-LLM's format
    checks.py        what may not be in it
    failure.py       what goes wrong

The job: the fields of `builder.checkpoint.quantize.Quantization`, and

    parent           the process that must live as long as this one
    source, out      folders: the model, and where the checkpoint goes
    architecture, model_type, vocab_size, kv_heads, tied (embedding and head), model_bytes (all parameters in its dtype)
    stages           [[first layer, layer after the last], …] of each pipeline stage
    texts            to calibrate with

News: {"doing": "load" | "calibrate" | "export"}, {"passes": n} (how often all texts are run), {"texts": n} (so many
more were run), and at the end {"facts": {…}} or {"error": kind, "message": …}.
"""

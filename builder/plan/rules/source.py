"""Rules on what the source holds: weights that are quantised already, tokens, code, and what the lock couldn't pin."""

from __future__ import annotations

from collections.abc import Iterator

from builder import catalog
from builder.lock import names_needed
from builder.model.inventory import parameter_count
from builder.model.spec import SourceQuantization
from builder.model.stored import stored_bytes
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.unit import Unit

_SOURCE = ("model", "source")
_WEIGHTS = ("precision", "weights")

_READ = {
    "engine": ("awq", "gptq", "fbgemm_fp8"),
    "pytorch": ("modelopt", "fp8", "mxfp4"),
}
"""The methods of published checkpoints that each flow reads.

Source: engine: TensorRT-LLM examples/models/core/llama/convert_checkpoint.py@368f8f2a; pytorch: tensorrt_llm/llmapi/
llm_utils.py and _torch/model_config.py, 1.x (ModelOpt's hf_quant_config.json; `fp8` with blocks of 128x128; `mxfp4`;
NotImplementedError for the rest).
"""


_BUFFERS = 0.001
"""The share of a model's bytes that tensors may have which only repeat its configuration."""

_ALL_READ = {method for methods in _READ.values() for method in methods}


@rule("QUANT_METHOD_UNSUPPORTED", "refuse")
def quantisation_of_the_source_can_be_read(unit: Unit) -> Iterator[Problem]:
    """The source is quantised in a way that this flow of TensorRT-LLM doesn't read.

    A known format under a method that no source mentions (compressed-tensors) can be waived.
    """
    found = unit.spec.quantization
    if found is None or _is_read(found, unit.flow) or unit.maker == "converter":
        return
    other = "pytorch" if unit.flow == "engine" else "engine"
    elsewhere = _is_read(found, other) and not unit.gpu.is_cpu
    known = (
        "ModelOpt's exports, FP8 blocks of 128x128 and mxfp4"
        if unit.flow == "pytorch"
        else "awq, gptq, fbgemm_fp8, and of dense models ModelOpt's exports and compressed-tensors FP8"
    )
    yield Problem(
        f"the weights are quantised with {found.method}, which the {unit.flow} flow doesn't read; it reads {known}",
        _SOURCE,
        (f"use flow: {other}, which reads it; or " if elsewhere else "")
        + "name the unquantised model as source: it can be quantised here",
        {"method": found.method, "precision": found.precision},
        severity="refuse-waivable" if found.precision and found.method not in _ALL_READ else None,
    )


def _is_read(found: SourceQuantization, flow: str) -> bool:
    if found.precision is None or found.method not in _READ[flow]:
        return False
    return found.method != "fp8" or found.precision == "fp8-block"


@rule("CHECKPOINT_ALREADY_QUANTIZED", "refuse")
def quantised_source_is_used_as_published(unit: Unit) -> Iterator[Problem]:
    """A quantised source holds no plain weights: it can be used as published, never converted to another format."""
    found = unit.spec.quantization
    if found is None or unit.as_published or found.precision is None:
        return
    asked = unit.settings.precision.weights
    yield Problem(
        f"the source is quantised already: {found.method}, {found.precision}; the recipe asks for {asked}",
        _WEIGHTS,
        f"write precision.weights: {catalog.AS_PUBLISHED}, or name the unquantised model as source",
        {"method": found.method, "published": found.precision, **_layout(unit, found)},
    )


def _layout(unit: Unit, found: SourceQuantization) -> dict[str, object]:
    """Shapes of what is stored for the query projection, K inputs and N outputs, in the two int32 layouts.

    AWQ packs along outputs, GPTQ along inputs; scales are (K / group, N). Source: AutoAWQ and AutoGPTQ checkpoints.
    """
    if found.method not in ("awq", "gptq") or not found.bits or not found.group_size or 32 % found.bits:
        return {}
    inputs, outputs = unit.spec.hidden_size, unit.spec.num_attention_heads * unit.spec.head_dim
    packed = 32 // found.bits
    return {
        "awq_qweight": [inputs, outputs // packed],
        "gptq_qweight": [inputs // packed, outputs],
        "scales": [inputs // found.group_size, outputs],
    }


@rule("KV_CACHE_CONTRADICTS_SOURCE", "refuse")
def kv_cache_agrees_with_the_published_checkpoint(unit: Unit) -> Iterator[Problem]:
    """A published checkpoint that has scales for its KV cache is run with that format, or not at all.

    Source: TensorRT-LLM tensorrt_llm/_torch/pyexecutor/model_loader.py, validate_and_set_kv_cache_quant, which raises.
    In the engine flow nothing adds a quantised KV cache to a checkpoint that was quantised elsewhere.
    """
    found, asked = unit.spec.quantization, unit.kv_precision
    if found is None or not unit.as_published or unit.settings.precision.kv_cache == "auto":
        return
    contradicts = found.kv_cache is not None and found.kv_cache != asked.name
    if contradicts or (unit.flow == "engine" and asked.quant_algo is not None and found.kv_cache != asked.name):
        yield Problem(
            f"the published checkpoint has {found.kv_cache or 'no scales for a quantised'} KV cache, "
            f"the recipe asks for {asked.name}",
            ("precision", "kv_cache"),
            "write precision.kv_cache: auto, or name the unquantised model as source",
            {"published": found.kv_cache},
        )


@rule("HEAD_STORED_TWICE", "warn")
def tied_head_is_stored_once(unit: Unit) -> Iterator[Problem]:
    """A tied model's output head is its embedding; some repositories store it all the same."""
    spec, tensors = unit.spec, unit.lock.tensors
    if not spec.tie_word_embeddings or tensors is None or not tensors.head_stored or spec.dtype == "float32":
        return
    unique = 2 * parameter_count(spec)
    yield Problem(
        f"tie_word_embeddings is true, and the head is stored beside the embedding: {tensors.bytes:,} bytes of tensors "
        f"are downloaded for {unique:,} bytes of distinct weights",
        _SOURCE,
        "nothing needs to be done: the head is compared with the embedding when it is converted",
        {"tensor_bytes": tensors.bytes, "unique_bytes": unique, "head_bytes": 2 * spec.vocab_size * spec.hidden_size},
    )


@rule("TOKEN_ID_OUT_OF_RANGE", "refuse-waivable")
def token_ids_are_in_the_embedding(unit: Unit) -> Iterator[Problem]:
    """Every id that the tokenizer can give has a row in the embedding; else the lookup reads outside of it.

    Where such a token never occurs in requests, as an image token in a model for text, a waiver may say so.
    """
    tokenizer, rows = unit.lock.tokenizer, unit.spec.vocab_size
    if unit.lock.tensors is not None and unit.lock.tensors.embedding_rows is not None:
        rows = min(rows, unit.lock.tensors.embedding_rows)
    if tokenizer is None or tokenizer.max_token_id < rows:
        return
    outside = {token: number for token, number in tokenizer.added_tokens.items() if number >= rows}
    named = (
        listed((f"{token} (id {number})" for token, number in outside.items()), "and")
        if outside
        else (f"id {tokenizer.max_token_id}")
    )
    yield Problem(
        f"the tokenizer can give {named}, the embedding has rows for ids up to {rows - 1}",
        _SOURCE,
        "resize the embedding and publish the model again, remove the tokens, or waive TOKEN_ID_OUT_OF_RANGE if no "
        "request can hold them",
        {"max_id": tokenizer.max_token_id, "max_legal": rows - 1, "tokens": outside},
    )


@rule("EMBEDDING_ROWS", "refuse")
def embedding_has_the_size_of_the_vocabulary(unit: Unit) -> Iterator[Problem]:
    """The stored embedding has as many rows as config.json says: converters fail on another shape."""
    tensors, vocabulary = unit.lock.tensors, unit.spec.vocab_size
    if tensors is None or tensors.embedding_rows is None or tensors.embedding_rows == vocabulary:
        return
    yield Problem(
        f"config.json says vocab_size {vocabulary}, the stored embedding has {tensors.embedding_rows} rows",
        _SOURCE,
        f"set vocab_size to {tensors.embedding_rows} in config.json, or resize the embedding",
        {"vocab_size": vocabulary, "embedding_rows": tensors.embedding_rows},
    )


@rule("TENSOR_BYTES", "warn")
def stored_tensors_are_those_of_the_model(unit: Unit) -> Iterator[Problem]:
    """The stored tensors have the size that config.json makes: less are missing or misread, more are not part of it.

    Up to a thousandth more is common: Llama-2's files also hold what rope_theta says (`rotary_emb.inv_freq`).
    """
    spec, tensors = unit.spec, unit.lock.tensors
    if tensors is None or spec.quantization is not None or spec.towers:
        return
    head = tensors.head_stored if spec.tie_word_embeddings else None
    most, least = (stored_bytes(spec, head=head, next_token=further) or 0 for further in (True, False))
    if least <= tensors.bytes <= most * (1 + _BUFFERS):
        return
    yield Problem(
        f"the weight files hold {tensors.bytes:,} bytes of tensors, config.json makes {most:,}: "
        + ("some are missing, or stored in a smaller format" if tensors.bytes < least else "some aren't part of it"),
        _SOURCE,
        "check that config.json and weights belong together, and the dtype and the numbers of layers and experts in it",
        {"stored": tensors.bytes, "expected": most},
    )


@rule("UNRESOLVED", "warn")
def everything_is_pinned(unit: Unit) -> Iterator[Problem]:
    """What couldn't be reached when locking: the unit can be planned, not built."""
    if not unit.lock.unresolved:
        return
    needed = names_needed(unit.recipe, unit.target)
    for item in unit.lock.unresolved:
        if item.name in needed:
            yield Problem(
                f"{item.name} isn't pinned: {item.reason}",
                _place(unit, item.name),
                "make it reachable, then run `engine-builder lock`; until then the unit can be planned, not built",
                {"name": item.name},
            )


def _place(unit: Unit, name: str) -> tuple[str | int, ...]:
    """The value of the recipe that names it."""
    settings = unit.settings
    if name == settings.package.base:
        return ("package", "base")
    if settings.calibration and name == settings.calibration.dataset:
        return ("calibration", "dataset")
    if name == settings.serving.chat_template:
        return ("serving", "chat_template")
    if name in (unit.toolchain.build_image, unit.toolchain.serving_image):
        return ("toolchain",)
    return _SOURCE

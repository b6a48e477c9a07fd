"""What a forward pass needs beside weights and cache: activations, logits, and buffers of the runtime.

TensorRT-LLM allocates the execution context's memory once, for max_num_tokens tokens; only one layer's activations
live at a time; splitting over tensor ranks shrinks them, pipeline stages don't (docs/source/legacy/reference/memory.md
@48dd1c94). How much of a layer TensorRT keeps alive isn't documented. Known points, all with 16-bit activations:

    model                                    max_num_tokens   context memory      less logits, per token
    DeepSeek-R1-Distill-Qwen-1.5B INT4-WO    8,192, batch 2,048   921.51 MiB       41,984 B = 4·hidden + 4·intermediate
    Llama-2-7B FP8, 0.11                     8,192                1,112.00 MiB    142,336 B
    7B of the documentation, FP8             8,192 (default)      1,134.01 MiB    145,153 B
    Llama-2-7B FP16, 2023, batch 64          64 · 2,048           ≤ 11,036 MiB    ≤ 88,288 B
    DeepSeek-V3 INT4-WO, tp 8                8,192 (default)      2,265.58 MiB

low: the first of them to 0.01 MiB, the smallest: residual and hidden state, and both halves of the gated MLP, of 16 bit
    each: 2·(2·hidden + 2·intermediate/tp). With experts, each token is there once per expert that it goes to.
high: nothing of a layer is reused, and every input of a linear has an 8-bit copy ("FP8 GEMM can raise activation above
    theory"): 146,688 B for Llama-2-7B, just above the largest point.
Logits come on top, max_batch_size · vocab_size of 16 bit: 593.5 of the 921.51 MiB above.
"""

from __future__ import annotations

from functools import lru_cache

from builder.model.families import families
from builder.model.spec import Attention, Layer, ModelSpec
from builder.plan.memory.ranges import GIB, MIB, Range
from builder.plan.memory.weights import Split

_LOGIT_BYTES = 4

CUDA_CONTEXT = Range(350 * MIB, int(3.5 * GIB))
"""The CUDA context, libraries, decoder buffers, and what the driver keeps of the memory that it reports.

low: 362 MiB were in use beside the engine of a Llama-3-8B before its context was made (third-party log). 558 MiB are
left over in NVIDIA/TensorRT-LLM issue 548. high: the fixed reserve of NVIDIA's planner, ai-dynamo/aiconfigurator
@095f58a5, which covers the 0.4 to 0.9 GiB between memory.total and what CUDA sees (A100: 80.0 and 79.14 GiB).
"""

_WITHOUT_DECODER = int(1.5 * GIB)
_DECODER_COPIES = 6

NCCL_BYTES = {1: 0, 2: 342_000_000}
NCCL_BYTES_OF_MORE = 392_000_000
"""By the number of ranks, from the same planner; at the high end only, since all-reduce has kernels of its own."""


def padded_vocabulary(spec: ModelSpec, tp: int) -> int:
    return -(-spec.vocab_size // tp) * tp


def activations(
    spec: ModelSpec,
    split: Split,
    dtype_bytes: int,
    max_num_tokens: int,
    logit_rows: int,
    unfused_length: int = 0,
) -> Range:
    """The execution context's memory on a rank, in bytes; see above.

    logit_rows: positions whose logits are computed in one pass, at least one per sequence of the batch; on other
    pipeline stages than the last it is 0. unfused_length: longest prompt, if context FMHA is off; its scores are then
    a matrix for each head.
    """
    per_token = token_bytes(spec, split, dtype_bytes)
    rows, vocabulary = min(logit_rows, max_num_tokens), padded_vocabulary(spec, split.tensor)
    scores = 0
    if unfused_length:
        scores = spec.num_attention_heads // split.tensor * max_num_tokens * unfused_length * dtype_bytes
    gathered = vocabulary * dtype_bytes * (split.tensor > 1)
    share = vocabulary // split.tensor * dtype_bytes
    return Range(
        max_num_tokens * per_token.low + rows * share,
        max_num_tokens * per_token.high + logit_rows * (share + gathered) + scores,
    )


@lru_cache(maxsize=4096)
def token_bytes(spec: ModelSpec, split: Split, dtype_bytes: int) -> Range:
    """Bytes per token of max_num_tokens in the widest layer."""
    gated = families()[spec.model_type].gated
    found = [_layer(spec, layer, split, dtype_bytes, gated) for layer in dict.fromkeys(spec.layers)]
    return Range(max(one.low for one in found), max(one.high for one in found))


def _layer(spec: ModelSpec, layer: Layer, split: Split, size: int, gated: bool) -> Range:
    """Widths of what the parts of a layer make, in values per token; `copied` is what linears read."""
    tp, hidden, halves = split.tensor, spec.hidden_size, 2 if gated else 1
    least = most = copied = 0
    if layer.attention is not None:
        fused, out = _attention(layer.attention, tp)
        least, most, copied = max(least, fused), most + fused + out + hidden, copied + hidden + out
    if layer.recurrent is not None:
        inner = (layer.recurrent.inner_size + layer.recurrent.conv_channels) // tp
        least, most, copied = max(least, inner), most + 2 * inner + hidden, copied + hidden + inner
    if layer.intermediate_size is not None:
        inner = layer.intermediate_size // tp
        least, most, copied = max(least, halves * inner), most + (halves + 1) * inner, copied + hidden + inner
    if layer.experts is not None:
        experts = layer.experts
        inner, shared = experts.intermediate_size // split.moe_tensor, experts.shared_intermediate_size // tp
        into = experts.latent_size or hidden
        there = experts.per_token / split.moe_expert
        least = max(least, halves * shared + int(there * (into + halves * inner)))
        most += (halves + 1) * shared + experts.per_token * (2 * into + (halves + 1) * inner)
        copied += experts.per_token * (into + inner) + hidden + shared
    return Range(size * (2 * hidden + least), size * (2 * hidden + most) + copied)


def _attention(attention: Attention, tp: int) -> tuple[int, int]:
    """Width of queries, keys and values, and of the result, on one rank."""
    heads = -(-attention.heads // tp)
    if attention.mla is not None:
        latent = attention.mla.kv_lora_rank + attention.mla.qk_rope_head_dim
        return heads * attention.head_dim + latent, heads * attention.mla.v_head_dim
    return heads * attention.head_dim + attention.kv_values_per_token(tp), heads * attention.head_dim


def logits_bytes(spec: ModelSpec, tp: int, logit_rows: int, value_bytes: int = _LOGIT_BYTES) -> int:
    """The runtime's buffer of logits, float32 unless the engine says otherwise, whole on every rank of the last stage.

    With gather_context_logits it has a row for every token of a pass beside one for every sequence.
    """
    return logit_rows * padded_vocabulary(spec, tp) * value_bytes


def all_reduce_bytes(tp: int) -> int:
    """The workspace of TensorRT-LLM's own all-reduce kernels on each GPU: buffers of tp · size, five of them; size is
    16 MB for two ranks, 8 MB for more (tensorrt_llm/plugin/plugin.py, CustomAllReduceHelper)."""
    if tp == 1:
        return 0
    return 5 * tp * (16_000_000 if tp <= 2 else 8_000_000)


def overhead(ranks: int, logits: int) -> Range:
    """CUDA, NCCL, and the decoder of the runtime, which keeps several copies of the logits (`logits` bytes each).

    180.30 MB of decoder are 5.5 times the logits of 256 sequences (the default) of 32,000 tokens in the log of
    docs/source/legacy/reference/memory.md; large batches need more than the reserve.
    """
    high = max(CUDA_CONTEXT.high, _WITHOUT_DECODER + _DECODER_COPIES * logits)
    return Range(CUDA_CONTEXT.low, high + NCCL_BYTES.get(ranks, NCCL_BYTES_OF_MORE))

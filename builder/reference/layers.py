"""What a decoder layer consists of, apart from its matrix products; all in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from builder.reference.floats import Float32


def rms_norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    """(…, size) → (…, size), each vector scaled to a root mean square of 1, then by `weight` (size,)."""
    mean_square: Float32 = np.einsum("...j,...j->...", x, x)[..., None] / np.float32(x.shape[-1])
    normed: Float32 = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return normed


def silu(x: Float32) -> Float32:
    with np.errstate(over="ignore"):  # exp overflows to infinity where silu is 0
        return np.asarray(x / (1 + np.exp(-x)), dtype=np.float32)


def gelu_tanh(x: Float32) -> Float32:
    """The approximation with tanh: TensorRT-LLM has no other gelu (tensorrt_llm/functional.py)."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    result: Float32 = np.float32(0.5) * x * (1 + np.tanh(inner))
    return result


ACTIVATIONS: Mapping[str, Callable[[Float32], Float32]] = {"silu": silu, "gelu_tanh": gelu_tanh}


def soft_capped(x: Float32, cap: float | None) -> Float32:
    """c · tanh(x / c), in place; x itself without a cap."""
    if cap is not None:
        x /= np.float32(cap)
        np.tanh(x, out=x)
        x *= np.float32(cap)
    return x


def causal_attention(
    queries: Float32,
    keys: Float32,
    values: Float32,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Float32:
    """Grouped-query attention of the last tokens of a sequence over what of it is given.

    queries (rows, heads, head_size); keys and values (KV heads, tokens, head_size), rows ≤ tokens, of which the last
    `rows` are those of the queries. Neighbouring heads share a KV head. With a window, a token sees the last `window`
    tokens, itself included. Returns (rows, heads · head_size).
    """
    rows, heads, head_size = queries.shape
    kv_heads, tokens, _ = keys.shape
    grouped = queries.transpose(1, 0, 2).reshape(kv_heads, -1, head_size) * np.float32(scale)
    scores = soft_capped(grouped @ keys.transpose(0, 2, 1), soft_cap)
    masked = scores.reshape(kv_heads, -1, rows, tokens)
    if rows > 1:
        masked[..., tokens - rows :] += np.triu(np.full((rows, rows), -np.inf, dtype=np.float32), 1)
    if window is not None and tokens > window:
        newest = np.arange(tokens - rows, tokens)[:, None]
        masked += np.where(newest - np.arange(tokens) >= window, np.float32(-np.inf), np.float32(0))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Float32 = (scores @ values) / scores.sum(axis=-1, keepdims=True)
    return mixed.reshape(heads, rows, head_size).transpose(1, 0, 2).reshape(rows, heads * head_size)

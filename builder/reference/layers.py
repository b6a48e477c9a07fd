"""What a decoder layer of the Llama family consists of, apart from its matrix products; all in float32."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from builder.reference.config import Config, LinearScaling
from builder.reference.weights import Float32


def rms_norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    """(rows, hidden) → (rows, hidden), each row scaled to a root mean square of 1, then by `weight`."""
    mean_square: Float32 = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
    normed: Float32 = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return normed


def swiglu(gate_up: Float32) -> Float32:
    """(rows, 2·inner), the activated half first → silu(gate) · up, (rows, inner)"""
    gate, up = np.split(gate_up, 2, axis=1)
    with np.errstate(over="ignore"):  # exp overflows to infinity where silu is 0
        return gate / (1 + np.exp(-gate)) * up


def inverse_frequencies(config: Config) -> Float32:
    """(head_size / 2,) radians per position, as create_sinusoidal_positions_for_attention_plugin and
    apply_llama3_scaling of tensorrt_llm/functional.py compute them."""
    exponents = np.arange(0, config.head_size, 2) / config.head_size
    frequencies = (1 / config.rotary_base**exponents).astype(np.float32)
    scaling = config.rotary_scaling
    if scaling is None:
        return frequencies
    if isinstance(scaling, LinearScaling):
        return frequencies / np.float32(scaling.factor)
    # turns that a frequency makes over the original context, placed between the two factors: 0 = long, 1 = short wave
    turns = scaling.original_max_position_embeddings * frequencies.astype(np.float64) / (2 * math.pi)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = np.clip(share, 0, 1)
    return (frequencies * ((1 - smooth) / scaling.factor + smooth)).astype(np.float32)


class RotaryAngles:
    """rope_gpt_neox: element i of the first half of a head turns with element i of the second half."""

    def __init__(self, frequencies: Float32, positions: npt.NDArray[np.int64]) -> None:
        angles = positions.astype(np.float32)[:, None, None] * frequencies
        self._cos, self._sin = np.cos(angles), np.sin(angles)

    def rotate(self, heads: Float32) -> None:
        """Turn (rows, heads, head_size) in place; row i stands at positions[i]."""
        first, second = np.split(heads, 2, axis=2)
        turned = first * self._cos - second * self._sin
        second *= self._cos
        second += first * self._sin
        first[:] = turned


def causal_attention(queries: Float32, keys: Float32, values: Float32) -> Float32:
    """Grouped-query attention of the last tokens of a sequence over all of it.

    queries (rows, heads, head_size); keys and values (KV heads, tokens, head_size), rows ≤ tokens, of which the last
    `rows` are those of the queries. Neighbouring heads share a KV head. Returns (rows, heads · head_size).
    """
    rows, heads, head_size = queries.shape
    kv_heads, tokens, _ = keys.shape
    grouped = queries.transpose(1, 0, 2).reshape(kv_heads, -1, head_size) * np.float32(1 / math.sqrt(head_size))
    scores = grouped @ keys.transpose(0, 2, 1)
    if rows > 1:
        future = np.triu(np.full((rows, rows), -np.inf, dtype=np.float32), 1)
        scores.reshape(kv_heads, -1, rows, tokens)[..., tokens - rows :] += future
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Float32 = (scores @ values) / scores.sum(axis=-1, keepdims=True)
    return mixed.reshape(heads, rows, head_size).transpose(1, 0, 2).reshape(rows, heads * head_size)

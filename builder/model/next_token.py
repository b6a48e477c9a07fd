"""The layers for multi-token prediction that some models store beside their own; engines don't have them.

Structures: README_WEIGHTS.md of deepseek-ai/DeepSeek-V3 (numbered after the other layers, with copies of embedding and
head), modeling_mimo.py of XiaomiMiMo/MiMo-7B-Base, and the names under
"mtp." in model.safetensors.index.json of Qwen/Qwen3.5-35B-A3B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from builder.model.families import families
from builder.model.layer_weights import Weight, layer_weights
from builder.model.quantized_modules import Exclusions
from builder.model.spec import ModelSpec


@dataclass(frozen=True)
class _Structure:
    """`norms` and the projection of two vectors to one, `joint`, are in each layer, or once, `before` all of them."""

    prefix: str
    norms: tuple[str, ...]
    joint: str
    before: str | None = None
    after_others: bool = False
    copies: bool = False


_STRUCTURES = {
    "deepseek": _Structure(
        "model.layers.*.", ("enorm", "hnorm", "shared_head.norm"), "eh_proj", after_others=True, copies=True
    ),
    "mimo": _Structure("model.mtp_layers.*.", ("token_layernorm", "hidden_layernorm", "final_layernorm"), "input_proj"),
    "qwen3_5": _Structure("mtp.layers.*.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), "fc", "mtp."),
}


@lru_cache(maxsize=1024)
def next_token_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Their tensors; empty if there are none, or if their structure isn't known."""
    family = families()[spec.model_type]
    structure = _STRUCTURES.get(family.next_token.kind) if family.next_token else None
    if structure is None or not spec.next_token_layers:
        return ()
    first = spec.num_hidden_layers if structure.after_others else 0
    where = tuple(range(first, first + spec.next_token_layers))
    hidden, vocabulary = spec.hidden_size, (spec.vocab_size, spec.hidden_size)
    prefix = structure.prefix
    layer = next(layer for layer in reversed(spec.layers) if layer.attention is not None)
    listed = [*layer_weights(spec, family, layer, prefix)]
    if structure.copies:
        listed.append(Weight(f"{prefix}embed_tokens.weight", vocabulary, "embedding"))
        listed.append(Weight(f"{prefix}shared_head.head.weight", vocabulary, "head"))
    around = structure.before or prefix
    joining = [Weight(f"{around}{name}.weight", (hidden,), "norm") for name in structure.norms]
    joining.append(Weight(f"{around}{structure.joint}.weight", (hidden, 2 * hidden), "other"))
    excluded = Exclusions(spec.quantization.excluded if spec.quantization else ())
    once = joining if structure.before else []
    each = listed if structure.before else listed + joining
    return (*(part for weight in each for part in excluded.applied(weight, where)), *once)

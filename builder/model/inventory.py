"""The tensors of a model as Hugging Face names them, and how many parameters they are."""

from __future__ import annotations

from functools import lru_cache

from builder.model.families import families
from builder.model.layer_weights import Weight, layer_weights, norm_weights
from builder.model.quantized_modules import Exclusions
from builder.model.spec import Layer, ModelSpec


@lru_cache(maxsize=1024)
def weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """All tensors but those of multi-token prediction; the head of a tied model isn't among them."""
    family = families()[spec.model_type]
    excluded = Exclusions(spec.quantization.excluded if spec.quantization else ())
    vocabulary = (spec.vocab_size, spec.hidden_size)
    result = [Weight(f"{family.prefix}{family.name('embedding')}.weight", vocabulary, "embedding")]
    if family.positions is not None:
        positions = (spec.max_position_embeddings, spec.hidden_size)
        result.append(Weight(f"{family.prefix}{family.positions}.weight", positions, "other"))
    numbers: dict[Layer, list[int]] = {}
    for number, layer in enumerate(spec.layers):
        numbers.setdefault(layer, []).append(number)
    for layer, where in numbers.items():
        for weight in layer_weights(spec, family, layer, f"{family.prefix}{family.name('layers')}.*."):
            result += excluded.applied(weight, tuple(where))
    result += norm_weights(spec, family, f"{family.prefix}{family.final_norm}")
    if not spec.tie_word_embeddings:
        result.append(Weight(f"{family.head}.weight", vocabulary, "head"))
    return tuple(result)


@lru_cache(maxsize=1024)
def parameter_count(spec: ModelSpec) -> int:
    """All parameters without those of multi-token prediction; a tied head counts once, with the embedding."""
    return sum(weight.parameters for weight in weights(spec))

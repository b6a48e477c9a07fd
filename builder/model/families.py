"""The model families that we know, as records over families.yaml: how a config is read, and which tensors there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class ExpertKeys:
    """The config keys of a mixture of experts.

    `shared` counts shared experts of the same `width`, unless `shared_width` says how wide they are together. `dense`
    tells which layers have a dense MLP instead: "none", "first" (first_k_dense_replace), "step" (decoder_sparse_step
    and mlp_only_layers), "interleaved" (moe_layers or interleave_moe_layer_step), or all of them have it "beside" the
    experts. `switch` turns experts on. `latent` is the narrower width that experts work in. `fused`: one tensor
    holds all experts, gate and up side by side. `normalized` is the key of whether the weights of a token's experts sum
    up to 1; without one they do.
    """

    count: str
    per_token: str
    width: str
    shared: str | None = None
    shared_width: str | None = None
    dense: str = "none"
    switch: str | None = None
    latent: str | None = None
    fused: bool = False
    bias: bool = False
    normalized: str | None = None


@dataclass(frozen=True)
class NextToken:
    """Layers for multi-token prediction: the config key that counts them, and whose structure they have."""

    count: str
    kind: str


@dataclass(frozen=True)
class Extra:
    """A small parameter of a layer: its `size` is "one", "hidden", "heads" or "experts". `of`: only where there are."""

    name: str
    size: str
    of: str | None = None


NAMES = {
    "layers": "layers",
    "embedding": "embed_tokens",
    "attention": "self_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "recurrent": "linear_attn",
    "mlp": "mlp",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
    "experts": "mlp",
    "expert_gate": "gate_proj",
    "expert_up": "up_proj",
    "expert_down": "down_proj",
    "router": "gate",
    "shared": "shared_experts",
    "shared_gate": "",
}
"""What the modules of a layer are called where a family doesn't say otherwise."""


@dataclass(frozen=True)
class Family:
    """One model_type. Reading:

    nested: the model_types of `text_config`, where the language model is described.
    keys: what this family calls a field; of several spellings the first that is there counts.
    defaults: class defaults of transformers for keys that published configs leave out.
    only: values of keys that would change the structure; others are refused.
    attention_bias, mlp_bias: "always", "never", or the key that tells. output_bias: "never" if the output has none.
    windows: which layers have one where `layer_types` doesn't say: "none", "all", "last" (from max_window_layers on),
        "chunked", or all but every nth, {"every": n} or {"key": name of the key with n}.
    hybrid: where layers differ in kind: "linear" (layer_types), "pattern" (hybrid_override_pattern), "blocks".
    scales: keys of numbers that attention and logits are scaled or capped with.
    latent: multi-head latent attention. global_heads: full attention has heads of its own size.

    Tensors: `prefix` of all but the head, `names` of modules as in NAMES, what is fused, which biases there are.
    """

    model_type: str
    architectures: tuple[str, ...]
    nested: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    attention_bias: str = "attention_bias"
    output_bias: str = "same"
    mlp_bias: str = "never"
    qk_norm: str = "none"
    scales: tuple[str, ...] = ()
    rotary: bool = True
    local_rope_theta: str | None = None
    windows: Any = "none"
    hybrid: str | None = None
    latent: bool = False
    indexer: bool = False
    global_heads: bool = False
    experts: ExpertKeys | None = None
    next_token: NextToken | None = None
    default_mlp_ratio: int | None = None
    prefix: str = "model."
    head: str = "lm_head"
    final_norm: str = "norm"
    positions: str | None = None
    layer_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    gated: bool = True
    fused_attention: str | None = None
    fused_mlp: str | None = None
    query_gate: bool = False
    linear_projections: tuple[str, ...] = ()
    router_bias: bool = False
    router_correction: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[Extra, ...] = ()

    def name(self, module: str) -> str:
        return self.names.get(module, NAMES[module])


@cache
def families() -> Mapping[str, Family]:
    """All families by model_type."""
    text = files(__package__).joinpath("families.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table: dict[str, dict[str, Any]] = yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader, in C where there is one
    return {name: _family(name, _whole(table, name)) for name in table}


def family_of(architecture: str, model_type: str | None) -> Family | None:
    """The family of a model; without a model_type the one that its architecture names alone."""
    if model_type is None:
        candidates = [family for family in families().values() if family.architectures[0] == architecture]
        return candidates[0] if candidates else None
    family = families().get(model_type)
    return family if family is not None and architecture in family.architectures else None


def _whole(table: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """What a family says, over what the family it is `like` says; a field isn't merged but replaced."""
    row = dict(table[name])
    like = row.pop("like", None)
    return {**_whole(table, like), **row} if like else row


def _family(name: str, row: Mapping[str, Any]) -> Family:
    values = dict(row)
    known = {item.name for item in fields(Family)}
    if unknown := values.keys() - known:
        raise ValueError(f"families.yaml: {name} has unknown fields {sorted(unknown)}")
    if values.get("experts"):
        values["experts"] = ExpertKeys(**values["experts"])
    if values.get("next_token"):
        values["next_token"] = NextToken(**values["next_token"])
    values["extra"] = tuple(Extra(**extra) for extra in values.get("extra", ()))
    for sequence in ("architectures", "nested", "scales", "layer_norms", "linear_projections"):
        if sequence in values:
            values[sequence] = tuple(values[sequence])
    return Family(model_type=name, **values)

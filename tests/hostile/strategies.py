"""Recipes and configs as a careless or hostile person writes them: good ones with a few values changed at random."""

import copy
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from builder import catalog

KeyPath = tuple[str | int, ...]

CONFIGS = Path(__file__).parents[1] / "configs"

NUMBERS = st.sampled_from(
    [
        -(1 << 70),
        -1,
        0,
        1,
        2,
        3,
        7,
        8,
        64,
        100,
        127,
        128,
        1000,
        4096,
        131072,
        (1 << 30) - 1,
        1 << 30,
        1 << 31,
        1 << 62,
        10**30,
    ]
)
FLOATS = st.sampled_from([-1.5, -0.0, 0.0, 1e-320, 1e-9, 0.5, 0.999999, 1.0, 1.5, 8.0, 1e9, 1e18, 1e299, 1e308])
WORDS = st.sampled_from(
    [
        "",
        " ",
        "auto",
        "none",
        "cpu",
        "fp8",
        "yarn",
        "llama3",
        "gptq",
        "fp8-block",
        "./model",
        "hf://a/b",
        "../x",
        "é",
        "🔥",
    ]
) | st.text(max_size=6)
SCALARS = st.none() | st.booleans() | NUMBERS | FLOATS | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | WORDS, inner, max_size=3),
    max_leaves=6,
)

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "fuzz",
    "version": "1.0.0",
    "description": "x",
    "model": {"source": "./model", "license": "mit", "trust_remote_code": False},
    "toolchain": "trtllm-1.2.1",
    "flow": "engine",
    "precision": {"weights": "bf16", "kv_cache": "auto", "activations": "auto", "quantize_lm_head": False},
    "calibration": {"dataset": "file:texts.jsonl", "samples": 4, "max_length": 64, "batch_size": 1, "seed": 1},
    "limits": {
        "max_batch_size": 8,
        "max_seq_len": 4096,
        "max_input_len": 2048,
        "max_num_tokens": 4096,
        "opt_num_tokens": 8,
        "max_beam_width": 1,
    },
    "parallelism": {"tensor": 1, "pipeline": 1, "context": 1},
    "engine": {"context_fmha": True},
    "lora": {"max_rank": 8, "target_modules": ["attn_q"], "adapters": []},
    "speculative": {"mode": "lookahead_decoding", "max_draft_len": 4},
    "serving": {
        "family": "bls",
        "streaming": True,
        "kv_cache_free_gpu_mem_fraction": 0.9,
        "max_tokens_in_paged_kv_cache": 4096,
        "kv_cache_host_memory_bytes": 0,
        "enable_kv_cache_reuse": True,
        "enable_chunked_context": False,
        "max_queue_size": 0,
        "guided_decoding": "none",
        "chat_template": "file:template.jinja",
    },
    "package": {"base": "none"},
    "runner": {"labels": ["a"], "disk_gb": 1000.0, "memory_gb": 64.0},
    "waivers": [{"code": "TP_HEADS", "reason": "because I say so"}],
    "publish": {"repository": "ghcr.io/a/b"},
    "targets": [{"sku": "h100-sxm-80gb"}, {"sku": "l40s-48gb", "name": "two", "gpus": 2, "parallelism": {"tensor": 2}}],
}
_OPTIONAL = ("calibration", "lora", "speculative", "waivers", "runner", "engine", "publish", "description")


@st.composite
def recipes(draw: st.DrawFn) -> str:
    """A recipe as YAML."""
    recipe = copy.deepcopy(RECIPE)
    for name in _OPTIONAL:
        if draw(st.booleans()):
            del recipe[name]
    recipe["toolchain"] = draw(st.sampled_from(sorted(catalog.toolchains())))
    recipe["flow"] = draw(st.sampled_from(["engine", "pytorch"]))
    recipe["precision"]["weights"] = draw(st.sampled_from([*catalog.precisions(), "as-published"]))
    recipe["precision"]["kv_cache"] = draw(st.sampled_from(["auto", *catalog.kv_precisions()]))
    for target in recipe["targets"]:
        target["sku"] = draw(st.sampled_from(sorted(catalog.gpus())))
    split = st.sampled_from([1, 1, 2, 3, 4, 8, 16])
    recipe["parallelism"] = {name: draw(split) for name in recipe["parallelism"]}
    if recipe["flow"] == "pytorch":
        recipe.pop("engine", None)
        recipe["serving"]["family"] = "llmapi"
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 4]))):
        _change(draw, recipe)
    return yaml.safe_dump(recipe, allow_unicode=True, sort_keys=False)


@st.composite
def configs(draw: st.DrawFn) -> str:
    """A config.json: a published one with some of its values changed, gone, or moved."""
    config = copy.deepcopy(published()[draw(st.sampled_from(sorted(published())))])
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 4]))):
        _change(draw, config)
    return json.dumps(config)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, int]:
    """The header of a safetensors file and the file's size: of some tensors that fit together, with some of its values
    changed."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in draw(st.lists(st.text(max_size=4), max_size=3, unique=True)):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        end = position + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, end]}
        position = end
    for _ in range(draw(st.integers(0, 2))):
        _change(draw, header)
    text = json.dumps(header).encode()
    return text, draw(st.sampled_from([8 + len(text) + position, 8 + len(text) + position, 0, 100, 1 << 63]))


def _change(draw: st.DrawFn, document: dict[str, Any]) -> None:
    path = draw(st.sampled_from(sorted(_paths(document), key=str)))
    holder: Any = document
    for part in path[:-1]:
        holder = holder[part]
    match draw(st.sampled_from(["replace", "number", "number", "remove", "add", "repeat"])):
        case "replace":
            holder[path[-1]] = draw(VALUES)
        case "number":
            value = holder[path[-1]]
            near = [value * 2, value // 2, value + 1, 1, 2, 3, (1 << 31) - 1] if type(value) is int else []
            holder[path[-1]] = draw(st.sampled_from(near) | NUMBERS | FLOATS if near else NUMBERS | FLOATS)
        case "remove":
            del holder[path[-1]]
        case "add" if isinstance(holder, dict):
            holder[draw(WORDS)] = draw(VALUES)
        case "repeat" if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
    if not document:
        document["x"] = None


def _paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all values; of long lists those of the first items alone."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


@cache
def published() -> dict[str, dict[str, Any]]:
    files = (path for path in CONFIGS.glob("*.json") if not path.name.endswith(".hf_quant_config.json"))
    return {path.stem: json.loads(path.read_text()) for path in files}

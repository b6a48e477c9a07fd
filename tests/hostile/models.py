"""Hostile models, made by code: each name stands for a function that spoils a folder with a good model.

`CONFIGS` replace config.json alone, `FILES` do anything else. `FIELDS` and `QUANT_FIELDS` put every wrong value into
every field of config.json and of hf_quant_config.json.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.tiny_model import CONFIG

DEEP = 100_000
NOT_FINITE = (math.nan, math.inf, -math.inf)

WRONG_VALUES: Mapping[str, Any] = {
    "null": None,
    "a switch": True,
    "text": "12",
    "a list": [12],
    "an object": {"a": 1},
    "a float": 12.5,
    "zero": 0,
    "negative": -12,
    "10**12": 10**12,
    "10**400": 10**400,
    "1e400": math.inf,
    "not a number": math.nan,
    "empty text": "",
    "an empty list": [],
    "half of a surrogate pair": "\ud800",
    "a control character": "\x1b[2J",
    "deep": json.loads("[" * 300 + "]" * 300),
}

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "hidden_act",
    "head_dim",
    "torch_dtype",
    "dtype",
    "tie_word_embeddings",
    "attention_bias",
    "architectures",
    "model_type",
    "bos_token_id",
    "eos_token_id",
    "rope_scaling",
    "rope_parameters",
    "quantization_config",
    "transformers_version",
    "auto_map",
    "sliding_window",
    "layer_types",
    "text_config",
)


def _text_of(changes: Mapping[str, Any]) -> str:
    return json.dumps({**CONFIG, **changes})


def _family(name: str, **changes: Any) -> Callable[[], str]:
    """A published config of another family, spoilt."""
    path = Path(__file__).parents[1] / "configs" / f"{name}.json"
    return lambda: json.dumps({**json.loads(path.read_text()), **changes})


def _many_patterns(pattern: str, count: int, layers: int) -> Callable[[], str]:
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
            }
        },
        "ignore": [pattern.replace("#", str(number)) for number in range(count)],
    }
    return lambda: _text_of({"quantization_config": quantization, "num_hidden_layers": layers})


def _recursive_text_config() -> str:
    return '{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", ' + (
        '"text_config": {' * 900 + '"a": 1' + "}" * 900 + "}"
    )


CONFIGS: Mapping[str, Callable[[], str | bytes]] = {
    "empty": lambda: "",
    "spaces": lambda: " " * 1_000_000,
    "null": lambda: "null",
    "a list": lambda: "[]",
    "a number of 5000 digits": lambda: "1" * 5000,
    "an empty object": lambda: "{}",
    "truncated": lambda: _text_of({})[:-20],
    "garbage after it": lambda: _text_of({}) + "x",
    "a comment": lambda: "// config\n" + _text_of({}),
    "single quotes": lambda: str(dict(CONFIG)),
    "100 MB of one object": lambda: b"{" + b'"a":1,' * 16_700_000 + b'"a":1}',
    "100 MB of spaces": lambda: b"{" + b" " * 100_000_000 + b"}",
    "100 MB of lists": lambda: b"[" + b"[]," * 33_000_000 + b"[]]",
    "8 MB of lists": lambda: b'{"a": [' + b"[]," * 2_700_000 + b"[]]}",
    "2 MB of lists": lambda: b'{"a": [' + b"[]," * 690_000 + b"[]]}",
    "8 MB of objects": lambda: b'{"a": [' + b"{}," * 2_700_000 + b"{}]}",
    "2 MB of keys": lambda: json.dumps({**CONFIG, **{f"k{n}": n for n in range(140_000)}}),
    "8 MB of text": lambda: _text_of({"_name_or_path": "x" * 8_000_000}),
    "lists, deeply": lambda: "[" * DEEP + "]" * DEEP,
    "lists, never closed": lambda: "[" * 1_000_000,
    "objects, deeply": lambda: '{"a":' * DEEP + "1" + "}" * DEEP,
    "900 levels": lambda: _text_of({}).replace("{", '{"x": ' + "[" * 900 + "]" * 900 + ",", 1),
    "300 levels": lambda: _text_of({}).replace("{", '{"x": ' + "[" * 300 + "]" * 300 + ",", 1),
    "text_config in text_config": _recursive_text_config,
    "a key twice": lambda: '{"vocab_size": 1, ' + _text_of({})[1:],
    "a key twice, deep": lambda: _text_of({}).replace("{", '{"a": {"b": 1, "b": 2}, ', 1),
    "UTF-16": lambda: _text_of({}).encode("utf-16"),
    "Latin-1": lambda: _text_of({})[:-1].encode() + b', "x": "caf\xe9"}',
    "a byte-order mark": lambda: b"\xef\xbb\xbf" + _text_of({}).encode(),
    "NUL bytes": lambda: b"\0" * 1000,
    "a NUL inside": lambda: _text_of({}).encode() + b"\0",
    "surrogates in UTF-8": lambda: b'{"a": "\xed\xa0\x80"}',
    "a Git LFS pointer": lambda: "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "a Git LFS pointer of many digits": lambda: f"version https://git-lfs.github.com/spec/v1\nsize {'1' * 480}\n",
    "a pickle": lambda: b"\x80\x04\x95\x10cos\nsystem\n",
    "10 million layer types": lambda: _text_of({"layer_types": ["full_attention"]}).replace(
        '["full_attention"]', "[" + '"a",' * 10_000_000 + '"a"]'
    ),
    "a pattern of a million layers": _family(
        "nvidia--Nemotron-H-56B-Base-8K", hybrid_override_pattern="M*-" * 333_333, num_hidden_layers=None
    ),
    "half a million blocks": _family(
        "nvidia--Llama-3_3-Nemotron-Super-49B-v1", block_configs=[{}] * 500_000, num_hidden_layers=500_000
    ),
    "blocks of nonsense": _family(
        "nvidia--Llama-3_3-Nemotron-Super-49B-v1", block_configs=[{"attention": [], "ffn": 1}] * 80
    ),
    "blocks that are infinitely wide": _family(
        "nvidia--Llama-3_3-Nemotron-Super-49B-v1",
        block_configs=[{"attention": {"no_op": True}, "ffn": {"ffn_mult": 1e299}}] * 80,
    ),
    "an unknown architecture": lambda: _text_of({"architectures": ["../../etc/passwd"]}),
    "architectures of nonsense": lambda: _text_of({"architectures": [["LlamaForCausalLM"]]}),
    "a thousand architectures": lambda: _text_of({"architectures": ["LlamaForCausalLM"] * 1000}),
    "an architecture of 1 MB": lambda: _text_of({"architectures": ["L" * 1_000_000]}),
    "heads of another number": lambda: _text_of({"num_key_value_heads": 5}),
    "10,000 layers": lambda: _text_of({"num_hidden_layers": 10_000}),
    "2^31 in every size": lambda: _text_of(
        dict.fromkeys(
            ("hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim"), 1 << 31
        )
    ),
    "a window of 1": lambda: _text_of({"sliding_window": 1}),
    "a token beyond": lambda: _text_of({"eos_token_id": 10**9}),
    "a million end tokens": lambda: _text_of({"eos_token_id": [1] * 600_000}),
    "a rope of many numbers": lambda: _text_of(
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 200_000, "long_factor": [1.0] * 200_000}}
    ),
    "quantised with 5000 patterns": _many_patterns("model.layers.#.*", 5000, 32),
    "quantised with 5000 patterns, 10,000 layers": _many_patterns("model.layers.#.*", 5000, 10_000),
    "quantised with 5000 expressions": _many_patterns("re:.*layers.#.*", 5000, 32),
    "quantised with slow expressions": _many_patterns("re:.*.*.*.*#x", 50, 1000),
    "quantised with very slow expressions": _many_patterns("re:" + ".?" * 30 + "#x", 50, 100),
    "quantised with alternatives": _many_patterns("re:" + "(.|.)" * 40 + "#x", 50, 100),
    "quantised with 30,000 names": _many_patterns("model.layers.0.mlp.expert.#", 30_000, 1000),
    "a method of 1 MB": lambda: _text_of({"quantization_config": {"quant_method": "x" * 1_000_000}}),
    "a method that isn't letters": lambda: _text_of({"quantization_config": {"quant_method": "\ud800\x1b[2J"}}),
}

FIELDS: Mapping[str, Callable[[], str | bytes]] = {
    **{
        f"{name}: {what}": (lambda name=name, value=value: _text_of({name: value}))
        for name in SIZES
        for what, value in WRONG_VALUES.items()
    },
    **{
        f"quantization_config.{name}: {what}": (
            lambda name=name, value=value: _text_of({"quantization_config": {"quant_method": "gptq", name: value}})
        )
        for name in ("quant_method", "quant_algo", "bits", "group_size", "modules_to_not_convert", "kv_cache_scheme")
        for what, value in WRONG_VALUES.items()
    },
    **{
        f"rope_scaling.{name}: {what}": (
            lambda name=name, value=value: _text_of(
                {
                    "rope_scaling": {
                        "rope_type": "yarn",
                        "factor": 4.0,
                        "original_max_position_embeddings": 64,
                        name: value,
                    }
                }
            )
        )
        for name in ("rope_type", "factor", "original_max_position_embeddings", "mscale", "attention_factor", "unknown")
        for what, value in WRONG_VALUES.items()
    },
}


def _header(entries: object, data: bytes = b"", length: int | None = None) -> Callable[[Path], None]:
    """model.safetensors with this header, which is JSON, or the bytes themselves."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()

    def spoil(folder: Path) -> None:
        prefix = struct.pack("<Q", len(text) if length is None else length)
        (folder / "model.safetensors").write_bytes(prefix + text + data)

    return spoil


def _tensor(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def _index(content: str | bytes | Mapping[str, Any]) -> Callable[[Path], None]:
    """Shards with this index instead of one file."""

    def spoil(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        text = json.dumps(content) if isinstance(content, Mapping) else content
        index = folder / "model.safetensors.index.json"
        index.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))

    return spoil


def _shard(name: object) -> Callable[[Path], None]:
    return _index({"weight_map": {"a": name}})


def _file(name: str, content: str | bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))

    return spoil


def _large(name: str, start: bytes, repeated: bytes, count: int, end: bytes) -> Callable[[Path], None]:
    """A large file that is made only when it is needed."""
    return lambda folder: _file(name, start + repeated * count + end)(folder)


def _sparse(name: str, size: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        with open(folder / name, "wb") as file:
            file.truncate(size)

    return spoil


def _placed(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return spoil


def _link(name: str, target: str) -> Callable[[Path], None]:
    return _placed(name, lambda path: path.symlink_to(target))


def _without_tokenizer(then: Callable[[Path], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        then(folder)

    return spoil


def _many_tensors(folder: Path) -> None:
    entries = b",".join(
        b'"t%d":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}' % (n, 4 * n, 4 * n + 4) for n in range(1_000_000)
    )
    _header(b"{" + entries + b"}", b"\0" * 4_000_000)(folder)


def _many_names(folder: Path) -> None:
    entries = ",".join(f'"model.layers.{n}.weight":"model-00001-of-00001.safetensors"' for n in range(1_000_000))
    _index(f'{{"weight_map":{{{entries}}}}}')(folder)


def _many_files(folder: Path) -> None:
    for number in range(5000):
        (folder / f"tokenizer_{number}.json").write_text("{}")


_TWO = {"a": _tensor(), "b": _tensor(offsets=(8, 16))}

FILES: dict[str, Callable[[Path], None]] = {
    # headers
    "a header of 2^63 bytes": _header(b"{}", length=1 << 63),
    "a header of 2^64 - 1 bytes": _header(b"{}", length=(1 << 64) - 1),
    "a header longer than the file": _header(b"{}", length=1000),
    "a header of 100 MB of spaces": lambda folder: _header(b"{" + b" " * 99_999_000 + b"}")(folder),
    "a header of 100 MB of lists": lambda folder: _header(b'{"a":[' + b"[]," * 33_000_000 + b"[]]}")(folder),
    "a header of a million tensors": _many_tensors,
    "a header that is sparse": lambda folder: (_sparse("model.safetensors", 90_000_000)(folder), _prefix(folder))[1],
    "a header of nothing": _header(b""),
    "a header that is a list": _header([1]),
    "a header that isn't JSON": _header(b"{x"),
    "a header that is deep": _header(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "a header in UTF-16": _header("{}".encode("utf-16")),
    "a header with a name twice": _header(b'{"a":%s,"a":%s}' % ((json.dumps(_tensor()).encode(),) * 2), b"\0" * 8),
    "a header with a field twice": _header(
        b'{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}', b"\0" * 8
    ),
    "tensors that overlap": _header({"a": _tensor(), "b": _tensor(offsets=(4, 12))}, b"\0" * 12),
    "tensors with a gap": _header({"a": _tensor(), "b": _tensor(offsets=(16, 24))}, b"\0" * 24),
    "a tensor beyond the file": _header({"a": _tensor(shape=(1 << 20,), offsets=(0, 4 << 20))}, b"\0" * 8),
    "a tensor of another size": _header({"a": _tensor("BF16", (2, 2), (0, 4))}, b"\0" * 4),
    "a tensor of an unknown type": _header({"a": _tensor("Q9")}, b"\0" * 8),
    "a tensor of a type that is a list": _header({"a": _tensor(["F32"])}, b"\0" * 8),
    "a negative shape": _header({"a": _tensor(shape=(-2,))}, b"\0" * 8),
    "two negative shapes": _header({"a": _tensor(shape=(-1, -2))}, b"\0" * 8),
    "a shape that is a float": _header({"a": _tensor(shape=(2.0,))}, b"\0" * 8),
    "a shape that is a switch": _header({"a": _tensor(shape=(True, 2))}, b"\0" * 8),
    "a shape of 10**400": _header({"a": _tensor(shape=(10**400,))}, b"\0" * 8),
    "a shape of 100,000 numbers": _header({"a": _tensor(shape=(1 << 62,) * 100_000)}, b"\0" * 8),
    "offsets of 2^64": _header({"a": _tensor(offsets=(0, 1 << 64))}, b"\0" * 8),
    "offsets that go back": _header({"a": _tensor(offsets=(8, 0))}, b"\0" * 8),
    "negative offsets": _header({"a": _tensor(offsets=(-8, 0))}, b"\0" * 8),
    "three offsets": _header({"a": _tensor(offsets=(0, 8, 16))}, b"\0" * 8),
    "offsets that aren't numbers": _header({"a": _tensor(offsets=(math.nan, math.inf))}, b"\0" * 8),
    "a tensor that is null": _header({"a": None}),
    "a tensor with more fields": _header({"a": {**_tensor(), "x": 1}}, b"\0" * 8),
    "metadata that is a list": _header({"__metadata__": []}),
    "metadata of numbers": _header({"__metadata__": {"a": 1}, "a": _tensor()}, b"\0" * 8),
    "bytes of nobody": _header(_TWO, b"\0" * 17),
    "a file of three bytes": _file("model.safetensors", b"abc"),
    "an empty file": _file("model.safetensors", b""),
    "a Git LFS pointer": _file(
        "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    ),
    # the index
    "an index that isn't JSON": _index("{"),
    "an index that is a list": _index("[]"),
    "an index without a map": _index({}),
    "an index of 100 MB": lambda folder: _index(b'{"weight_map":{' + b'"a":"b",' * 12_500_000 + b'"a":"b"}}')(folder),
    "an index of a million names": _many_names,
    "an index that is deep": _index('{"weight_map": ' + "[" * DEEP + "]" * DEEP + "}"),
    "an index with NaN": _index('{"weight_map": {"a": NaN}}'),
    "a shard that is a number": _shard(1),
    "a shard above": _shard("../model.safetensors"),
    "a shard above, hidden": _shard("x/../../model.safetensors"),
    "a shard elsewhere": _shard("/etc/passwd.safetensors"),
    "a shard of another system": _shard("..\\model.safetensors"),
    "a shard on a drive": _shard("C:model.safetensors"),
    "a shard with NUL": _shard("model\0.safetensors"),
    "a shard with a line feed": _shard("model\nerror[FAKE]: x.safetensors"),
    "a shard with half a surrogate pair": _shard("\udc80.safetensors"),
    "a shard of 5000 letters": _shard("a" * 5000 + ".safetensors"),
    "a shard that isn't one": _shard("config.json"),
    "a shard that is a pickle": _shard("pytorch_model.bin"),
    "a shard that isn't there": _shard("model-00002-of-00002.safetensors"),
    "a shard that is a folder": lambda folder: (_shard("x.safetensors")(folder), (folder / "x.safetensors").mkdir())[1],
    "a shard without its tensor": _shard("model-00001-of-00001.safetensors"),
    # what isn't a file
    **{
        f"{name} is {what}": spoil
        for name in (
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "chat_template.jinja",
        )
        for what, spoil in {
            "a pipe": _placed(name, os.mkfifo),
            "a folder": _placed(name, Path.mkdir),
            "a device": _link(name, "/dev/zero"),
            "a link to itself": _link(name, name),
            "a link out of the folder": _link(name, "../../../secret"),
            "a link to a password file": _link(name, "/etc/passwd"),
            "a link to nothing": _link(name, "nowhere"),
            "a link to the memory of the process": _link(name, "/proc/self/mem"),
        }.items()
    },
    **{
        f"{name} is a link to a pipe inside": lambda folder, name=name: (
            os.mkfifo(folder / "pipe"),
            _link(name, "pipe")(folder),
        )[1]
        for name in ("config.json", "tokenizer.json", "model.safetensors", "vocab.json", "hf_quant_config.json")
    },
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "config.json in another case": lambda folder: _rename(folder, "config.json", "Config.json"),
    "names with line feeds": _file("tokenizer\nerror[FAKE]: x.json", "{}"),
    "names that aren't UTF-8": lambda folder: (folder / os.fsdecode(b"tokenizer\xff.json")).write_text("{}") and None,
    "5000 files": _many_files,
    # the tokenizer
    "a tokenizer that isn't JSON": _file("tokenizer.json", "{"),
    "a tokenizer that is a list": _file("tokenizer.json", "[]"),
    "a tokenizer that is deep": _file("tokenizer.json", "[" * DEEP),
    "a tokenizer of 100 MB of lists": _large("tokenizer.json", b"[", b"[],", 33_000_000, b"[]]"),
    "a tokenizer of 30 MB of lists": _large("tokenizer.json", b"[", b"[],", 10_000_000, b"[]]"),
    "a tokenizer of 1 GB": _sparse("tokenizer.json", 1_000_000_000),
    "a tokenizer in UTF-16": _file("tokenizer.json", "{}".encode("utf-16")),
    "token ids that are wrong": _file(
        "tokenizer.json",
        json.dumps({"added_tokens": [{"id": v, "content": "a"} for v in WRONG_VALUES.values()], "model": {"vocab": 1}}),
    ),
    "a token id of 10**400": _file("tokenizer.json", json.dumps({"added_tokens": [{"id": 10**400, "content": "a"}]})),
    "a token id of 5000 digits": _file(
        "tokenizer.json", f'{{"added_tokens": [{{"id": {"1" * 5000}, "content": "a"}}]}}'
    ),
    "a negative token id": _file("tokenizer.json", json.dumps({"model": {"vocab": {"a": -(10**30)}}})),
    "a token that is half of a pair": _file(
        "tokenizer.json", json.dumps({"added_tokens": [{"id": 300, "content": "\ud800\x1b[2J\nerror[FAKE]: "}]})
    ),
    "a decoder of 5000 digits": _file(
        "tokenizer_config.json", json.dumps({"added_tokens_decoder": {"1" * 5000: {"content": "a"}, "²": "b"}})
    ),
    "a tokenizer configuration that is a list": _file("tokenizer_config.json", "[]"),
    "a tokenizer configuration with NaN": _file("tokenizer_config.json", '{"a": NaN}'),
    "a vocabulary above": _file("tokenizer_config.json", json.dumps({"vocab_file": "../../../root/.cache/token"})),
    "a template that is half of a pair": _file("tokenizer_config.json", json.dumps({"chat_template": "\ud800"})),
    "a template that is a number": _file("tokenizer_config.json", json.dumps({"chat_template": 1})),
    "a template of 100 MB": _large("chat_template.jinja", b"", b"{{ x }} ", 12_500_000, b""),
    "pieces without end": _without_tokenizer(_large("tokenizer.model", b"", b"\x0a\x00", 10_000_000, b"")),
    "a piece of 2^63 bytes": _without_tokenizer(_file("tokenizer.model", b"\x0a" + b"\xff" * 9 + b"\x7f")),
    "a varint without end": _without_tokenizer(_file("tokenizer.model", b"\x0a" + b"\xff" * 100_000)),
    # other configurations
    "a generation_config that is a list": _file("generation_config.json", "[]"),
    "a generation_config that is deep": _file("generation_config.json", "[" * DEEP),
    "a generation_config of 8 MB": _large("generation_config.json", b'{"a":[', b"[],", 2_700_000, b"[]]}"),
    "end tokens that are wrong": _file(
        "generation_config.json", json.dumps({"eos_token_id": list(WRONG_VALUES.values())})
    ),
    "an end token that is a list": _file("generation_config.json", json.dumps({"eos_token_id": [[1]]})),
    "an end token that isn't finite": _file("generation_config.json", '{"eos_token_id": Infinity}'),
    "hf_quant_config is empty": _file("hf_quant_config.json", "{}"),
    "hf_quant_config is a list": _file("hf_quant_config.json", "[]"),
}

QUANT_FIELDS: dict[str, Callable[[Path], None]] = {
    **{
        f"hf_quant_config.{name}: {what}": _file(
            "hf_quant_config.json", json.dumps({"quantization": {"quant_algo": "FP8", name: value}})
        )
        for name in ("quant_algo", "kv_cache_quant_algo", "group_size", "exclude_modules", "has_zero_point")
        for what, value in WRONG_VALUES.items()
    },
}


def _prefix(folder: Path) -> None:
    with open(folder / "model.safetensors", "r+b") as file:
        file.write(struct.pack("<Q", 89_000_000) + b"{")


def _rename(folder: Path, name: str, other: str) -> None:
    (folder / name).rename(folder / other)


def spoil(folder: Path, name: str) -> None:
    """Make the good model in `folder` the one of this name."""
    if name in CONFIGS or name in FIELDS:
        content = CONFIGS[name]() if name in CONFIGS else FIELDS[name]()
        (folder / "config.json").write_bytes(
            content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
        )
    else:
        (FILES | QUANT_FIELDS)[name](folder)

"""Hostile recipes, made by code: each name stands for a function that writes one into an empty folder.

`TEXTS` are the content of `recipe.yaml` alone; `PLACED` need a folder, links or devices and return the path to name.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

HEAD = """\
schema: 1
name: hostile
version: 1.0.0
model: {source: ./model}
toolchain: trtllm-1.2.1
"""
PRECISION = "precision: {weights: bf16}\n"
LIMITS = "limits: {max_batch_size: 4, max_seq_len: 128}\n"
TARGETS = "targets:\n  - sku: h100-sxm-80gb\n"
GOOD = HEAD + PRECISION + LIMITS + TARGETS

DIGITS = 10**400
DEEP = 100_000


def limit(value: object) -> str:
    """A recipe whose max_seq_len is written so."""
    return HEAD + PRECISION + f"limits: {{max_seq_len: {value}}}\n" + TARGETS


def with_line(line: str) -> str:
    return GOOD + line + "\n"


def _billion_laughs() -> str:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return GOOD + "\n".join(lines) + "\n"


def _billion_maps() -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(10))}}}" for n in range(1, 12)]
    return GOOD + "\n".join(lines) + "\n"


TEXTS: Mapping[str, Callable[[], str | bytes]] = {
    # nothing, and not a mapping
    "empty": lambda: "",
    "only a comment": lambda: "# nothing\n",
    "null": lambda: "null\n",
    "a list": lambda: "- 1\n- 2\n",
    "a word": lambda: "recipe\n",
    "two documents": lambda: GOOD + "---\n" + GOOD,
    "JSON of an empty mapping": lambda: "{}",
    "a directive of another version": lambda: "%YAML 3.0\n---\n" + GOOD,
    "an endless directive": lambda: "%" + "A" * 200_000,
    # size
    "100 MB of YAML": lambda: GOOD + "# " + "x" * 100_000_000,
    "100 MB of one list": lambda: b"a: [" + b"1," * 50_000_000 + b"1]",
    "one byte too many": lambda: GOOD + "#" * ((256 << 10) + 1 - len(GOOD)),
    "a text of 250 kB": lambda: with_line(f"description: {'x' * 250_000}"),
    "a key of 250 kB": lambda: with_line(f"? {'k' * 250_000}\n: 1"),
    "an unknown key of 1000 letters": lambda: with_line(f"{'k' * 1000}: 1"),
    "80,000 values": lambda: with_line("engine: [" + "1," * 80_000 + "]"),
    "40,000 keys": lambda: GOOD + "".join(f"k{n}: 1\n" for n in range(20_000)),
    "40,000 anchors": lambda: GOOD + "x:\n" + "".join(f"- &a{n} 1\n" for n in range(20_000)),
    # aliases
    "aliases of aliases": _billion_laughs,
    "aliases of mappings": _billion_maps,
    "256 kB of aliases": lambda: GOOD + "x: &x [1]\n" + "y: [" + "*x, " * 60_000 + "]\n",
    "an alias of itself in a list": lambda: with_line("engine: &a [*a]"),
    "an alias of itself in a mapping": lambda: with_line("engine: &a {x: *a}"),
    "an alias of itself as the whole": lambda: "&a\n" + GOOD + "engine: *a\n",
    "an alias as a key": lambda: with_line("&a name2: 1\n*a : 2"),
    "an unknown alias": lambda: with_line("engine: *nowhere"),
    "an anchor of 200 kB": lambda: with_line(f"engine: &{'a' * 200_000} 1"),
    # nesting
    "flow lists, deeply": lambda: GOOD + "x: " + "[" * DEEP + "]" * DEEP,
    "flow lists, never closed": lambda: GOOD + "x: " + "[" * (DEEP * 2),
    "flow mappings, deeply": lambda: GOOD + "x: " + "{a: " * (DEEP // 2) + "1" + "}" * (DEEP // 2),
    "flow mappings, never closed": lambda: "{" * (DEEP * 2),
    "block lists, deeply": lambda: GOOD + "x:\n  " + "- " * DEEP + "1\n",
    "block lists, deeply, at the top": lambda: "- " * DEEP,
    "complex keys, deeply": lambda: "? " * DEEP,
    "complex keys in the recipe": lambda: GOOD + "? " * 1000 + "1\n",
    "block mappings, deeply": lambda: GOOD + "".join(" " * n + "a:\n" for n in range(600)),
    "tags, many": lambda: with_line("x: " + "! " * DEEP),
    "41 levels": lambda: with_line("engine: " + "{a: " * 41 + "1" + "}" * 41),
    "30 levels": lambda: with_line("engine: " + "{a: " * 30 + "1" + "}" * 30),
    # encodings
    "UTF-16 with its mark": lambda: GOOD.encode("utf-16"),
    "UTF-16 without a mark": lambda: GOOD.encode("utf-16-le"),
    "UTF-32": lambda: GOOD.encode("utf-32"),
    "Latin-1": lambda: with_line("description: caf\xe9").encode("latin-1"),
    "NUL bytes": lambda: with_line("description: a\0b"),
    "only NUL bytes": lambda: b"\0" * 100_000,
    "random bytes": lambda: bytes(range(256)) * 100,
    "a second byte-order mark": lambda: b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD.encode(),
    "a byte-order mark inside": lambda: with_line("description: a\ufeffb\ufeff: c"),
    "control characters": lambda: with_line("description: \x1b[2J\x07"),
    "escaped control characters": lambda: with_line('description: "\\e[2J\\a\\b"'),
    "an escaped NUL in a path": lambda: GOOD.replace("./model", '"./mo\\0del"'),
    "an escaped control character in a name": lambda: GOOD.replace("h100-sxm-80gb", '"h100\\e[31m"'),
    "half of a surrogate pair": lambda: with_line('description: "\\ud800"'),
    "half of a surrogate pair in a key": lambda: with_line('"\\udc80": 1'),
    "surrogates in UTF-8": lambda: with_line("description: ").encode() + b"\xed\xa0\x80\n",
    "overlong UTF-8": lambda: with_line("description: ").encode() + b"\xc0\xaf\n",
    "an emoji as key": lambda: with_line("🔥: 1"),
    "a line separator in a key": lambda: with_line('"a\\Lerror[FAKE]: b": 1'),
    "a line feed in a key": lambda: with_line('"a\\nerror[FAKE]: b\\n": 1'),
    "a line feed in an option": lambda: with_line('engine: {"a\\nerror[FAKE]: b": 1}'),
    "a line feed in a value": lambda: GOOD.replace("h100-sxm-80gb", '"a\\nerror[FAKE]: b"'),
    "text that goes the other way": lambda: with_line('"\\u202Eabc": 1'),
    # syntax
    "tabs": lambda: GOOD + "engine:\n\tx: 1\n",
    "only tabs": lambda: "\t\t\t\n",
    "an open quote": lambda: with_line('description: "open'),
    "an unclosed list": lambda: with_line("engine: [1, 2"),
    "wrong indentation": lambda: GOOD + "  engine: {}\n",
    "reserved signs": lambda: with_line("description: @x"),
    "a lone equals sign": lambda: with_line("description: ="),
    "a block scalar of 9 spaces": lambda: with_line("description: |9\n x"),
    # keys
    "a key twice": lambda: with_line("name: again"),
    "a key twice, deep": lambda: GOOD.replace("max_batch_size: 4", "max_batch_size: 4, max_batch_size: 5"),
    "a key twice, quoted": lambda: with_line('"name": again'),
    "a merge key": lambda: GOOD.replace("  - sku", "  - <<: {gpus: 1}\n    sku"),
    "a merge key of an alias": lambda: GOOD.replace("limits:", "limits: &l").replace("  - sku", "  - <<: *l\n    sku"),
    "a list as key": lambda: with_line("? [a, b]\n: 1"),
    "a number as key": lambda: with_line("1: 2"),
    "null as key": lambda: with_line("~: 2"),
    "an empty key": lambda: with_line('"": 2'),
    "an empty key in options": lambda: with_line('engine: {"": 2}'),
    "a dotted key": lambda: with_line("limits.max_seq_len: 2"),
    "a number as a target's key": lambda: GOOD + "    0: 1\n",
    "a dunder key": lambda: with_line("__class__: 2"),
    "a dunder key in a target": lambda: GOOD + "    __class__: {}\n",
    "model_config in a target": lambda: GOOD + "    model_config: {}\n",
    "schema_ in place of schema": lambda: GOOD.replace("schema:", "schema_:"),
    # tags
    "a Python object": lambda: with_line("description: !!python/object/apply:os.system [id]"),
    "a Python object as mapping": lambda: GOOD.replace("limits: {", "limits: !!python/object:os.Path {"),
    "a Python name": lambda: with_line("description: !!python/name:os.system x"),
    "binary": lambda: with_line("description: !!binary aGVsbG8="),
    "binary that isn't": lambda: with_line("description: !!binary '***'"),
    "a set": lambda: with_line("engine: !!set {a, b}"),
    "an ordered mapping": lambda: with_line("engine: !!omap [a: 1]"),
    "an own tag": lambda: with_line("description: !mine x"),
    "an own tag on a mapping": lambda: with_line("engine: !mine {paged_kv_cache: enable}"),
    "an own tag on a list": lambda: GOOD.replace("targets:", "targets: !mine"),
    "a text that is tagged as number": lambda: limit("!!int 'x'"),
    "an empty text that is tagged as number": lambda: limit("!!int ''"),
    "a text that is tagged as float": lambda: limit("!!float 'x'"),
    "an empty text that is tagged as float": lambda: limit("!!float ''"),
    "a text that is tagged as switch": lambda: limit("!!bool 'x'"),
    "a text that is tagged as date": lambda: limit("!!timestamp 'x'"),
    "a list that is tagged as number": lambda: limit("!!int [1]"),
    "a list that is tagged as mapping": lambda: limit("!!map [1]"),
    "a number that is tagged as text": lambda: limit("!!str 128"),
    "a number that is tagged as null": lambda: limit("!!null 128"),
    "a key that is tagged as number": lambda: with_line("!!int name: 1"),
    # values that YAML reads otherwise than people
    "a date": lambda: GOOD.replace("1.0.0", "2026-11-30"),
    "a date that there isn't": lambda: GOOD.replace("1.0.0", "2026-99-99"),
    "a version that is a float": lambda: GOOD.replace("1.0.0", "1.0"),
    "a name that is a switch": lambda: GOOD.replace("hostile", "off"),
    "a name that is null": lambda: GOOD.replace("hostile", "~"),
    # numbers
    "not a number": lambda: limit(".nan"),
    "infinity": lambda: limit(".inf"),
    "minus infinity": lambda: limit("-.inf"),
    "1e999": lambda: with_line("runner: {memory_gb: 1.0e+999}"),
    "infinite memory": lambda: with_line("runner: {memory_gb: .inf}"),
    "not a number as a fraction": lambda: with_line("serving: {kv_cache_free_gpu_mem_fraction: .nan}"),
    "not a number as an option": lambda: with_line("engine: {max_input_len: .nan}"),
    "400 digits": lambda: limit(DIGITS),
    "5000 digits": lambda: limit("1" * 5000),
    "200,000 digits": lambda: limit("1" * 200_000),
    "200,000 hexadecimal digits": lambda: limit("0x" + "f" * 200_000),
    "200,000 binary digits": lambda: limit("0b" + "1" * 200_000),
    "200,000 octal digits": lambda: limit("0" + "7" * 200_000),
    "a sexagesimal number of 200 kB": lambda: limit("1" + ":59" * 66_000),
    "a sexagesimal float of 200 kB": lambda: limit("1" + ":59" * 66_000 + ".5"),
    "a float of 200 kB": lambda: limit("1." + "1" * 200_000),
    "a float with an exponent of 200 kB": lambda: limit("1.0e+" + "1" * 200_000),
    "underscores, 200 kB": lambda: limit("1" + "_" * 200_000),
    "negative": lambda: limit(-1),
    "zero": lambda: limit(0),
    "negative zero": lambda: limit(-0.0),
    "a switch for a number": lambda: limit("yes"),
    "a float for a number": lambda: limit(128.0),
    "a text for a number": lambda: limit("'128'"),
    "a list for a number": lambda: limit("[128]"),
    "a number with underscores": lambda: limit("1_000_000_000_000"),
    "2^30 + 1": lambda: limit((1 << 30) + 1),
    "a number for a text": lambda: GOOD.replace("./model", "1"),
    "a number for a mapping": lambda: HEAD + PRECISION + "limits: 1\n" + TARGETS,
    "a list for a mapping": lambda: HEAD + PRECISION + "limits: [1]\n" + TARGETS,
    "a mapping for a list": lambda: HEAD + PRECISION + LIMITS + "targets: {sku: cpu}\n",
    "a text for a list": lambda: HEAD + PRECISION + LIMITS + "targets: cpu\n",
    "nothing for a list": lambda: HEAD + PRECISION + LIMITS + "targets:\n",
    "an empty list": lambda: HEAD + PRECISION + LIMITS + "targets: []\n",
    "lists in the list": lambda: HEAD + PRECISION + LIMITS + "targets: [[cpu]]\n",
    "nulls in the list": lambda: HEAD + PRECISION + LIMITS + "targets: [null]\n",
    "no limits": lambda: HEAD + PRECISION + TARGETS,
    "an option that is huge": lambda: with_line(f"engine: {{max_prompt_embedding_table_size: {'9' * 4000}}}"),
    "an option that is hexadecimal": lambda: with_line(f"engine: {{max_prompt_embedding_table_size: 0x{'f' * 90}}}"),
    "arguments of another flow": lambda: with_line("llm_args: {x: 1}"),
    "arguments that nest": lambda: with_line("flow: pytorch\nllm_args: " + "{kv_cache_config: " * 30 + "1" + "}" * 30),
    # many
    "5000 targets": lambda: GOOD + "  - sku: cpu\n" * 5000,
    "1000 equal targets": lambda: GOOD + "  - sku: h100-sxm-80gb\n" * 999,
    "1000 targets, the last is wrong": lambda: (
        GOOD + "".join(f"  - {{sku: h100-sxm-80gb, name: n{n}}}\n" for n in range(999)) + "    limits: {x: 1}\n"
    ),
    "1000 waivers": lambda: with_line(
        "waivers:\n" + "".join(f"  - {{code: A{n}, reason: because I say so}}\n" for n in range(1000))
    ),
    "a waiver of everything": lambda: with_line("waivers:\n  - {code: '*', reason: because I say so}"),
    "a waiver of spaces": lambda: with_line("waivers:\n  - {code: TP_HEADS, reason: '          '}"),
    # names
    "an unknown SKU": lambda: GOOD.replace("h100-sxm-80gb", "h100"),
    "an SKU of 200 kB": lambda: GOOD.replace("h100-sxm-80gb", "h1" * 100_000),
    "an SKU with a path": lambda: GOOD.replace("h100-sxm-80gb", "../../etc/passwd"),
    "a toolchain with a path": lambda: GOOD.replace("trtllm-1.2.1", "../../../etc/passwd"),
    "a toolchain of 3000 letters": lambda: GOOD.replace("trtllm-1.2.1", "trtllm-" + "1." * 1500),
    "a name with a path": lambda: GOOD.replace("hostile", "../../x"),
    "a name with a line feed at the end": lambda: GOOD.replace("name: hostile", 'name: "hostile\\n"'),
    "a name of dots": lambda: GOOD.replace("hostile", "a" + ".a" * 49),
    "a name that takes long to match": lambda: GOOD.replace("hostile", "a" * 90 + "!"),
    "a version that takes long to match": lambda: GOOD.replace("1.0.0", "1.1.1" + "-." * 25),
    "a source without a kind": lambda: GOOD.replace("./model", "model"),
    "a source of another kind": lambda: GOOD.replace("./model", "ftp://example.org/x"),
    "a source that is a URL with a password": lambda: GOOD.replace("./model", "https://a:b@example.org/x"),
    "a source that is a device": lambda: GOOD.replace("./model", "/dev/zero"),
    "a source that is /proc": lambda: GOOD.replace("./model", "/proc/self"),
    "a source that isn't there": lambda: GOOD.replace("./model", "./nowhere"),
    "a source of 4000 letters": lambda: GOOD.replace("./model", "./" + "m" * 3990),
    "a source of many folders": lambda: GOOD.replace("./model", "./" + "../" * 1300),
    "a Hub source with a path": lambda: GOOD.replace("./model", "hf://../../etc"),
    "a Hub source with a query": lambda: GOOD.replace("./model", "hf://a/b?x=1#y"),
    "a Hub source with a line feed": lambda: GOOD.replace("./model", '"hf://a/b\\nX: y"'),
    "a wheel with a path": lambda: GOOD.replace("./model", "pypi://a@1/../../x.gguf"),
    "a wheel with a bad version": lambda: GOOD.replace("./model", "pypi://a@x/y.gguf"),
    "a revision of a folder": lambda: GOOD.replace("./model", "./model, revision: main"),
    "a template of 4000 letters": lambda: with_line(f"serving: {{chat_template: 'file:{'t' * 3900}'}}"),
    "a template that is a device": lambda: with_line("serving: {chat_template: 'file:/dev/zero'}"),
    "a template that is a folder": lambda: with_line("serving: {chat_template: 'file:.'}"),
    "a template that isn't a file": lambda: with_line("serving: {chat_template: 'hf://a/b'}"),
    "a base that is no reference": lambda: with_line("package: {base: '../../etc passwd@x:y:z'}"),
    "an adapter that is the model": lambda: with_line("lora: {max_rank: 8, adapters: [{name: a, source: ./model}]}"),
    "an adapter that isn't there": lambda: with_line("lora: {max_rank: 8, adapters: [{name: a, source: ./nowhere}]}"),
    "an adapter of another kind": lambda: with_line("lora: {max_rank: 8, adapters: [{name: a, source: 'x://a'}]}"),
    "a draft model that is a device": lambda: with_line(
        "speculative: {mode: draft_tokens_external, max_draft_len: 4, draft_model: {source: /dev/zero}}"
    ),
    "extends a number": lambda: with_line("extends: 1"),
    "extends nothing": lambda: with_line("extends: ''"),
    "extends a list of lists": lambda: with_line("extends: [[a.yaml]]"),
    "extends itself": lambda: with_line("extends: recipe.yaml"),
    "extends what isn't there": lambda: with_line("extends: nowhere.yaml"),
    "extends a password file": lambda: with_line("extends: /etc/passwd"),
    "extends a name of 4000 letters": lambda: with_line(f"extends: {'a' * 3990}.yaml"),
    "extends a name with NUL": lambda: with_line('extends: "a\\0.yaml"'),
    "extends 200 files that aren't there": lambda: with_line(f"extends: [{', '.join(['x.yaml'] * 200)}]"),
}


def _write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    return path


def write(folder: Path, text: str) -> Path:
    return _write(folder / "recipe.yaml", text)


def write_text(folder: Path, name: str) -> Path:
    """One of `TEXTS` as a file."""
    return _write(folder / "recipe.yaml", TEXTS[name]())


def _cycle(folder: Path, length: int) -> Path:
    for number in range(length):
        _write(folder / f"_{number}.yaml", f"extends: _{(number + 1) % length}.yaml\n")
    return _write(folder / "recipe.yaml", GOOD + "extends: _0.yaml\n")


def _chain(folder: Path) -> Path:
    for number in range(100):
        _write(folder / f"_{number}.yaml", f"extends: _{number + 1}.yaml\n")
    return _write(folder / "recipe.yaml", GOOD + "extends: _0.yaml\n")


def _explosion(folder: Path) -> Path:
    for number in range(18):
        _write(folder / f"_{number}.yaml", f"extends: [{', '.join([f'_{number + 1}.yaml'] * 10)}]\n")
    _write(folder / "_18.yaml", GOOD)
    return _write(folder / "recipe.yaml", "extends: _0.yaml\n")


def _large_bases(folder: Path) -> Path:
    options = "".join(f"  k{n}: 1\n" for n in range(20_000))
    names = [f"_{number}.yaml" for number in range(19)]
    for name in names:
        _write(folder / name, "engine:\n" + options)
    return _write(folder / "recipe.yaml", GOOD + f"extends: [{', '.join(names)}]\n")


def _replaced_bases(folder: Path) -> Path:
    """Files that each replace many lists of the one before: work for every list and every place."""
    lists = "".join(f"  k{n}: [1]\n" for n in range(8_000))
    names = [f"_{number}.yaml" for number in range(19)]
    for name in names:
        _write(folder / name, "engine:\n" + lists)
    return _write(folder / "recipe.yaml", GOOD + f"extends: [{', '.join(names)}]\n")


def _extending(folder: Path, make: Callable[[Path], object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    make(folder / "_base.yaml")
    return _write(folder / "recipe.yaml", GOOD + "extends: _base.yaml\n")


def _being(folder: Path, make: Callable[[Path], object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    make(folder / "recipe.yaml")
    return folder / "recipe.yaml"


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _unreadable(path: Path) -> None:
    _write(path, GOOD).chmod(0)


def _with_base(folder: Path, make: Callable[[Path], object]) -> Path:
    """A recipe whose base image lies in a layout with a hostile index.json."""
    (folder / "layout").mkdir(parents=True)
    _write(folder / "layout" / "oci-layout", '{"imageLayoutVersion": "1.0.0"}')
    make(folder / "layout" / "index.json")
    return _write(folder / "recipe.yaml", with_line("package: {base: 'oci:./layout:tag'}"))


def _two_of_one_stem(folder: Path) -> Path:
    _write(folder / "a.yaml", GOOD)
    return _write(folder / "a.yml", GOOD).parent


def _two_of_one_name(folder: Path) -> Path:
    _write(folder / "a.yaml", GOOD)
    return _write(folder / "b.yaml", "][").parent


PLACED: Mapping[str, Callable[[Path], Path]] = {
    "there is nothing": lambda folder: folder / "recipe.yaml",
    "an empty folder": lambda folder: _write(folder / "notes.txt", "").parent,
    "a folder with a broken recipe": _two_of_one_name,
    "two recipes that would share a lock": _two_of_one_stem,
    "a folder named like a recipe": lambda folder: _being(folder, Path.mkdir),
    "a pipe": lambda folder: _being(folder, os.mkfifo),
    "a device that never ends": lambda folder: _being(folder, _link_to("/dev/zero")),
    "a device that is empty": lambda folder: _being(folder, _link_to("/dev/null")),
    "a device itself": lambda _: Path("/dev/zero"),
    "memory of the process": lambda folder: _being(folder, _link_to("/proc/self/mem")),
    "a link to itself": lambda folder: _being(folder, _link_to_itself),
    "a link to nothing": lambda folder: _being(folder, _link_to("nowhere.yaml")),
    "a name of 4000 letters": lambda folder: folder / ("r" * 4000 + ".yaml"),
    "a name of 300 letters": lambda folder: folder / ("r" * 300 + ".yaml"),
    "below a file": lambda folder: _write(folder / "file", "x") / "recipe.yaml",
    "extends itself through two": lambda folder: _cycle(folder, 2),
    "extends itself through fifty": lambda folder: _cycle(folder, 50),
    "extends a hundred, one by one": _chain,
    "extends ten times ten times ten": _explosion,
    "extends nineteen large files": _large_bases,
    "extends files that replace each other": _replaced_bases,
    "extends a pipe": lambda folder: _extending(folder, os.mkfifo),
    "extends a folder": lambda folder: _extending(folder, Path.mkdir),
    "extends a device": lambda folder: _extending(folder, _link_to("/dev/zero")),
    "extends a link to itself": lambda folder: _extending(folder, _link_to_itself),
    "extends a link to the recipe": lambda folder: _extending(folder, _link_to("recipe.yaml")),
    "extends 100 MB": lambda folder: _extending(folder, lambda path: _write(path, b"#" * 100_000_000)),
}
NO_BASE: Mapping[str, Callable[[], str]] = {
    "a base that is a layout of nothing": lambda: with_line("package: {base: 'oci:./nowhere:tag'}"),
    "a base in a device": lambda: with_line("package: {base: 'oci:/dev/zero:tag'}"),
    "a base in the model": lambda: with_line("package: {base: 'oci:./model:tag'}"),
    "a base of 3900 letters": lambda: with_line(f"package: {{base: 'oci:./{'b' * 3900}:tag'}}"),
}
LAYOUTS: Mapping[str, Callable[[Path], Path]] = {
    "a pipe": lambda folder: _with_base(folder, os.mkfifo),
    "a folder": lambda folder: _with_base(folder, Path.mkdir),
    "a device": lambda folder: _with_base(folder, _link_to("/dev/zero")),
    "deep": lambda folder: _with_base(folder, lambda path: _write(path, "[" * DEEP)),
    "100 MB": lambda folder: _with_base(folder, lambda path: _write(path, b"[" + b"[]," * 33_000_000)),
    "a list": lambda folder: _with_base(folder, lambda path: _write(path, "[]")),
    "of nonsense": lambda folder: _with_base(folder, lambda path: _write(path, '{"manifests": [{"digest": 1}]}')),
    "of a path": lambda folder: _with_base(
        folder,
        lambda path: _write(
            path,
            '{"manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:../../x",'
            ' "size": 1, "annotations": {"org.opencontainers.image.ref.name": "tag"}}]}',
        ),
    ),
}
if os.geteuid():
    PLACED = {**PLACED, "unreadable": lambda folder: _being(folder, _unreadable)}

"""Damaged lock files, made from a good one."""

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.lock import load_lock
from builder.lock.making import make_lock
from builder.recipe import load_recipe
from builder.store import LocalStore
from tests.hostile.models import WRONG_VALUES
from tests.tiny_model import write_tiny_recipe

RECIPE = """\
schema: 1
name: hostile
version: 1.0.0
model: {source: ./model}
toolchain: trtllm-1.2.1
precision: {weights: fp16}
limits: {max_batch_size: 4, max_seq_len: 128}
targets:
  - sku: cpu
  - sku: h100-sxm-80gb
"""

DIGEST = f"sha256:{'0' * 64}"

Document = dict[str, Any]
KeyPath = tuple[str | int, ...]

CHANGES: Mapping[str, Callable[[str], str | bytes]] = {
    "empty": lambda _: "",
    "null": lambda _: "null",
    "a list": lambda _: "[]",
    "cut in half": lambda text: text[: len(text) // 2],
    "without its last bracket": lambda text: text.rstrip()[:-1],
    "with something after it": lambda text: text + "x",
    "an object twice": lambda text: text + text,
    "with marks of a merge": lambda text: text.replace("{\n", "{\n<<<<<<< HEAD\n", 1),
    "a key twice": lambda text: text.replace("{", '{"schema": 2,', 1),
    "of the first schema": lambda text: text.replace('"schema": 2', '"schema": 1'),
    "of a later schema": lambda text: text.replace('"schema": 2', '"schema": 3'),
    "of a schema that is a list": lambda text: text.replace('"schema": 2', '"schema": [2]'),
    "in UTF-16": lambda text: text.encode("utf-16"),
    "in Latin-1": lambda text: text.replace("./model", "./mod\xe9l").encode("latin-1"),
    "with NaN": lambda text: text.replace("512", "NaN"),
    "with Infinity": lambda text: text.replace("512", "Infinity"),
    "with 1e999": lambda text: text.replace("512", "1e999"),
    "with 5000 digits": lambda text: text.replace("512", "1" * 5000),
    "deep": lambda text: text.replace('"config": {', '"config": {"x": ' + "[" * 100_000 + "]" * 100_000 + ",", 1),
    "of 100 levels": lambda text: text.replace('"config": {', '"config": {"x": ' + "[" * 100 + "]" * 100 + ",", 1),
    "of 100 MB": lambda text: text.replace("{", '{"x": "' + "x" * 100_000_000 + '",', 1),
    "of 15 MB of lists": lambda text: text.replace("{", '{"x": [' + "[]," * 5_000_000 + "[]],", 1),
    "of 100,000 files": lambda text: text.replace(
        '"files": [',
        '"files": ['
        + "".join(f'{{"path":"a{n}","size":1,"sha256":"{"0" * 64}","kind":"other"}},' for n in range(100_000)),
        1,
    ),
}

PLACES: Mapping[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}

FILE_NAMES = (
    "../config.json",
    "/etc/passwd",
    "a/../../b.json",
    "a\\b",
    "C:x",
    "a\0b",
    "a\nb",
    ".",
    "..",
    "",
    "a//b",
    "a/",
    "\ud800",
    "~/x/../../y",
)


def locked(folder: Path) -> Path:
    """A recipe with its model and a lock in which every field has something, without asking anybody."""
    recipe = write_tiny_recipe(folder, RECIPE)
    made = make_lock(load_recipe(recipe), LocalStore(folder / "store"))
    document = made.to_json()
    document["images"] = {
        name: {"index": DIGEST, "python": None, "platforms": {"linux/amd64": {"digest": DIGEST, "size": 1}}}
        for name in document["unresolved"]
    }
    document["unresolved"] = {}
    path = recipe.with_name("tiny.lock.json")
    path.write_text(json.dumps(document, indent=2, sort_keys=True))
    assert load_lock(path)
    return recipe


def mutations(document: Document) -> Iterator[tuple[KeyPath, str, Document]]:
    """Every value of the lock replaced by one that is wrong or hostile, and every key left out."""
    for path in _paths(document, ()):
        for what, value in {**WRONG_VALUES, "absent": ...}.items():
            changed = copy.deepcopy(document)
            holder = changed
            for part in path[:-1]:
                holder = holder[part]  # type: ignore[index]
            if value is ...:
                del holder[path[-1]]  # type: ignore[arg-type]
            else:
                holder[path[-1]] = value  # type: ignore[index]
            yield path, what, changed


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """All paths; of the items of a list the first alone, and nothing of the copies of the model's own files."""
    if path:
        yield path
    if path[1:] in (("config",), ("generation_config",), ("hf_quant_config",)):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*path, 0))

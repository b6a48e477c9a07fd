"""The lock as a record, and its file NAME.lock.json: JSON, keys sorted, one fact a line.

schema           2
requested        source and revision of the model, as the recipe wrote them
model            source, revision (commit, or sha256 of the content), files: [{path, kind, size, sha256}],
                 config, generation_config, hf_quant_config: copies of these files,
                 tensors, tokenizer, chat_template: see `summaries`
models           adapters and draft models: SOURCE[@REVISION] → source, revision, files, config, tensors
images           REFERENCE → index digest, python, platforms: {linux/amd64: {digest, size}}
calibration      DATASET, the text of `qualify`, or a recipe of ModelOpt → source, revision, files
chat_templates   file:PATH → file, sha256
unresolved       NAME → why it isn't pinned; NAME is one of the above, `weights` or `tensor headers`
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import SourceError
from builder.lock.images import PinnedImage, PlatformImage
from builder.lock.summaries import ChatTemplate, TensorSummary, TokenizerSummary
from builder.lock.wanted import requested_model, wanted
from builder.model.files import parse_json, read_json
from builder.model.snapshot import Snapshot, check_sha256, whole_number
from builder.recipe import Recipe
from builder.store.files import open_file, write_atomically

SCHEMA = 2

MAX_LOCK_BYTES, MAX_LOCK_VALUES = 16_000_000, 300_000
"""Three configurations of the largest kind, and a thousand files."""


@dataclass(frozen=True)
class Unresolved:
    """A fact that couldn't be pinned, and why: one line that stays the same as long as the reason does."""

    name: str
    reason: str


@dataclass(frozen=True)
class PinnedModel:
    """A LoRA adapter or a draft model. `config` is a copy of its adapter_config.json or config.json."""

    snapshot: Snapshot
    config: Mapping[str, Any]
    tensors: TensorSummary | None = None

    def to_json(self) -> dict[str, Any]:
        tensors = vars(self.tensors) if self.tensors else None
        return {**self.snapshot.to_json(), "config": dict(self.config), "tensors": tensors}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PinnedModel:
        return cls(Snapshot.from_json(data), _object(data["config"]), _tensors(data["tensors"]))


@dataclass(frozen=True)
class Lock:
    """The pinned facts of one recipe.

    `requested` is the model that the recipe asked for when it was pinned. `config`, `generation_config` and
    `hf_quant_config` are copies of the model's files of these names (empty: no such file), so that a plan needs
    nothing else; a build compares them. In them a number that isn't finite is written as text ("Infinity").
    `images` and `calibration` go by the recipe's own words, `models` by `model_key`, `chat_templates` (those that the
    recipe brings) by "file:PATH"; `chat_template` is the model's own.
    """

    requested: Mapping[str, Any]
    snapshot: Snapshot
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, PinnedImage] = field(default_factory=dict)
    unresolved: tuple[Unresolved, ...] = ()
    hf_quant_config: Mapping[str, Any] = field(default_factory=dict)
    tensors: TensorSummary | None = None
    tokenizer: TokenizerSummary | None = None
    chat_template: ChatTemplate | None = None
    chat_templates: Mapping[str, ChatTemplate] = field(default_factory=dict)
    calibration: Mapping[str, Snapshot] = field(default_factory=dict)
    models: Mapping[str, PinnedModel] = field(default_factory=dict)

    def image(self, reference: str, platform: str) -> PlatformImage | None:
        """The pinned image of a platform ("linux/amd64"); None where it is unresolved."""
        pinned = self.images.get(reference)
        return pinned.platforms.get(platform) if pinned else None

    def unresolved_reason(self, name: str) -> str | None:
        """Why a fact isn't pinned; None if it is, or nobody asked for it."""
        return next((item.reason for item in self.unresolved if item.name == name), None)

    def covers(self, recipe: Recipe) -> bool:
        """Whether this lock answers everything that the recipe asks for now."""
        if self.requested != requested_model(recipe):
            return False
        asked = wanted(recipe)
        known = {item.name for item in self.unresolved}.union(
            self.models, self.calibration, self.chat_templates, self.images
        )
        return known.issuperset(asked.names) and all(
            name not in self.images or self.images[name].serves(use) for name, use in asked.images.items()
        )

    def copies_differ(self, folder: Path) -> bool:
        """Whether the copies of the model's configuration aren't what its files in `folder` say."""
        return (self.config, self.generation_config, self.hf_quant_config) != read_copies(folder)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "requested": dict(self.requested),
            "model": {
                **self.snapshot.to_json(),
                "config": dict(self.config),
                "generation_config": dict(self.generation_config),
                "hf_quant_config": dict(self.hf_quant_config),
                "tensors": vars(self.tensors) if self.tensors else None,
                "tokenizer": vars(self.tokenizer) if self.tokenizer else None,
                "chat_template": vars(self.chat_template) if self.chat_template else None,
            },
            "models": {name: model.to_json() for name, model in self.models.items()},
            "images": {name: image.to_json() for name, image in self.images.items()},
            "calibration": {name: snapshot.to_json() for name, snapshot in self.calibration.items()},
            "chat_templates": {name: vars(template) for name, template in self.chat_templates.items()},
            "unresolved": {item.name: item.reason for item in self.unresolved},
        }

    def write(self, path: Path) -> None:
        """Write the lock file, whole or not at all."""
        write_atomically(path, json.dumps(self.to_json(), indent=2, sort_keys=True, allow_nan=False) + "\n")


def load_lock(path: Path) -> Lock | None:
    """The lock of a recipe, or None if it has none yet. Raises SourceError for a damaged or outdated one."""
    try:
        with open_file(path) as file:
            content = file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError("can't read the lock file", where=path, why=error.strerror, code="LOCK_DAMAGED") from error
    try:
        if len(content) > MAX_LOCK_BYTES:
            raise ValueError(f"it has more than {MAX_LOCK_BYTES} bytes")
        data = _parsed(content)
        if data["schema"] == 1:
            raise _outdated(path)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}, this version reads {SCHEMA}")
        model = data["model"]
        return Lock(
            requested=_object(data["requested"]),
            snapshot=Snapshot.from_json(model),
            config=_object(model["config"]),
            generation_config=_object(model["generation_config"]),
            images={name: PinnedImage.from_json(image) for name, image in data["images"].items()},
            unresolved=tuple(Unresolved(name, str(reason)) for name, reason in data["unresolved"].items()),
            hf_quant_config=_object(model["hf_quant_config"]),
            tensors=_tensors(model["tensors"]),
            tokenizer=_tokenizer(model["tokenizer"]),
            chat_template=_template(model["chat_template"]) if model["chat_template"] is not None else None,
            chat_templates={name: _template(template) for name, template in data["chat_templates"].items()},
            calibration={name: Snapshot.from_json(item) for name, item in data["calibration"].items()},
            models={name: PinnedModel.from_json(item) for name, item in data["models"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(
            "the lock file is damaged",
            where=path,
            why=f"{type(error).__name__}: {error}",
            hint="take it from version control again, or pin anew with `engine-builder lock --upgrade`",
            code="LOCK_DAMAGED",
        ) from None


def required_lock(recipe: Recipe) -> Lock:
    """The lock of a recipe where nothing may be pinned now. Raises SourceError if it is absent or doesn't cover it."""
    lock = load_lock(recipe.lock_file)
    if lock and lock.covers(recipe):
        return lock
    raise SourceError(
        "the recipe asks for something that the lock doesn't hold" if lock else "the recipe isn't locked",
        where=recipe.lock_file,
        hint=f"run `engine-builder lock --recipe {recipe.file}` and commit the lock file",
        code="NOT_LOCKED",
    )


def read_copies(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """config.json, generation_config.json and hf_quant_config.json of a model folder, as a lock keeps them.

    Raises SourceError `CONFIG_JSON` for what isn't JSON (but for numbers that aren't finite) or isn't an object.
    """
    return (
        read_copy(folder / "config.json"),
        read_copy(folder / "generation_config.json"),
        read_copy(folder / "hf_quant_config.json"),
    )


def read_copy(path: Path) -> dict[str, Any]:
    """One file of a model's configuration; empty where there is none."""
    if not os.path.lexists(path):
        return {}
    content = read_json(path, code="CONFIG_JSON", finite=False)
    if not isinstance(content, dict):
        raise SourceError(f"{path.name} must hold an object", where=path, code="CONFIG_JSON")
    return content


def _parsed(content: bytes) -> Any:
    try:
        return parse_json(content, None, "LOCK_DAMAGED", most_values=MAX_LOCK_VALUES)
    except SourceError as error:
        raise ValueError(error.why) from error


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {type(value).__name__}")
    return value


def _tensors(value: Any) -> TensorSummary | None:
    if value is None:
        return None
    summary = TensorSummary(**value)
    rows = () if summary.embedding_rows is None else (summary.embedding_rows,)
    for number in (summary.count, summary.bytes, *_object(summary.dtypes).values(), *rows):
        whole_number(number)
    if not isinstance(summary.digest, str) or not isinstance(summary.head_stored, bool):
        raise TypeError("the summary of the tensors isn't written as it should be")
    return summary


def _tokenizer(value: Any) -> TokenizerSummary | None:
    if value is None:
        return None
    summary = TokenizerSummary(**value)
    for number in (summary.max_token_id, *_object(summary.added_tokens).values()):
        whole_number(number)
    return summary


def _template(value: Any) -> ChatTemplate:
    template = ChatTemplate(**value)
    if not isinstance(template.file, str):
        raise TypeError("the file of a chat template is a text")
    check_sha256(template.sha256, where="the lock")
    return template


def _outdated(path: Path) -> SourceError:
    return SourceError(
        "the lock file has the format of an earlier version",
        where=path,
        why="it has no tensors and no images of toolchains",
        hint="pin anew with `engine-builder lock --upgrade` and look at what changed in it",
        code="LOCK_OUTDATED",
    )

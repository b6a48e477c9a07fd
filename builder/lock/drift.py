"""What has changed outside since a lock was made, by class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from builder.lock.making import Findings, make_lock
from builder.lock.record import Lock, Unresolved, required_lock
from builder.model.snapshot import FileKind, Snapshot
from builder.recipe import Recipe
from builder.store import LocalStore
from builder.store.digests import Advance, ignore_progress

Class = Literal["weights", "configuration", "tokenizer", "documentation", "image", "calibration"]

_OF_KIND: Mapping[FileKind, Class] = {"weights": "weights", "config": "configuration", "tokenizer": "tokenizer"}
_WORDS = {"tokenizer": "tokenizer or template", "documentation": "documentation only"}
_EDITED = "isn't what the files say: the lock was edited"


@dataclass(frozen=True)
class Change:
    """One difference: `before` and `after` are digests or revisions, None where there is none."""

    class_: Class
    what: str
    how: str
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        return f"{_WORDS.get(self.class_, self.class_)}: {self.what} {self.how}"

    def to_json(self) -> dict[str, Any]:
        return {"class": self.class_, "what": self.what, "change": self.how, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Check:
    """A lock compared with the outside. `moved` tells revisions that changed together with files."""

    changes: tuple[Change, ...]
    moved: tuple[str, ...]
    unchecked: tuple[Unresolved, ...]
    """What nobody could be asked about; excused where HF_HUB_OFFLINE says so."""

    @property
    def classes(self) -> list[str]:
        """The classes of the changes in words, the gravest first."""
        found = dict.fromkeys(change.class_ for change in self.changes)
        order = ("weights", "configuration", "tokenizer", "calibration", "image", "documentation")
        return [_WORDS.get(name, name) for name in order if name in found]

    @property
    def complete(self) -> bool:
        """Whether everything was compared that had to be."""
        return not self.unchecked or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def check_lock(recipe: Recipe, store: LocalStore, advance: Advance = ignore_progress) -> Check:
    """Compare the lock of a recipe with the outside. Raises SourceError where there is no lock, or no model to ask."""
    lock, findings = required_lock(recipe), Findings()
    now = make_lock(recipe, store, advance, keep=lock, mode="check", findings=findings)
    return compare(lock, now, tuple(findings.kept))


def compare(before: Lock, now: Lock, unchecked: tuple[Unresolved, ...] = ()) -> Check:
    """The differences of two locks of one recipe, in the order of their classes' rooms in the file."""
    files = list(_files("", before.snapshot, now.snapshot))
    moved = _moved("", before.snapshot, now.snapshot)
    if moved and not files:
        revisions = before.snapshot.revision, now.snapshot.revision
        files.append(Change("documentation", "revision", "{} is now {}".format(*revisions), *revisions))
        moved = []
    changes = [*files, *_edited(before, now, {change.class_ for change in files})]
    for name in sorted(before.models.keys() & now.models.keys()):
        one, two = before.models[name], now.models[name]
        found = list(_files(f"{name} ", one.snapshot, two.snapshot))
        if not found and one.snapshot.revision != two.snapshot.revision:
            changes.append(
                Change("documentation", name, "has another revision", one.snapshot.revision, two.snapshot.revision)
            )
        if not found and (one.config, one.tensors) != (two.config, two.tensors):
            changes.append(Change("configuration", name, _EDITED))
        changes += found
    for name in sorted(before.calibration.keys() & now.calibration.keys()):
        changes += _texts(name, before.calibration[name], now.calibration[name])
    for name in sorted(before.chat_templates.keys() & now.chat_templates.keys()):
        template, template_now = before.chat_templates[name].sha256, now.chat_templates[name].sha256
        if template != template_now:
            changes.append(Change("tokenizer", name, "changed", template, template_now))
    for name in sorted(before.images.keys() & now.images.keys()):
        image, image_now = before.images[name], now.images[name]
        if image != image_now:
            changes.append(Change("image", name, "changed", image.top_digest, image_now.top_digest))
    return Check(tuple(changes), tuple(moved), unchecked)


def _files(prefix: str, before: Snapshot, now: Snapshot) -> Iterator[Change]:
    old = {file.path: file for file in before.files}
    new = {file.path: file for file in now.files}
    for path in sorted(old.keys() | new.keys()):
        one, two = old.get(path), new.get(path)
        if one != two and (either := two or one):
            how = "added" if one is None else "removed" if two is None else "changed"
            digests = one.sha256 if one else None, two.sha256 if two else None
            yield Change(_OF_KIND.get(either.kind, "configuration"), f"{prefix}{path}", how, *digests)


def _texts(name: str, before: Snapshot, now: Snapshot) -> Iterator[Change]:
    """File by file, or as a whole where it is one file."""
    if [file.path for file in before.files] == [file.path for file in now.files] and len(before.files) == 1:
        if before.files != now.files:
            yield Change("calibration", name, "changed", before.files[0].sha256, now.files[0].sha256)
        return
    for change in _files(f"{name} ", before, now):
        yield replace(change, class_="calibration")


def _moved(prefix: str, before: Snapshot, now: Snapshot) -> list[str]:
    if before.revision == now.revision:
        return []
    return [f"{prefix}revision {before.revision} is now {now.revision}"]


def _edited(before: Lock, now: Lock, changed: set[Class]) -> Iterator[Change]:
    """Copies in the lock that aren't what the same files say."""
    if "configuration" not in changed:
        for name in ("config", "generation_config", "hf_quant_config"):
            if getattr(before, name) != getattr(now, name):
                yield Change("configuration", f"the lock's copy of {name}.json", _EDITED)
    if "weights" not in changed and before.tensors and now.tensors and before.tensors != now.tensors:
        yield Change("weights", "the lock's summary of the tensors", _EDITED)
    if "tokenizer" not in changed:
        for name, words in (
            ("tokenizer", "summary of the tokenizer"),
            ("chat_template", "digest of the chat template"),
        ):
            if getattr(before, name) != getattr(now, name):
                yield Change("tokenizer", f"the lock's {words}", _EDITED)

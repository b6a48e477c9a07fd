"""Making a lock: the outside is asked for what the recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from builder.errors import SourceError, UsageError
from builder.lock.images import PinnedImage, pin_images
from builder.lock.local_files import local_file, local_path, no_texts, pin_template, pin_texts, texts_among
from builder.lock.record import Lock, PinnedModel, Unresolved, read_copies, read_copy
from builder.lock.summaries import ChatTemplate, TensorSummary, TokenizerSummary
from builder.lock.wanted import TENSORS, WEIGHTS, SideModel, Wanted, wanted
from builder.model.snapshot import Snapshot
from builder.model.sources import Source, open_source
from builder.model.sources.checks import drift
from builder.model.sources.listing import Content
from builder.recipe import Recipe
from builder.store import LocalStore
from builder.store.digests import Advance, ignore_progress

Mode = Literal["fill", "refresh", "check"]
"""fill: what is pinned stays, only what isn't is asked for; refresh: everything is asked for, and what can't be reached
stays as pinned, but for the model; check: that includes the model, where HF_HUB_OFFLINE forbids to ask."""

_UNREACHABLE = frozenset(
    {"NO_NETWORK", "OFFLINE", "HUB_FAILED", "RATE_LIMITED", "UNAUTHORIZED", "GATED", "UNREACHABLE", "ABSENT"}
)
"""Codes of errors that say nothing of what is out there, only that we didn't get to see it."""

Fact = TypeVar("Fact")


@dataclass
class Findings:
    """What happened while a lock was made: facts without an answer, and pins that stay since nobody could be asked."""

    unresolved: list[Unresolved] = field(default_factory=list)
    kept: list[Unresolved] = field(default_factory=list)


def make_lock(
    recipe: Recipe,
    store: LocalStore,
    advance: Advance = ignore_progress,
    *,
    keep: Lock | None = None,
    mode: Mode = "fill",
    findings: Findings | None = None,
) -> Lock:
    """Ask the outside what the recipe names; weights are downloaded only where nothing else tells their digest.

    What `keep` has pinned of the same names is taken from there, as far as `mode` says.
    """
    found = findings or Findings()
    making = _Making(recipe, wanted(recipe), store, advance, keep, mode, found)
    making.open_sources()
    images, asked = making.images(), making.asked
    lock = making.model()
    return replace(
        lock,
        images=images,
        models=making.each(keep.models if keep else {}, asked.models, making.side_model),
        calibration=making.each(keep.calibration if keep else {}, asked.calibration, making.texts),
        chat_templates=making.each(keep.chat_templates if keep else {}, asked.chat_templates, making.template),
        unresolved=tuple(sorted(found.unresolved, key=lambda item: item.name)),
    )


def source_of(recipe: Recipe, store: LocalStore) -> Source:
    """Where the model of a recipe comes from; what a source must make itself lies in the store's `sources`."""
    model = recipe.content.model
    return _open(model.source, model.revision, recipe, store, "model")


def side_source(name: str, recipe: Recipe, store: LocalStore) -> Source:
    """Where an adapter or a draft model comes from, by its name in the lock (see `model_key`)."""
    side = wanted(recipe).models[name]
    return _open(side.source, side.revision, recipe, store, "adapter" if side.adapter else "model")


def dataset_source(name: str, recipe: Recipe, store: LocalStore) -> Source:
    """Where calibration data of the Hub comes from."""
    return _open(name, None, recipe, store, "dataset")


def _open(source: str, revision: str | None, recipe: Recipe, store: LocalStore, content: Content) -> Source:
    cache, digests = store.root / "sources", store.digest_cache
    try:
        return open_source(source, revision, base=recipe.folder, cache=cache, digests=digests, content=content)
    except UsageError as error:
        error.where = str(recipe.place_of(source))
        raise


@dataclass
class _Making:
    recipe: Recipe
    asked: Wanted
    store: LocalStore
    advance: Advance
    keep: Lock | None
    mode: Mode
    found: Findings

    def open_sources(self) -> None:
        """A name that can't be a source is told before anybody is asked for anything. Raises UsageError."""
        source_of(self.recipe, self.store)
        for name in self.asked.models:
            side_source(name, self.recipe, self.store)
        for name in sorted(self.asked.calibration):
            if name.startswith("hf://") and name not in self.asked.plain_files:
                dataset_source(name, self.recipe, self.store)
            else:
                local_path(name, self.recipe)

    def images(self) -> dict[str, PinnedImage]:
        pinned = {
            name: self.keep.images[name]
            for name, use in self.asked.images.items()
            if self.keep and name in self.keep.images and self.keep.images[name].serves(use)
        }
        everything, pinned_only = self.mode == "refresh", self.mode == "check"
        missing = {
            name: use for name, use in self.asked.images.items() if everything or (name in pinned) is pinned_only
        }
        try:
            answers = pin_images(missing, self.recipe.folder)
        except UsageError as error:
            error.where = str(self.recipe.place_of(error.where or ""))
            raise
        for name, answer in answers.items():
            if isinstance(answer, PinnedImage):
                pinned[name] = answer
            else:
                report = self.found.kept if name in pinned else self.found.unresolved
                report.append(Unresolved(name, reason_of(answer)))
        return pinned

    def each(self, known: Mapping[str, Fact], names: Iterable[str], ask: Callable[[str], Fact]) -> dict[str, Fact]:
        """The facts of one kind by name: kept, asked for, or left out with the reason among the unresolved."""
        result: dict[str, Fact] = {}
        for name in sorted(names):
            if self.mode == "fill" and name in known:
                result[name] = known[name]
                continue
            try:
                result[name] = ask(name)
            except SourceError as error:
                if error.code not in _UNREACHABLE:
                    raise
                report = self.found.kept if name in known else self.found.unresolved
                report.append(Unresolved(name, reason_of(error)))
                if name in known:
                    result[name] = known[name]
        return result

    def model(self) -> Lock:
        """A lock with the facts of the model alone."""
        keep = self.keep
        if keep and dict(keep.requested) != dict(self.asked.model):
            keep = None
        source = source_of(self.recipe, self.store)
        if keep and self.mode == "fill":
            return self._completed(keep, source)
        try:
            return self._pinned(source, source.resolve(self.advance))
        except SourceError as error:
            if keep is None or self.mode != "check" or error.code != "OFFLINE":
                raise
            self.found.kept.append(Unresolved(keep.snapshot.source, reason_of(error)))
            return self._from_cache(keep, source)

    def _completed(self, keep: Lock, source: Source) -> Lock:
        """What was pinned, and what wasn't if that is there by now."""
        if keep.snapshot.of_kind("weights"):
            return keep if keep.tensors else replace(keep, tensors=self._tensors(source, keep.snapshot))
        snapshot = source.resolve(self.advance)
        if changed := [file.path for file in keep.snapshot.files if file not in snapshot.files]:
            raise drift(snapshot.source, [f"{path} isn't as pinned" for path in changed])
        return self._pinned(source, snapshot)

    def _pinned(self, source: Source, snapshot: Snapshot) -> Lock:
        tensors = self._tensors(source, snapshot)
        words = replace(snapshot, files=snapshot.of_kind("config", "tokenizer"))
        return self._described(source.materialise(words, ignore_progress), snapshot, tensors)

    def _described(self, folder: Path, snapshot: Snapshot, tensors: TensorSummary | None) -> Lock:
        config, generation_config, hf_quant_config = read_copies(folder)
        return Lock(
            requested=dict(self.asked.model),
            snapshot=snapshot,
            config=config,
            generation_config=generation_config,
            hf_quant_config=hf_quant_config,
            tensors=tensors,
            tokenizer=TokenizerSummary.of(folder),
            chat_template=ChatTemplate.of(folder),
        )

    def _from_cache(self, keep: Lock, source: Source) -> Lock:
        """What was pinned, but the copies as the files in the cache of the source say, if these are there."""
        words = replace(keep.snapshot, files=keep.snapshot.of_kind("config", "tokenizer"))
        try:
            return self._described(source.materialise(words, ignore_progress), keep.snapshot, keep.tensors)
        except SourceError as error:
            if error.code not in _UNREACHABLE:
                raise
            return keep

    def _tensors(self, source: Source, snapshot: Snapshot) -> TensorSummary | None:
        if not snapshot.of_kind("weights"):
            self.found.unresolved.append(Unresolved(WEIGHTS, "there are no weights beside the configuration"))
            return None
        try:
            return TensorSummary.of(source.tensors(snapshot))
        except SourceError as error:
            if error.code not in _UNREACHABLE:
                raise
            if self.keep and self.keep.tensors and self.keep.snapshot == snapshot:
                self.found.kept.append(Unresolved(TENSORS, reason_of(error)))
                return self.keep.tensors
            self.found.unresolved.append(Unresolved(TENSORS, reason_of(error)))
            return None

    def side_model(self, name: str) -> PinnedModel:
        side: SideModel = self.asked.models[name]
        source = side_source(name, self.recipe, self.store)
        snapshot = source.resolve(self.advance)
        if not snapshot.of_kind("weights"):
            raise SourceError("there are no weights beside the configuration", where=name, code="WEIGHTS_MISSING")
        tensors = TensorSummary.of(source.tensors(snapshot))
        folder = source.materialise(replace(snapshot, files=snapshot.of_kind("config")), ignore_progress)
        config = read_copy(folder / ("adapter_config.json" if side.adapter else "config.json"))
        return PinnedModel(snapshot, config, tensors)

    def texts(self, name: str) -> Snapshot:
        if name in self.asked.plain_files:
            local_file(name, self.recipe, "ABSENT")
        elif name.startswith("hf://"):
            snapshot = dataset_source(name, self.recipe, self.store).resolve(self.advance)
            if not texts_among((file.path for file in snapshot.files), where=name):
                raise no_texts(name, "DATA_MISSING")
            return snapshot
        return pin_texts(name, self.recipe, self.store.digest_cache, self.advance)

    def template(self, name: str) -> ChatTemplate:
        return pin_template(name, self.recipe)


def reason_of(error: SourceError) -> str:
    """One line for the lock that stays the same as long as the cause does; a gated repository's page is part of it."""
    reason = f"{error.message}: {error.hint}" if error.code == "GATED" else error.message
    return " ".join(reason.split())

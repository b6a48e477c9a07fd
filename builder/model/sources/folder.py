"""A model in a local folder, as `git clone` or `save_pretrained` leave it."""

from __future__ import annotations

from pathlib import Path

from builder.errors import SourceError
from builder.model.safetensors import TensorIndex, read_header
from builder.model.snapshot import Snapshot, SnapshotFile, check_path, classify, digest_of_files
from builder.model.sources.checks import difference, digest_of, drift, is_as_pinned, reading, refuse_traps
from builder.model.sources.listing import NEEDED, Content, kind_of, needed, weights_among, words_among
from builder.model.weight_files import INDEX_FILE, read_index
from builder.store import DigestCache
from builder.store.digests import Advance


class FolderSource:
    def __init__(self, source: str, folder: Path, *, digests: DigestCache, content: Content = "model") -> None:
        self._source = source
        self._folder = folder
        self._digests = digests
        self._content = content

    def resolve(self, advance: Advance) -> Snapshot:
        """Revision is the snapshot's content digest: `sha256:` over the lines "SHA256  SIZE  PATH" of its files.

        A model may lack weights altogether: what it has is enough for a plan.
        Raises SourceError for a model whose weights can't be what their headers say; see `safetensors`.
        """
        wanted = needed(self._paths(), self._content, self._weight_map, where=str(self._folder), may_lack_weights=True)
        kinds = {path: kind_of(path, self._content) for path in wanted}
        for path in wanted:
            self._refuse_leaving_link(path)
            refuse_traps(self._folder / path, kinds[path])
        self._read_headers([path for path in wanted if kinds[path] == "weights"])  # damage isn't pinned
        files = []
        for path in wanted:
            digest = digest_of(self._folder / path, self._digests, advance)
            files.append(SnapshotFile(path, digest.size, digest.sha256, kinds[path]))
        return Snapshot(self._source, digest_of_files(files), tuple(files))

    def tensors(self, snapshot: Snapshot) -> TensorIndex:
        return self._read_headers([file.path for file in snapshot.of_kind("weights")])

    def materialise(self, snapshot: Snapshot, advance: Advance) -> Path:
        """The folder itself, if it still holds what was pinned, and nothing new of the same kinds."""
        present = self._paths()
        differences = []
        for file in snapshot.files:
            self._refuse_leaving_link(file.path)
            if is_as_pinned(self._folder, file, self._digests, advance):
                continue
            if file.path in present:
                refuse_traps(self._folder / file.path, file.kind)
            differences.append(difference(self._folder, file, self._digests))
        pinned, kinds = {file.path for file in snapshot.files}, {file.kind for file in snapshot.files}
        if not differences and self._content == "model":
            counting = words_among(present)
            if "weights" in kinds:
                counting += weights_among(present, self._weight_map, where=str(self._folder))
            differences = [
                f"{path} is new" for path in sorted(counting) if path not in pinned and classify(path) in kinds
            ]
        if differences:
            raise drift(self._folder, differences)
        return self._folder

    def _weight_map(self) -> dict[str, str]:
        return read_index(self._folder / INDEX_FILE)

    def _read_headers(self, weights: list[str]) -> TensorIndex:
        if self._content == "model" and weights:
            return TensorIndex.open(self._folder)
        headers = [read_header(self._folder / path) for path in weights]
        return TensorIndex({name: info for header in headers for name, info in header.items()})

    def _paths(self) -> list[str]:
        """Names of the files at the top level and among the additional chat templates."""
        with reading(self._folder):
            if not self._folder.is_dir():
                raise SourceError(
                    "there is no such folder",
                    where=self._folder,
                    hint="a relative folder is looked up beside the recipe",
                    code="NOT_FOUND",
                )
            found = [*self._folder.iterdir(), *self._folder.glob("additional_chat_templates/*")]
        names = [path.relative_to(self._folder).as_posix() for path in found if path.is_file() or path.is_symlink()]
        return [check_path(name, where=self._folder) if classify(name) in NEEDED else name for name in names]

    def _refuse_leaving_link(self, name: str) -> None:
        root = self._folder.resolve()
        try:
            path = (self._folder / name).resolve()
        except RuntimeError as error:  # a link to itself
            raise SourceError(f"{name} leads nowhere", where=self._folder, why=str(error), code="UNREADABLE") from None
        if not path.is_relative_to(root):
            raise SourceError(
                f"{name} is a link that leaves the model's folder",
                where=self._folder / name,
                why=f"it leads to {path}",
                hint="name the model as hf://ORG/NAME if this is the Hub's cache, or copy it with `cp -rL`",
                code="PATH_ESCAPE",
            )

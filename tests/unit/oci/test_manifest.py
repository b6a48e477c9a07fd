import json

import pytest

from builder.errors import StorageError
from builder.oci.descriptor import CONFIG, DOCKER_INDEX, INDEX, LAYER_TAR, MANIFEST, Descriptor, Platform
from builder.oci.manifest import Index, Manifest, StoredManifest

LAYER = Descriptor(LAYER_TAR, "sha256:" + "a" * 64, 10, {"io.engine-builder.layer": "engine"})
WHOLE = Manifest(Descriptor.of(CONFIG, b"{}"), (LAYER,), {"k": "v"})


def test_a_manifest_reads_back_as_it_was_written() -> None:
    stored = StoredManifest.of(WHOLE.to_bytes(), None, "here")
    assert stored.descriptor.media_type == MANIFEST
    assert stored.parse() == WHOLE


def test_an_index_reads_back_as_it_was_written() -> None:
    index = Index((Descriptor(MANIFEST, LAYER.digest, 3, {"a": "b"}, Platform("linux", "arm64", "v8")),), {"k": "v"})
    assert StoredManifest.of(index.to_bytes(), INDEX, "here").parse() == index


def test_the_order_of_annotations_does_not_change_the_bytes() -> None:
    one = Manifest(WHOLE.config, (LAYER,), {"a": "1", "b": "2"})
    other = Manifest(WHOLE.config, (LAYER,), {"b": "2", "a": "1"})
    assert one.to_bytes() == other.to_bytes()


def test_the_media_type_of_the_answer_counts_where_the_document_has_none() -> None:
    content = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
    assert StoredManifest.of(content, DOCKER_INDEX, "here").parse() == Index(())


@pytest.mark.parametrize(
    "change",
    [
        {"layers": None},
        {"layers": [{"mediaType": LAYER_TAR, "digest": "sha256:../../x", "size": 1}]},
        {"layers": [{"mediaType": LAYER_TAR, "digest": LAYER.digest, "size": -1}]},
        {"layers": [{"mediaType": LAYER_TAR, "digest": LAYER.digest, "size": True}]},
        {"layers": [{"digest": LAYER.digest, "size": 1}]},
        {"layers": ["x"]},
        {"config": None},
        {"annotations": {"a": 1}},
        {"annotations": []},
    ],
)
def test_a_damaged_manifest_is_one_clear_error(change: dict[str, object]) -> None:
    content = json.dumps(json.loads(WHOLE.to_bytes()) | change).encode()
    with pytest.raises(StorageError) as caught:
        StoredManifest.of(content, MANIFEST, "here").parse()
    assert caught.value.code == "BAD_MANIFEST"


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"mediaType": "text/html"}', b"[" * 100_000])
def test_what_is_no_manifest_is_one_clear_error(content: bytes) -> None:
    with pytest.raises(StorageError) as caught:
        StoredManifest.of(content, "text/html", "here")
    assert caught.value.code == "BAD_MANIFEST"

from __future__ import annotations

import json

import pytest

from builder.errors import SourceError
from builder.model.snapshot import Snapshot, SnapshotFile, check_path, classify

SHA = "0123456789abcdef" * 4
SNAPSHOT = Snapshot(
    "hf://acme/tiny",
    "f" * 40,
    (SnapshotFile("model.safetensors", 10, SHA, "weights"), SnapshotFile("config.json", 2, SHA, "config")),
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("model.safetensors", "weights"),
        ("model-00001-of-00002.safetensors", "weights"),
        ("model.safetensors.index.json", "weights"),
        ("config.json", "config"),
        ("generation_config.json", "config"),
        ("hf_quant_config.json", "config"),
        ("tokenizer.json", "tokenizer"),
        ("tokenizer_config.json", "tokenizer"),
        ("tokenizer.model", "tokenizer"),
        ("special_tokens_map.json", "tokenizer"),
        ("chat_template.jinja", "tokenizer"),
        ("additional_chat_templates/tool_use.jinja", "tokenizer"),
        ("README.md", "documentation"),
        ("LICENSE.txt", "documentation"),
        (".gitattributes", "documentation"),
        ("images/logo.png", "documentation"),
        ("pytorch_model.bin", "other"),
        ("modeling_llama.py", "other"),
        ("original/tokenizer.model", "other"),
        ("onnx/config.json", "other"),
        ("additional_chat_templates/deeper/tool_use.jinja", "other"),
    ],
)
def test_a_file_is_classified_by_its_path(path, kind):
    assert classify(path) == kind


def test_a_snapshot_survives_json_with_its_files_sorted():
    written = json.loads(json.dumps(SNAPSHOT.to_json()))
    assert [file["path"] for file in written["files"]] == ["config.json", "model.safetensors"]
    assert Snapshot.from_json(written).to_json() == written


def test_files_are_found_by_kind_and_summed():
    assert [file.path for file in SNAPSHOT.of_kind("config", "tokenizer")] == ["config.json"]
    assert SNAPSHOT.size == 12


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"path": "../../etc/passwd"}, "PATH_ESCAPE"),
        ({"path": "/etc/passwd"}, "PATH_ESCAPE"),
        ({"size": -1}, "BAD_SNAPSHOT"),
        ({"size": True}, "BAD_SNAPSHOT"),
        ({"sha256": "abc"}, "BAD_DIGEST"),
        ({"sha256": None}, "BAD_DIGEST"),
        ({"kind": "secret"}, "BAD_SNAPSHOT"),
    ],
)
def test_a_lock_edited_by_hand_is_not_taken_on_trust(change, code):
    written = SNAPSHOT.to_json()
    written["files"][0] = {**written["files"][0], **change}
    with pytest.raises(SourceError) as caught:
        Snapshot.from_json(written)
    assert caught.value.code == code


@pytest.mark.parametrize("damage", [{"files": None}, {"revision": 3}, {"files": [{}]}])
def test_a_snapshot_without_its_parts_is_refused(damage):
    with pytest.raises(SourceError) as caught:
        Snapshot.from_json(SNAPSHOT.to_json() | damage)
    assert caught.value.code == "BAD_SNAPSHOT"


def test_a_file_listed_twice_is_refused():
    written = SNAPSHOT.to_json()
    with pytest.raises(SourceError, match="isn't written as it should be"):
        Snapshot.from_json(written | {"files": written["files"] * 2})


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../b", "/abs", "C:\\Windows\\x", "C:/x", "a//b", "a/./b", "", "a/", "a\0b", "a\nb", "\x1b[31m"],
)
def test_a_name_that_leaves_its_folder_is_refused(path):
    with pytest.raises(SourceError) as caught:
        check_path(path, where="here")
    assert caught.value.code == "PATH_ESCAPE"


@pytest.mark.parametrize("path", ["ok/model.safetensors", "a..b", "…/naïve.json", ".gitattributes"])
def test_a_name_below_its_folder_is_accepted(path):
    assert check_path(path, where="here") == path


def test_the_content_digest_depends_on_the_files_alone():
    elsewhere = Snapshot("./copy", "other", SNAPSHOT.files[::-1])
    assert elsewhere.content_digest == SNAPSHOT.content_digest
    assert Snapshot("./copy", "other", SNAPSHOT.files[:1]).content_digest != SNAPSHOT.content_digest

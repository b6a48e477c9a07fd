from dataclasses import replace

from builder.lock import Lock, PinnedImage, PinnedModel, PlatformImage, TokenizerSummary, Unresolved
from builder.lock.drift import compare
from builder.model.snapshot import SnapshotFile

ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def image(digest: str) -> PinnedImage:
    return PinnedImage(digest, {"linux/amd64": PlatformImage(digest, 1)}, None)


def words(before: Lock, now: Lock) -> list[str]:
    return [str(change) for change in compare(before, now).changes]


def test_nothing_changed_is_no_drift(lock: Lock) -> None:
    assert compare(lock, lock).changes == ()


def test_drift_names_the_class_of_each_file(lock: Lock) -> None:
    digests = {"config.json": "0" * 64, "tokenizer.json": "1" * 64}
    files = tuple(
        replace(file, sha256=digests.get(file.path, file.sha256))
        for file in lock.snapshot.files
        if file.path != "tokenizer_config.json"
    )
    new = SnapshotFile("model-2.safetensors", 1, "2" * 64, "weights")
    check = compare(lock, replace(lock, snapshot=replace(lock.snapshot, files=(*files, new), revision="b")))
    assert [str(change) for change in check.changes] == [
        "configuration: config.json changed",
        "weights: model-2.safetensors added",
        "tokenizer or template: tokenizer.json changed",
        "tokenizer or template: tokenizer_config.json removed",
    ]
    assert check.classes == ["weights", "configuration", "tokenizer or template"]
    assert check.moved == (f"revision {lock.snapshot.revision} is now b",)
    assert check.changes[1].to_json() == {
        "class": "weights",
        "what": "model-2.safetensors",
        "change": "added",
        "before": None,
        "after": "2" * 64,
    }


def test_another_revision_with_the_same_files_is_documentation_only(lock: Lock) -> None:
    now = replace(lock, snapshot=replace(lock.snapshot, revision="b"))
    check = compare(replace(lock, snapshot=replace(lock.snapshot, revision="a")), now)
    assert [str(change) for change in check.changes] == ["documentation only: revision a is now b"]
    assert check.classes == ["documentation only"]


def test_an_edited_copy_in_the_lock_is_drift(lock: Lock) -> None:
    assert lock.tensors is not None
    for edited, class_ in (
        (replace(lock, config=dict(lock.config) | {"rope_theta": 77777.0}), "configuration"),
        (replace(lock, generation_config={"eos_token_id": 1}), "configuration"),
        (replace(lock, tensors=replace(lock.tensors, embedding_rows=9)), "weights"),
        (replace(lock, tokenizer=TokenizerSummary(9, {})), "tokenizer"),
        (replace(lock, chat_template=None), "tokenizer"),
    ):
        assert [change.class_ for change in compare(edited, lock).changes] == [class_]
        assert "the lock was edited" in words(edited, lock)[0]


def test_an_image_that_was_pushed_anew_is_drift_and_one_that_is_new_is_not(lock: Lock) -> None:
    before = replace(lock, images={"a:1": image(ONE), "b:1": image(ONE)})
    now = replace(lock, images={"a:1": image(TWO), "b:1": image(ONE), "c:1": image(ONE)})
    (change,) = compare(before, now).changes
    assert (str(change), change.before, change.after) == ("image: a:1 changed", ONE, TWO)


def test_calibration_texts_and_own_templates_have_their_classes(lock: Lock) -> None:
    assert lock.chat_template is not None
    text = SnapshotFile("t.jsonl", 1, "1" * 64, "other")
    texts = replace(lock.snapshot, files=(text,))
    before = replace(lock, calibration={"file:t.jsonl": texts}, chat_templates={"file:own.jinja": lock.chat_template})
    now = replace(
        before,
        calibration={"file:t.jsonl": replace(texts, files=(replace(text, sha256="2" * 64),))},
        chat_templates={"file:own.jinja": replace(lock.chat_template, sha256="9" * 64)},
    )
    assert words(before, now) == ["calibration: file:t.jsonl changed", "tokenizer or template: file:own.jinja changed"]


def test_files_of_a_folder_of_texts_are_named_with_it(lock: Lock) -> None:
    one, two, three = (SnapshotFile(f"data/{name}.csv", 1, name * 64, "other") for name in "123")
    before = replace(lock, calibration={"file:texts": replace(lock.snapshot, files=(one, two))})
    now = replace(
        lock, calibration={"file:texts": replace(lock.snapshot, files=(replace(one, sha256="9" * 64), three))}
    )
    assert words(before, now) == [
        "calibration: file:texts data/1.csv changed",
        "calibration: file:texts data/2.csv removed",
        "calibration: file:texts data/3.csv added",
    ]
    assert compare(before, now).classes == ["calibration"]


def test_calibration_texts_that_moved_without_a_change_are_no_drift(lock: Lock) -> None:
    before = replace(lock, calibration={"hf://datasets/a/b": lock.snapshot})
    now = replace(lock, calibration={"hf://datasets/a/b": replace(lock.snapshot, revision="moved")})
    assert words(before, now) == []


def test_files_of_an_adapter_are_named_with_it(lock: Lock) -> None:
    adapter = PinnedModel(lock.snapshot, {"r": 8}, lock.tensors)
    changed = replace(lock.snapshot, files=lock.snapshot.files[1:])
    before = replace(lock, models={"./sql": adapter})
    assert words(before, replace(lock, models={"./sql": replace(adapter, snapshot=changed)})) == [
        "configuration: ./sql config.json removed"
    ]
    assert words(before, replace(lock, models={"./sql": replace(adapter, config={"r": 9})}))[0].startswith(
        "configuration: ./sql"
    )


def test_what_nobody_could_be_asked_about_leaves_the_check_incomplete(lock: Lock) -> None:
    check = compare(lock, lock, (Unresolved("a:1", "no connection"),))
    assert check.changes == ()
    assert not check.complete
    assert compare(lock, lock).complete

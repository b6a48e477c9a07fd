import json
from typing import Any

import pytest

from builder.errors import VerificationError
from builder.runtime import bundle as runtime_bundle
from builder.runtime.bundle import Bundle
from builder.triton import repository


def test_a_bundle_is_read(bundle: Bundle) -> None:
    assert (bundle.unit, bundle.served_model_name, bundle.max_seq_len) == ("tiny/bf16-tp1/cpu", "tiny", 96)
    assert bundle.eos_token_ids == (2,)


def test_writer_and_reader_speak_the_same_contract() -> None:
    assert runtime_bundle.SCHEMA == repository.SCHEMA


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema": 1}, "SERVING_SCHEMA"),
        ({"schema": None}, "SERVING_SCHEMA"),
        ({"max_batch_size": 5}, "TRITON_BATCH_GT_ENGINE"),
        ({"max_seq_len": 97}, "SEQ_LEN_GT_ENGINE"),
        ({"max_beam_width": 2}, "BEAM_WIDTH_GT_ENGINE"),
    ],
)
def test_another_contract_or_too_high_limits_are_refused(bundle: Bundle, change: dict[str, object], code: str) -> None:
    path = bundle.root / "serving.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(VerificationError) as caught:
        Bundle.open(bundle.root)
    assert caught.value.code == code


def test_the_message_on_a_too_large_batch_names_both_numbers(bundle: Bundle) -> None:
    path = bundle.root / "serving.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_batch_size": 128}))
    with pytest.raises(VerificationError, match=r"128.*4"):
        Bundle.open(bundle.root)


@pytest.mark.parametrize("missing", ["serving.json", "engine/config.json"])
def test_a_folder_that_lacks_a_part_is_no_bundle(bundle: Bundle, missing: str) -> None:
    (bundle.root / missing).unlink()
    with pytest.raises(VerificationError) as caught:
        Bundle.open(bundle.root)
    assert caught.value.code == "NO_BUNDLE"
    assert missing in str(caught.value.where)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("serving.json", '{"schema": 2}', "'unit'"),
        ("serving.json", '{"schema": ', "Expecting value"),
        ("serving.json", "[1]", "not a JSON object"),
        ("engine/config.json", "{}", "'build_config'"),
        ("engine/config.json", '{"build_config": {"max_batch_size": "many"}}', "invalid literal"),
        ("engine/config.json", "[]", "TypeError"),
    ],
)
def test_a_damaged_file_is_named(bundle: Bundle, file: str, text: str, words: str) -> None:
    (bundle.root / file).write_text(text)
    with pytest.raises(VerificationError, match="damaged") as caught:
        Bundle.open(bundle.root)
    assert str(caught.value.where) == str(bundle.root / file)
    assert words in str(caught.value.why)


@pytest.mark.parametrize("change", [{"max_batch_size": "8"}, {"eos_token_ids": []}, {"eos_token_ids": None}])
def test_values_that_make_no_sense_are_damage(bundle: Bundle, serving: dict[str, object], change: Any) -> None:
    (bundle.root / "serving.json").write_text(json.dumps(serving | change))
    with pytest.raises(VerificationError):
        Bundle.open(bundle.root)

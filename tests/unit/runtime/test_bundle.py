import json

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
        ({"schema": 2}, "SERVING_SCHEMA"),
        ({"schema": None}, "SERVING_SCHEMA"),
        ({"max_batch_size": 5}, "TRITON_BATCH_GT_ENGINE"),
        ({"max_seq_len": 97}, "SEQ_LEN_GT_ENGINE"),
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


def test_damaged_json_and_missing_keys_are_named(bundle: Bundle) -> None:
    path = bundle.root / "serving.json"
    path.write_text('{"schema": 1}')
    with pytest.raises(VerificationError, match="'unit'"):
        Bundle.open(bundle.root)
    path.write_text('{"schema": ')
    with pytest.raises(VerificationError, match="damaged"):
        Bundle.open(bundle.root)

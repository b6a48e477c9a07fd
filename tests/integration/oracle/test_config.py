"""config.json says what ModelOpt's says: every key is equal, or conventions.py has why it isn't, and how it agrees."""

from pathlib import Path

import pytest

from builder.model.layout import Split
from tests.integration.oracle.comparison import converted
from tests.integration.oracle.conftest import Exports
from tests.integration.oracle.conventions import KEYS
from tests.integration.oracle.models import MODELS, Model

pytestmark = pytest.mark.timeout(1800)  # the second environment may have to be fetched first


@pytest.mark.parametrize(
    ("model", "tp", "pp"),
    [
        (model, *split)
        for model in MODELS
        if model.config
        for split in dict.fromkeys((model.splits[0], model.splits[-1]))
    ],
    ids=str,
)
def test_every_key_agrees_with_modelopts(model: Model, tp: int, pp: int, exports: Exports, tmp_path: Path) -> None:
    theirs = exports.checkpoint(model, tp, pp).config
    split = Split(tp, pp, use_parallel_embedding=True)
    ours = converted(exports.published(model), tmp_path / "ours", split, model.exported_dtype).config
    conventions = {convention.key: convention for convention in KEYS}
    for key in ours.keys() | theirs.keys():
        if key in conventions:
            assert conventions[key].agree(ours, theirs), conventions[key]
        else:
            assert ours.get(key, "absent") == theirs.get(key, "absent"), key

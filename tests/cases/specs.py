"""Published configs with other values laid over them: the specs that come of it, and what is refused."""

from typing import Any

import pytest

from builder.errors import SourceError
from builder.model.spec import ModelSpec
from tests.cases.support import config_of


def spec_of(name: str, *without: str, **changes: Any) -> ModelSpec:
    """The model that a published config.json with some keys replaced, and others taken out, describes."""
    config = {key: value for key, value in config_of(name, **changes).items() if key not in without}
    return ModelSpec.from_config(config, "config.json")


def refusal(name: str, *without: str, **changes: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        spec_of(name, *without, **changes)
    return caught.value

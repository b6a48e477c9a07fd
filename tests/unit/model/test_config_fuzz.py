"""Whatever stands in a config.json: it is a model, or a refusal that the user can read."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.errors import SourceError
from builder.model.spec import ModelSpec
from builder.model.weights import parameter_count, stored_bytes
from tests.unit.model.published import published_config, published_names, published_quant_config

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "a", "full_attention", "re:(", "*", "fp8", "awq", "M*-E", "Infinity"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
CONFIGS = {name: published_config(name) for name in published_names()}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], to)
    return copy


def read(config: Any, quant_config: Any = None) -> None:
    with contextlib.suppress(SourceError):
        spec = ModelSpec.from_config(config, "config.json", hf_quant_config=quant_config, stored_dtype="BF16")
        use(spec)


def use(spec: ModelSpec) -> None:
    assert parameter_count(spec) > 0
    assert (stored_bytes(spec) or 1) > 0
    assert spec.kv_bytes(1000, 2, 8, 2) >= 0


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_published_config_with_one_value_replaced(data: st.DataObject) -> None:
    config = CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]
    path = data.draw(st.sampled_from(places(config)))
    read(changed(config, path, data.draw(VALUES)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_published_quantisation_with_one_value_replaced(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in sorted(CONFIGS) if published_quant_config(name)]))
    quant_config = published_quant_config(name)
    path = data.draw(st.sampled_from(places(quant_config)))
    read(CONFIGS[name], changed(quant_config, path, data.draw(VALUES)))


@given(st.dictionaries(st.sampled_from(sorted(CONFIGS["nvidia--Nemotron-H-56B-Base-8K"])), VALUES))
def test_any_object(config: dict[str, Any]) -> None:
    read(config)


@pytest.mark.parametrize("number", [10**400, -1, 2**31 + 1])
def test_absurd_numbers_are_refused(number: int) -> None:
    config = {**published_config("meta-llama--Llama-3.1-8B"), "num_hidden_layers": number}
    with pytest.raises(SourceError, match="num_hidden_layers must be a whole number from 1 to 1000"):
        ModelSpec.from_config(json.loads(json.dumps(config)), "config.json")

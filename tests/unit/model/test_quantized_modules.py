import pytest

from builder.errors import SourceError
from builder.model.quantized_modules import MOST_STEPS, steps
from builder.model.spec import ModelSpec
from tests.tiny_model import CONFIG

LAYERS_OF_DEEPSEEK_V3 = 61


@pytest.mark.parametrize(
    "patterns",
    [
        ("lm_head", "model.embed_tokens"),
        ("re:.*lm_head", "re:visual.*", "re:.*mlp.gate$", "re:.*mlp.shared_expert_gate$", "re:.*linear_attn.*"),
        (r"re:.*layers\.\d+\.mlp\.experts\.[0-9]+\.(gate|up|down)_proj$",),
        (r"re:^(model\.)?layers\.(0|1|2|60)\..*",),
        tuple(f"model.layers.{layer}.self_attn*" for layer in range(LAYERS_OF_DEEPSEEK_V3)),
    ],
    ids=str,
)
def test_patterns_as_they_are_published_take_few_steps(patterns: tuple[str, ...]) -> None:
    assert steps(patterns) * LAYERS_OF_DEEPSEEK_V3 < MOST_STEPS


@pytest.mark.parametrize(
    "pattern",
    ["re:.*.*.*.*x", "re:" + ".?" * 30 + "x", "re:" + "(.|.)" * 40 + "x", "re:((a|b)(a|b)(a|b)(a|b)|c)" * 3 + ".*.*x"],
)
def test_patterns_that_try_everything_take_many(pattern: str) -> None:
    assert steps((pattern,)) * LAYERS_OF_DEEPSEEK_V3 > MOST_STEPS


def test_a_model_whose_patterns_take_too_long_is_refused() -> None:
    ignored = [f"re:.*.*.*{number}x" for number in range(100)]
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ignored}
    with pytest.raises(SourceError, match="take too long to match"):
        ModelSpec.from_config({**CONFIG, "quantization_config": quantization}, "config.json")

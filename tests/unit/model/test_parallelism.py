import pytest

from builder.errors import PlanRefused
from builder.model.parallelism import check_parallelism, legal_tensor_parallel, tensor_parallel_obstacles
from builder.model.spec import ModelSpec
from tests.unit.model.published import published_config, published_spec


@pytest.mark.parametrize(
    ("model", "legal"),
    [
        ("HuggingFaceTB--SmolLM2-135M", (1, 3)),
        ("HuggingFaceTB--SmolLM2-360M", (1, 5)),
        ("meta-llama--Llama-3.1-8B", (1, 2, 4, 8, 16, 32)),
        ("meta-llama--Llama-3.2-3B", (1, 2, 4, 8)),
        ("Qwen--Qwen2-7B", (1, 2, 4)),
        ("Qwen--Qwen2-1.5B-Instruct", (1, 2, 4)),
        ("microsoft--phi-4", (1, 2, 5, 10, 20, 40)),
        ("TinyLlama--TinyLlama-1.1B-Chat-v1.0", (1, 2, 4, 8, 16, 32)),
        ("google--gemma-2-9b-it", (1, 2, 4, 8, 16)),
        ("deepseek-ai--DeepSeek-V3", (1, 2, 4, 8, 16, 32, 64, 128)),
        ("Qwen--Qwen3-30B-A3B", (1, 2, 4, 8, 16, 32)),
    ],
)
def test_legal_sizes_divide_heads_and_widths_and_repeat_key_value_heads(model: str, legal: tuple[int, ...]) -> None:
    assert legal_tensor_parallel(published_spec(model)) == legal


@pytest.mark.parametrize(
    ("model", "tp", "obstacle"),
    [
        ("Qwen--Qwen2-7B", 8, "num_attention_heads 28 is not a multiple of 8"),
        ("Qwen--Qwen2-7B", 28, "intermediate_size 18944 is not a multiple of 28"),
        ("microsoft--phi-4", 4, "num_key_value_heads 10 is neither a multiple nor a divisor of 4"),
        ("HuggingFaceTB--SmolLM2-135M", 9, "intermediate_size 1536 is not a multiple of 9"),
        ("Qwen--Qwen3-30B-A3B", 32, None),
        ("deepseek-ai--DeepSeek-V2-Lite", 16, None),
        (
            "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            16,
            "the 8 groups of its mamba2 layers are not a multiple of 16",
        ),
        ("HuggingFaceTB--SmolLM2-135M", 0, "tensor parallelism 0 is below 1"),
    ],
)
def test_what_stands_in_the_way_is_named_with_its_numbers(model: str, tp: int, obstacle: str | None) -> None:
    assert tensor_parallel_obstacles(published_spec(model), tp) == ((obstacle,) if obstacle else ())


def test_every_rank_must_hold_whole_groups_of_weights() -> None:
    qwen = published_spec("Qwen--Qwen2.5-72B")
    assert tensor_parallel_obstacles(qwen, 2) == ()
    assert tensor_parallel_obstacles(qwen, 2, group_size=128) == (
        "intermediate_size 29568 / 2 = 14784 is not a multiple of the group size 128",
    )
    assert legal_tensor_parallel(qwen, group_size=128) == (1,)
    assert tensor_parallel_obstacles(published_spec("meta-llama--Llama-3.1-70B"), 8, group_size=128) == ()


def test_experts_may_be_shared_out_instead_of_cut() -> None:
    qwen = published_spec("Qwen--Qwen3-30B-A3B")
    assert "the width of an expert, 768 / 4 = 192" in tensor_parallel_obstacles(qwen, 4, group_size=128)[0]
    assert tensor_parallel_obstacles(qwen, 4, group_size=128, moe_tensor=2) == ()
    assert legal_tensor_parallel(qwen, group_size=128) == (1, 2)
    assert legal_tensor_parallel(qwen, group_size=128, expert_parallel=4) == (4, 8)


def test_layers_of_other_widths_count_too() -> None:
    config = published_config("meta-llama--Llama-4-Maverick-17B-128E-Instruct")
    assert legal_tensor_parallel(ModelSpec.from_config(config, "")) == (1, 2, 4, 8)
    config["text_config"] = {**config["text_config"], "intermediate_size_mlp": 16388}
    described = ModelSpec.from_config(config, "")
    assert tensor_parallel_obstacles(described, 8) == ("intermediate_size 16388 is not a multiple of 8",)
    searched = published_spec("nvidia--Llama-3_3-Nemotron-Super-49B-v1")
    assert legal_tensor_parallel(searched) == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("tp", [0, 2, 9])
def test_an_illegal_tensor_parallel_size_is_refused_with_the_legal_ones(tp: int) -> None:
    with pytest.raises(PlanRefused) as caught:
        check_parallelism(published_spec("HuggingFaceTB--SmolLM2-135M"), tp, 1)
    assert caught.value.code == "TP_HEADS"
    assert str(tp) in str(caught.value.why)
    assert "1, 3" in str(caught.value.hint)


@pytest.mark.parametrize("pp", [0, 31])
def test_more_stages_than_layers_are_refused(pp: int) -> None:
    with pytest.raises(PlanRefused) as caught:
        check_parallelism(published_spec("HuggingFaceTB--SmolLM2-135M"), 1, pp)
    assert caught.value.code == "PP_LAYERS"

"""Models whose sizes were published: the configurations that matter for memory, as their authors publish them."""

from typing import Any

from builder import catalog
from builder.model.spec import ModelSpec
from builder.plan.memory import Storage


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return ModelSpec.from_config({"torch_dtype": "bfloat16", "eos_token_id": 2, **config}, "config.json")


def llama(vocab_size: int, hidden: int, layers: int, heads: int, kv_heads: int, inner: int, **more: Any) -> ModelSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    return spec_of(config | more)


LLAMA3_8B = llama(128256, 4096, 32, 32, 8, 14336)
LLAMA3_8B_1048K = llama(128256, 4096, 32, 32, 8, 14336, max_position_embeddings=1_048_576)
LLAMA3_70B = llama(128256, 8192, 80, 64, 8, 28672)
LLAMA2_7B = llama(32000, 4096, 32, 32, 32, 11008, max_position_embeddings=2048)
LLAMA2_13B = llama(32000, 5120, 40, 40, 40, 13824, max_position_embeddings=4096)
LLAMA2_70B = llama(32000, 8192, 80, 64, 8, 28672, max_position_embeddings=4096)
TINYLLAMA = llama(32000, 2048, 22, 32, 4, 5632, max_position_embeddings=2048)
LLAMA32_1B = llama(128256, 2048, 16, 32, 8, 8192, tie_word_embeddings=True)

QWEN15B = spec_of(
    {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
    }
)

GPT2_MEDIUM = spec_of(
    {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_embd": 1024,
        "n_layer": 24,
        "n_head": 16,
        "n_positions": 1024,
        "n_ctx": 1024,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    }
)

GEMMA3_1B = spec_of(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 1152,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_local_base_freq": 10000,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    }
)

MIXTRAL_8X7B = spec_of(
    {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": None,
    }
)

DEEPSEEK_V3 = spec_of(
    {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "max_position_embeddings": 163840,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
)


def storage(precision: str, **more: Any) -> Storage:
    return Storage(catalog.precisions()[precision], **more)

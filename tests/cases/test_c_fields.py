"""Public reports on config.json and tokenizers: fields that are absent, nested, switched off, or not JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from builder.lock import load_lock
from builder.model.spec import ModelSpec
from builder.model.weights import parameter_count, stored_bytes
from tests.cases.specs import refusal, spec_of
from tests.cases.support import Planned, config_of, failed, failure, plan, run_plan, unit_of, write_case
from tests.cases.weight_files import bf16, decoder, write_tensors

LLAMA_8B = "meta-llama--Llama-3.1-8B"
LLAMA_7B = "meta-llama--Llama-2-7b-hf"
QWEN3_8B = "Qwen--Qwen3-8B"
VL_2B = "Qwen--Qwen3-VL-2B-Instruct"


VL_TEXT = {
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "dtype": "bfloat16",
    "tie_word_embeddings": True,
}


class TestC15:
    """Fine-tunes add a token without a row for it in the embedding: index out of range, or a CUDA assertion.

    https://github.com/meta-llama/llama-cookbook/issues/196, https://github.com/OpenNMT/CTranslate2/issues/1377
    """

    @staticmethod
    def planned(
        folder: Path,
        vocab_size: int,
        rows: int,
        added: dict[str, int],
        file: str = "tokenizer.json",
        **recipe: Any,
    ) -> Planned:
        """Llama-2-7b with a tokenizer of 32000 words, beside tokens that `file` adds."""
        recipe_file = write_case(
            folder, config_of(LLAMA_7B, vocab_size=vocab_size), **{"precision": {"weights": "fp16"}, **recipe}
        )
        model = folder / "model"
        write_tensors(model / "model.safetensors", {"model.embed_tokens.weight": ("F16", (rows, 16))})
        entries = [{"id": number, "content": token} for token, number in added.items()]
        own = file == "tokenizer.json"
        vocabulary = {f"w{number}": number for number in range(32000)}
        tokenizer = {"added_tokens": entries if own else [], "model": {"type": "BPE", "vocab": vocabulary}}
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        if file == "added_tokens.json":
            (model / file).write_text(json.dumps(added))
        if file == "tokenizer_config.json":
            decoder = {str(number): {"content": token} for token, number in added.items()}
            (model / file).write_text(json.dumps({"added_tokens_decoder": decoder}))
        return run_plan(recipe_file)

    @pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json", "tokenizer_config.json"])
    def test_c15_a_token_without_a_row_is_refused_by_its_name_and_id(self, tmp_path: Path, file: str) -> None:
        planned = self.planned(tmp_path, 32000, 32000, {"<pad>": 32000}, file)
        assert planned.refused
        found = planned["TOKEN_ID_OUT_OF_RANGE"]
        assert (found.values["max_id"], found.values["max_legal"]) == (32000, 31999)
        assert "<pad>" in found.message
        assert "32000" in found.message

    def test_c15_a_config_that_was_resized_without_the_weights(self, tmp_path: Path) -> None:
        planned = self.planned(tmp_path, 32002, 32000, {"<|im_start|>": 32000, "<|im_end|>": 32001})
        found = planned["TOKEN_ID_OUT_OF_RANGE"]
        assert (found.values["max_id"], found.values["max_legal"]) == (32001, 31999)
        assert "<|im_start|>" in found.message
        assert "<|im_end|>" in found.message
        assert planned["EMBEDDING_ROWS"].values == {"vocab_size": 32002, "embedding_rows": 32000}

    @pytest.mark.parametrize(
        ("rows", "added"), [(32000, {"</s>": 2}), (32001, {"<pad>": 32000}), (32064, {"<pad>": 32000})]
    )
    def test_c15_tokens_that_have_rows_are_fine(self, tmp_path: Path, rows: int, added: dict[str, int]) -> None:
        assert not self.planned(tmp_path, rows, rows, added).refused

    def test_c15_a_waiver_says_that_no_request_holds_the_token(self, tmp_path: Path) -> None:
        waivers = [{"code": "TOKEN_ID_OUT_OF_RANGE", "reason": "padding only"}]
        planned = self.planned(tmp_path, 32000, 32000, {"<pad>": 32000}, waivers=waivers)
        assert planned["TOKEN_ID_OUT_OF_RANGE"].waived == "padding only"
        assert not planned.refused


class TestC17:
    """Chat models stop on several tokens, and some are named in generation_config.json only: engines never stopped.

    https://github.com/NVIDIA/TensorRT-LLM/issues/1470,
    https://github.com/huggingface/text-generation-inference/issues/2678
    """

    @pytest.mark.parametrize(
        ("name", "config", "generation", "stop_ids"),
        [
            (LLAMA_8B, 128001, [128001, 128008, 128009], (128001, 128008, 128009)),
            (LLAMA_8B, [128001, 128008, 128009], 128009, (128001, 128008, 128009)),
            (LLAMA_8B, 128001, None, (128001,)),
            (QWEN3_8B, 151645, [151645, 151643], (151645, 151643)),
        ],
    )
    def test_c17_the_end_tokens_of_both_files_count(
        self, tmp_path: Path, name: str, config: Any, generation: Any, stop_ids: tuple[int, ...]
    ) -> None:
        write_case(tmp_path, {})
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        assert unit_of(tmp_path, config_of(name, eos_token_id=config)).spec.eos_token_ids == stop_ids

    def test_c17_an_end_token_outside_of_the_vocabulary_is_refused(self, tmp_path: Path) -> None:
        error = failure(tmp_path, config_of(LLAMA_8B, eos_token_id=[128001, 128256]))
        assert (error.exit_code, error.code) == (4, "CONFIG_FIELD")
        assert "eos_token_id" in error.words


class TestC23:
    """Multimodal models describe their language model in text_config, and some files leave out what equals a default
    of the class: KeyError, or "cannot determine model architecture".

    https://github.com/NVIDIA/TensorRT-LLM/issues/4825, https://github.com/NVIDIA/TensorRT-LLM/issues/6193
    """

    def test_c23_numbers_are_read_from_text_config(self) -> None:
        spec = spec_of(
            VL_2B,
            model_type="qwen3_vl",
            architectures=["Qwen3VLForConditionalGeneration"],
            text_config=config_of(VL_2B)["text_config"] | VL_TEXT,
        )
        assert spec.vocab_size == 151936
        assert spec.kv_bytes_per_token(2, tp=1) == 114688
        assert (spec.dtype, spec.tie_word_embeddings) == ("bfloat16", True)

    def test_c23_the_table_of_architectures_decides(self, tmp_path: Path) -> None:
        engine = plan(tmp_path / "engine", config_of(VL_2B))
        assert "ARCHITECTURE_UNSUPPORTED" in engine.refusing
        assert "Qwen3VLForConditionalGeneration" in engine["ARCHITECTURE_UNSUPPORTED"].message
        pytorch = {"toolchain": "trtllm-1.2.1", "flow": "pytorch", "serving": {"family": "llmapi"}}
        assert "ARCHITECTURE_UNSUPPORTED" not in plan(tmp_path / "pytorch", config_of(VL_2B), **pytorch).codes

    def test_c23_known_class_defaults_fill_what_a_file_leaves_out(self) -> None:
        """gemma-3-4b-it says 34 layers; 8 heads (4 for keys and values) of 256 are the defaults of Gemma3TextConfig.

        2 · 34 · 4 · 256 · 2 bytes = 139,264 per token, no window being full.
        """
        spec = spec_of("google--gemma-3-4b-it")
        assert spec.kv_bytes_per_token(2, tp=1) == 139264
        assert {"num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"} <= set(spec.assumed)

    def test_c23_what_has_no_known_default_is_listed(self, tmp_path: Path) -> None:
        text = config_of(VL_2B)["text_config"]
        for name in ("num_attention_heads", "hidden_size", "vocab_size"):
            del text[name]
        error = failure(tmp_path, config_of(VL_2B, text_config=text))
        assert (error.exit_code, error.code) == (4, "CONFIG_FIELD")
        for name in ("num_attention_heads", "hidden_size", "vocab_size"):
            assert name in error.words

    def test_c23_an_assumed_number_is_checked_against_the_stored_tensors(self, tmp_path: Path) -> None:
        """The vocabulary that a file leaves out is 262208 by default; stored are 262144 rows."""
        file = write_case(tmp_path, config_of("google--gemma-3-4b-it"), flow="pytorch", serving={"family": "llmapi"})
        table = {"language_model.model.embed_tokens.weight": (262144, 16)}
        write_tensors(tmp_path / "model" / "model.safetensors", bf16(table))
        found = run_plan(file)["EMBEDDING_ROWS"]
        assert found.values == {"vocab_size": 262208, "embedding_rows": 262144}


class TestC25:
    """Nemotron-H's config.json holds Infinity, which is not JSON: half of a toolchain reads it, the other half doesn't.

    https://github.com/ai-dynamo/dynamo/issues/3043, https://github.com/huggingface/transformers/issues/42959
    """

    @pytest.mark.parametrize("written", ["Infinity", "-Infinity", "NaN", "1e999"])
    def test_c25_it_is_read_and_never_written(self, tmp_path: Path, written: str) -> None:
        raw = json.dumps(config_of("nvidia--Nemotron-H-56B-Base-8K"))
        assert '"num_hidden_layers": 118' in raw
        assert '"time_step_limit": [0.0, Infinity]' in raw
        recipe = {"flow": "pytorch", "serving": {"family": "llmapi"}, "model": {"trust_remote_code": True}}
        file = write_case(tmp_path, raw.replace("Infinity", written), **recipe)
        run_plan(file)
        text = file.with_suffix(".lock.json").read_text()
        lock = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in the lock"))
        assert lock["model"]["config"]["time_step_limit"] == [0.0, written]
        pinned = load_lock(file.with_suffix(".lock.json"))
        assert pinned is not None
        assert ModelSpec.from_config(pinned.config, file).num_hidden_layers == 118

    @pytest.mark.parametrize(
        ("key", "raw"),
        [
            ("num_hidden_layers", '"num_hidden_layers": Infinity'),
            ("rope_theta", '"rope_theta": NaN'),
            ("vocab_size", '"vocab_size": 1e999'),
        ],
    )
    def test_c25_a_number_that_counts_is_refused_by_its_key(self, tmp_path: Path, key: str, raw: str) -> None:
        config = config_of(LLAMA_8B)
        del config[key]
        error = failure(tmp_path, "{" + raw + ", " + json.dumps(config)[1:])
        assert (error.exit_code, error.code) == (4, "CONFIG_FIELD")
        assert key in error.words

    def test_c25_what_no_reader_would_take_is_refused_with_its_place(self, tmp_path: Path) -> None:
        error = failed(write_case(tmp_path, '{"time_step_limit": [0.0, infinity]}'))
        assert (error.exit_code, error.code) == (4, "CONFIG_JSON")
        assert "column" in error.words


class TestC27:
    """Files from before grouped-query attention, as OpenLLaMA's, have no num_key_value_heads: KeyError.

    https://github.com/pytorch/torchtune/issues/946
    """

    def test_c27_every_head_has_keys_of_its_own(self) -> None:
        spec = spec_of("openlm-research--open_llama_7b_v2")
        assert "num_key_value_heads" not in config_of("openlm-research--open_llama_7b_v2")
        assert spec.num_key_value_heads == 32
        assert spec.kv_bytes_per_token(2, tp=1) == 524288

    @pytest.mark.parametrize("without", [True, False], ids=["absent", "null"])
    def test_c27_another_size(self, without: bool) -> None:
        """Llama-2-13b: 2 · 40 layers · 40 heads · 128 · 2 bytes = 819,200; over 8 ranks 5 heads are left each."""
        name, key = "meta-llama--Llama-2-13b-hf", "num_key_value_heads"
        spec = spec_of(name, key) if without else spec_of(name, **{key: None})
        assert spec.num_key_value_heads == 40
        assert spec.kv_bytes_per_token(2, tp=1) == 819200
        assert spec.kv_bytes_per_token(2, tp=8) == 819200 // 8

    def test_c27_a_class_that_has_another_default_keeps_it(self) -> None:
        """MistralConfig of transformers: num_key_value_heads = 8."""
        assert spec_of("mistralai--Mistral-7B-v0.3", "num_key_value_heads").num_key_value_heads == 8

    @pytest.mark.parametrize("value", [0, -1, "32", 3.5, True])
    def test_c27_nonsense_is_refused(self, value: Any) -> None:
        error = refusal("openlm-research--open_llama_7b_v2", num_key_value_heads=value)
        assert error.code == "CONFIG_FIELD"
        assert "num_key_value_heads" in error.message


class TestC34:
    """Every family of experts has its own field names, and intermediate_size may be the width of nothing: a converter
    that guessed left experts out.

    https://github.com/NVIDIA/Megatron-LM/issues/5844, https://github.com/Lightning-AI/litgpt/issues/2234
    """

    @pytest.mark.parametrize(
        ("name", "changes", "parameters", "size"),
        [
            (
                "mistralai--Mixtral-8x7B-v0.1",
                {"num_local_experts": 8, "intermediate_size": 14336},
                46702792704,
                93405585408,
            ),
            (
                "Qwen--Qwen3-30B-A3B",
                {"num_experts": 128, "moe_intermediate_size": 768, "intermediate_size": 6144},
                30532122624,
                61064245248,
            ),
            (
                "deepseek-ai--DeepSeek-V2-Lite",
                {
                    "n_routed_experts": 64,
                    "n_shared_experts": 2,
                    "moe_intermediate_size": 1408,
                    "intermediate_size": 10944,
                    "first_k_dense_replace": 1,
                },
                15706484224,
                31412968448,
            ),
            # Neighbours: total_size of the index on the Hub (Mixtral-8x22B), the same with an expert less per layer
            # (3 · 4096 · 14336 · 32 layers and a row of 32 routers less), and Qwen3's unused width.
            ("mistralai--Mixtral-8x22B-v0.1", {}, 140620634112, 281241268224),
            (
                "mistralai--Mixtral-8x7B-v0.1",
                {"num_local_experts": 7},
                46702792704 - 32 * (3 * 4096 * 14336 + 4096),
                2 * (46702792704 - 32 * (3 * 4096 * 14336 + 4096)),
            ),
            ("Qwen--Qwen3-30B-A3B", {"intermediate_size": 12288}, 30532122624, 61064245248),
        ],
    )
    def test_c34_parameters_and_bytes_are_exact(
        self, name: str, changes: dict[str, Any], parameters: int, size: int
    ) -> None:
        spec = spec_of(name, **changes)
        assert parameter_count(spec) == parameters
        assert stored_bytes(spec) == size

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("mistralai--Mixtral-8x7B-v0.1", "num_local_experts"),
            ("Qwen--Qwen3-30B-A3B", "moe_intermediate_size"),
            ("deepseek-ai--DeepSeek-V2-Lite", "n_routed_experts"),
        ],
    )
    def test_c34_a_missing_field_is_refused_and_not_replaced_by_a_neighbour(self, name: str, key: str) -> None:
        error = refusal(name, key)
        assert error.code == "CONFIG_FIELD"
        assert key in error.message

    @pytest.mark.parametrize(("stored_experts", "warned"), [(8, False), (7, True), (9, True)])
    def test_c34_the_stored_tensors_are_counted_against_the_config(
        self, tmp_path: Path, stored_experts: int, warned: bool
    ) -> None:
        """Mixtral's structure with hidden size 64: an expert has three matrices of 64 x 128, the router a row for each.

        Per layer q and o of 64 x 64, k and v of 32 x 64, two norms: 2 · 4096 + 2 · 2048 + 128 = 12416 numbers, and
        8 · (3 · 8192 + 64) = 197120 in experts; two layers, two tables of 1000 x 64 and a norm: 547136 numbers.
        """
        config = config_of(
            "mistralai--Mixtral-8x7B-v0.1",
            hidden_size=64,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=2,
            vocab_size=1000,
        )
        tensors = decoder(layers=2, hidden=64, inner=0, heads=4, kv_heads=2, head_dim=16, vocab=1000)
        tensors = {name: shape for name, shape in tensors.items() if ".mlp." not in name}
        for layer in ("model.layers.0.block_sparse_moe", "model.layers.1.block_sparse_moe"):
            tensors[f"{layer}.gate.weight"] = (stored_experts, 64)
            for expert in range(stored_experts):
                tensors |= {f"{layer}.experts.{expert}.{name}.weight": (128, 64) for name in ("w1", "w3")}
                tensors[f"{layer}.experts.{expert}.w2.weight"] = (64, 128)
        file = write_case(tmp_path, config)
        write_tensors(tmp_path / "model" / "model.safetensors", bf16(tensors))
        planned = run_plan(file)
        assert ("TENSOR_BYTES" in planned.codes) is warned
        if warned:
            found = planned["TENSOR_BYTES"]
            assert found.severity == "warn"
            expert = 2 * 2 * (3 * 8192 + 64)  # bytes, in two layers
            assert found.values == {"stored": 2 * 547136 + (stored_experts - 8) * expert, "expected": 2 * 547136}


class TestC36:
    """Qwen2.5 writes a window and switches it off; Mistral-7B-v0.1 has one that was ignored.

    https://github.com/NVIDIA/TensorRT-LLM/issues/12597, https://github.com/NVIDIA/TensorRT-LLM/issues/10620
    """

    @pytest.mark.parametrize(
        ("name", "changes", "windows"),
        [
            ("Qwen--Qwen2.5-7B", {"sliding_window": 131072, "use_sliding_window": False}, {None: 28}),
            ("mistralai--Mistral-7B-v0.3", {"sliding_window": None}, {None: 32}),
            ("mistralai--Mistral-7B-v0.1", {"sliding_window": 4096}, {4096: 32}),
            (
                "Qwen--Qwen2.5-7B",
                {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28, "num_hidden_layers": 28},
                {None: 28},
            ),
            # Neighbours: layers from max_window_layers on have the window; a window of Qwen3; one that is switched off
            # and small; another number of Mistral's.
            (
                "Qwen--Qwen2.5-7B",
                {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 21},
                {None: 21, 4096: 7},
            ),
            (
                QWEN3_8B,
                {"sliding_window": 8192, "use_sliding_window": True, "max_window_layers": 30},
                {None: 30, 8192: 6},
            ),
            ("Qwen--Qwen2.5-72B", {"sliding_window": 32, "use_sliding_window": False}, {None: 80}),
            ("mistralai--Mistral-7B-v0.1", {"sliding_window": 1024}, {1024: 32}),
        ],
    )
    def test_c36_the_window_is_that_of_the_layers_that_use_it(
        self, name: str, changes: dict[str, Any], windows: dict[int | None, int]
    ) -> None:
        spec = spec_of(name, **changes)
        found: dict[int | None, int] = {}
        for layer in spec.layers:
            window = layer.attention.window if layer.attention else 0
            found[window] = found.get(window, 0) + 1
        assert found == windows

    def test_c36_neither_context_nor_cache_is_limited_by_a_window_that_is_off(self, tmp_path: Path) -> None:
        """Qwen2.5-7B at 32768 tokens: 2 · 28 · 4 · 128 · 2 bytes · 32768 = 1,879,048,192 bytes of one sequence."""
        changes = {"sliding_window": 4096, "use_sliding_window": False}
        spec = spec_of("Qwen--Qwen2.5-7B", **changes)
        assert spec.kv_bytes(32768, 2, tp=1) == 1879048192
        planned = plan(tmp_path, config_of("Qwen--Qwen2.5-7B", **changes), limits={"max_seq_len": 32768})
        assert not planned.refused

    def test_c36_a_window_that_is_on_is_clamped_to(self) -> None:
        """Mistral-7B-v0.1: 2 · 32 · 8 · 128 · 2 bytes · 4096 tokens = 536,870,912 bytes, however long the sequence."""
        spec = spec_of("mistralai--Mistral-7B-v0.1")
        assert spec.kv_bytes(32768, 2, tp=1) == spec.kv_bytes(4096, 2, tp=1) == 536870912

    @pytest.mark.parametrize("value", [-1, "4096", 0.5])
    def test_c36_nonsense_is_refused(self, value: Any) -> None:
        error = refusal("mistralai--Mistral-7B-v0.1", sliding_window=value)
        assert error.code == "CONFIG_FIELD"
        assert "sliding_window" in error.message

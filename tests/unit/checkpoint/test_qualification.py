import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import Gemma2Config, Gemma2ForCausalLM

from builder.checkpoint.convert import convert
from builder.checkpoint.in_memory import WORKING_BYTES, float32_bytes
from builder.checkpoint.logits import compare_with_transformers, prompt
from builder.checkpoint.memory import free_memory_bytes
from builder.checkpoint.qualification import Report, check_sample, evaluate
from builder.errors import HostError, SourceError, VerificationError
from builder.model.spec import ModelSpec
from builder.recipe.schema import AgreementGate, LogitsGate, PerplexityGate, Qualify
from builder.reference.folder import ModelFolder
from builder.reference.tensorfile import TensorEntry
from builder.store import Workspace

TOKENS = 600


def gate(max_increase: float = 0.02, window: int = 16, windows: int = 64) -> PerplexityGate:
    return PerplexityGate(text="file:text.txt", max_increase=max_increase, window=window, windows=windows)


@dataclass
class Bench:
    """A model folder, its checkpoint, a tokenizer with one word per token, and a text of random words."""

    folder: Path
    source: Path
    spec: ModelSpec

    def __post_init__(self) -> None:
        library = Tokenizer(WordLevel({f"w{number}": number for number in range(97)} | {"?": 97}, unk_token="?"))
        library.pre_tokenizer = WhitespaceSplit()
        library.save(str(self.tokenizer))
        self.write(f"w{number}" for number in np.random.default_rng(1).integers(0, 97, TOKENS))
        self.baseline.mkdir()
        convert(self.source, self.spec, Workspace(self.baseline))

    @property
    def baseline(self) -> Path:
        return self.folder / "baseline"

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def text(self) -> Path:
        return self.folder / "text.txt"

    def write(self, words: object) -> None:
        self.text.write_text(" ".join(words))  # type: ignore[call-overload]

    def changed(self, change: Callable[[dict[str, torch.Tensor]], None], **config: object) -> Path:
        """A copy of the checkpoint with other tensors, or other values in config.json."""
        folder = self.folder / "changed"
        shutil.copytree(self.baseline, folder)
        tensors = load_file(folder / "rank0.safetensors")
        change(tensors)
        save_file(tensors, folder / "rank0.safetensors", {"format": "pt"})
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        return folder

    def louder(self) -> Path:
        """A copy whose logits are a third larger, so that it's more certain of what a random text doesn't hold."""
        return self.changed(lambda tensors: tensors["lm_head.weight"].mul_(1.3))

    def noisy(self) -> Path:
        """A copy with a little noise on its output head."""
        noise = 0.02 * torch.randn(97, 48, generator=torch.manual_seed(1))
        return self.changed(lambda tensors: tensors["lm_head.weight"].add_(noise))

    def evaluate(self, candidate: Path, *gates: object, **options: object) -> Report:
        return evaluate(self.baseline, candidate, self.tokenizer, self.text, *gates, **options)  # type: ignore[arg-type]

    def refused(self, candidate: Path, *gates: object, **options: object) -> VerificationError:
        with pytest.raises(VerificationError) as error:
            self.evaluate(candidate, *gates, **options).require()
        return error.value


@pytest.fixture
def bench(tiny_llama: Callable[..., Path], tmp_path: Path, spec_of: Callable[[Path], ModelSpec]) -> Bench:
    source = tiny_llama(torch.float32, num_hidden_layers=2)
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] *= 0.1  # logits of an ordinary size
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    return Bench(tmp_path, source, spec_of(source))


# the verdict


def test_the_same_checkpoint_passes(bench: Bench) -> None:
    report = bench.evaluate(bench.baseline, gate(0), AgreementGate(min=0.99))
    report.require()
    assert [item.verdict for item in report.gates] == ["pass", "pass"]
    assert report.verdict == "pass"


def test_a_report_is_facts_in_json(bench: Bench) -> None:
    facts = json.loads(json.dumps(bench.evaluate(bench.noisy(), gate(9), AgreementGate(min=0.5)).to_json()))
    assert facts["verdict"] == "pass"
    assert [item["figure"] for item in facts["gates"]] == ["perplexity increase", "next-token agreement"]
    comparison = facts["comparison"]
    assert (comparison["windows"], comparison["window_tokens"], comparison["tokens"]) == (37, 15, 37 * 15)
    assert comparison["increase"]["low"] < comparison["increase"]["estimate"] < comparison["increase"]["high"]
    assert comparison["divergence"]["mean_kl"] > 0
    assert facts["text_tokens"] == TOKENS
    assert set(facts["versions"]) == {"engine-builder", "numpy", "tokenizers"}
    assert len(facts["text_sha256"]) == len(facts["tokenizer_sha256"]) == 64


def test_a_checkpoint_that_is_wholly_beyond_the_gate_fails(bench: Bench) -> None:
    error = bench.refused(bench.louder(), gate(0.02))
    assert error.code == "QUALIFY_FAILED"
    shown = error.render()
    for told in ("perplexity increase", "95 % interval", "wanted at most 2.00 %", "precision.weights", "555 tokens"):
        assert told in shown


def test_an_agreement_that_is_wholly_below_the_gate_fails(bench: Bench) -> None:
    candidate = bench.changed(lambda tensors: tensors["lm_head.weight"].copy_(tensors["lm_head.weight"].roll(1, 0)))
    error = bench.refused(candidate, gate(100), AgreementGate(min=0.9))
    assert error.code == "QUALIFY_FAILED"
    assert "next-token agreement" in error.message
    assert "perplexity increase" not in error.message


def test_a_gate_inside_the_interval_passes_nothing_and_says_what_would_settle_it(bench: Bench) -> None:
    candidate = bench.louder()
    [measured] = bench.evaluate(candidate, gate()).gates
    between = measured.estimate + 0.5 * (measured.high - measured.estimate)
    error = bench.refused(candidate, gate(between))
    assert error.code == "QUALIFY_INCONCLUSIVE"
    assert "more tokens would settle it" in str(error.hint)
    [undecided] = bench.evaluate(candidate, gate(between)).gates
    assert 3 * 555 < undecided.tokens_needed < 5 * 555  # half as far away needs four times the tokens
    assert f"qualify.perplexity.windows to {-(-undecided.tokens_needed // 15)}" in str(error.hint)
    assert "this one has 600 tokens" in str(error.hint)


def test_a_gate_on_the_estimate_itself_is_settled_by_no_text(bench: Bench) -> None:
    candidate = bench.louder()
    [measured] = bench.evaluate(candidate, gate()).gates
    error = bench.refused(candidate, gate(measured.estimate))
    assert error.code == "QUALIFY_INCONCLUSIVE"
    assert "no text settles it" in str(error.hint)


def test_a_failed_gate_outweighs_an_undecided_one(bench: Bench) -> None:
    noise = 0.02 * torch.randn(97, 48, generator=torch.manual_seed(1))
    candidate = bench.changed(lambda tensors: tensors["lm_head.weight"].mul_(1.3).add_(noise))
    share = bench.evaluate(candidate, gate()).comparison.agreement.estimate
    report = bench.evaluate(candidate, gate(0.02), AgreementGate(min=share))
    assert [item.verdict for item in report.gates] == ["fail", "inconclusive"]
    assert report.verdict == "fail"


def test_windows_are_no_longer_than_the_engine_allows(bench: Bench) -> None:
    report = bench.evaluate(bench.baseline, gate(window=64), longest=20)
    assert (report.comparison.windows, report.comparison.window_tokens) == (30, 19)


def test_progress_counts_the_tokens_of_both_models(bench: Bench) -> None:
    steps: list[int] = []
    bench.evaluate(bench.baseline, gate(), advance=steps.append)
    assert sum(steps) == 2 * 37 * 16


# the sample


def sample_refused(bench: Bench, *gates: object, **options: object) -> SourceError:
    with pytest.raises(SourceError) as error:
        check_sample(bench.tokenizer, bench.text, *gates, **options)  # type: ignore[arg-type]
    return error.value


def test_the_sample_is_known_before_anything_is_converted(bench: Bench) -> None:
    assert check_sample(bench.tokenizer, bench.text, gate()) == 37
    assert check_sample(bench.tokenizer, bench.text, gate(windows=10)) == 10


def test_an_empty_text_is_refused(bench: Bench) -> None:
    bench.write([])
    assert sample_refused(bench, gate()).code == "TEXT_EMPTY"


@pytest.mark.parametrize("words", [1, 15, 8 * 16 - 1])
def test_a_text_that_is_shorter_than_eight_windows_is_refused(bench: Bench, words: int) -> None:
    bench.write(["w1"] * words)
    error = sample_refused(bench, gate())
    assert error.code == "TEXT_TOO_SHORT"
    assert error.message == f"the text has {words} tokens, and 8 windows of 16 need 128"


def test_a_text_that_cannot_show_the_agreement_is_refused(bench: Bench) -> None:
    error = sample_refused(bench, gate(), AgreementGate(min=0.995))
    assert error.code == "SAMPLE_TOO_SMALL"
    assert error.message == "555 tokens don't show an agreement of 99.50 %, even where all agree"
    assert "from 765 tokens on" in str(error.why)
    assert check_sample(bench.tokenizer, bench.text, gate(), AgreementGate(min=0.993)) == 37


def test_a_window_without_room_is_refused(bench: Bench) -> None:
    assert sample_refused(bench, gate(), longest=1).code == "WINDOW_TOO_SMALL"


@pytest.mark.parametrize(
    ("qualify", "complaint"),
    [
        ({"agreement": {"min": 0.9}}, "which isn't there"),
        (
            {"perplexity": {"text": "file:a", "window": 16, "windows": 8}, "agreement": {"min": 0.99}},
            "120 tokens don't show an agreement of 0.99, even where all agree: 380 are needed",
        ),
        ({"perplexity": {"text": "file:a", "windows": 7}}, "greater than or equal to 8"),
        ({"perplexity": {"text": "file:a"}, "agreement": {"min": 1}}, "less than 1"),
        ({"perplexity": {"text": "file:a", "max_increase": -0.1}}, "greater than or equal to 0"),
    ],
)
def test_a_recipe_that_no_checkpoint_could_meet_is_refused(qualify: dict[str, object], complaint: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=complaint):
        Qualify.model_validate(qualify)


def test_a_recipe_may_ask_for_little() -> None:
    asked = Qualify.model_validate({"perplexity": {"text": "file:wiki.txt"}, "agreement": {"min": 0.9}})
    assert asked.perplexity is not None
    assert (asked.perplexity.max_increase, asked.perplexity.window, asked.perplexity.windows) == (0.02, 512, 64)
    assert Qualify.model_validate({"logits": {}}).logits == LogitsGate(max_difference=0.01)


# the checkpoints


def test_a_checkpoint_with_a_weight_that_is_not_a_number_is_told(bench: Bench) -> None:
    candidate = bench.changed(lambda tensors: tensors["lm_head.weight"][3].fill_(torch.nan))
    error = bench.refused(candidate, gate())
    assert error.code == "LOGITS_NOT_FINITE"
    assert error.message == f"logits of the checkpoint {candidate} aren't finite"
    assert error.where == "window 1, position 1 of 16"


def test_vocabularies_that_differ_are_told(bench: Bench) -> None:
    def smaller(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("lm_head.weight", "transformer.vocab_embedding.weight"):
            tensors[name] = tensors[name][:90].clone()

    error = bench.refused(bench.changed(smaller, vocab_size=90), gate())
    assert error.code == "VOCABULARY_DIFFERS"
    assert "has 90 tokens" in error.message
    assert error.message.endswith("97")


def test_a_text_with_tokens_outside_the_vocabulary_is_told(bench: Bench) -> None:
    bench.write(["w1"] * 300 + ["unknown"] + ["w1"] * 300)
    error = bench.refused(bench.baseline, gate())
    assert error.code == "TOKEN_OUTSIDE_VOCABULARY"
    assert error.where == "window 19"


def test_a_checkpoint_that_cannot_be_read_is_told(bench: Bench) -> None:
    candidate = bench.changed(lambda tensors: tensors.pop("transformer.ln_f.weight"))
    error = bench.refused(candidate, gate())
    assert (error.code, error.where) == ("CHECKPOINT_UNREADABLE", str(candidate))
    assert "transformer.ln_f.weight" in str(error.why)


# memory


def test_without_memory_for_two_models_they_run_one_after_the_other(bench: Bench) -> None:
    candidate = bench.noisy()
    need = float32_bytes(ModelFolder.open(candidate))
    together = bench.evaluate(candidate, gate(), free_bytes=WORKING_BYTES + 2 * need).to_json()
    apart = bench.evaluate(candidate, gate(), free_bytes=WORKING_BYTES + 2 * need - 1).to_json()
    assert together["comparison"].pop("divergence") is not None
    assert apart["comparison"].pop("divergence") is None
    assert together == apart


def test_without_memory_for_one_model_nothing_is_loaded(bench: Bench) -> None:
    need = float32_bytes(ModelFolder.open(bench.baseline))
    with pytest.raises(HostError) as error:
        bench.evaluate(bench.baseline, gate(), free_bytes=WORKING_BYTES + need - 1)
    assert error.value.code == "OUT_OF_MEMORY"


def test_a_checkpoint_takes_four_bytes_a_weight_and_room_for_the_largest_twice(bench: Bench) -> None:
    weights = load_file(bench.baseline / "rank0.safetensors").values()
    largest = max(tensor.numel() for tensor in weights)
    expected = 4 * (sum(tensor.numel() for tensor in weights) + 2 * largest)
    assert float32_bytes(ModelFolder.open(bench.baseline)) == expected


@pytest.mark.parametrize(
    ("algorithm", "dtype", "weights"),
    [("NVFP4", "U8", 128), ("W4A16_AWQ", "I8", 128), ("W8A8_SQ_PER_CHANNEL", "I8", 64)],
)
def test_weights_of_four_bits_are_two_to_a_byte(algorithm: str, dtype: str, weights: int, bench: Bench) -> None:
    opened = ModelFolder.open(bench.baseline)
    packed = TensorEntry(dtype, (8, 8), 0, 64)
    file = replace(opened.ranks[0], tensors={"lm_head.weight": packed, "scale": TensorEntry("F32", (2,), 64, 72)})
    folder = replace(opened, ranks=(file,), pretrained_config={"quantization": {"quant_algo": algorithm}})
    assert float32_bytes(folder) == 4 * (3 * weights + 2)


MEMINFO = "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:   1000 kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 1_024_000),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"}, 1_024_000),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "1\n",
                "sys/fs/cgroup/a/memory.max": "500000\n",
                "sys/fs/cgroup/a/memory.current": "300000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 100000\n",
            },
            300_000,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/job\n1:cpu:/\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "500000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "600000\n",
            },
            0,
        ),
    ],
)
def test_free_memory_is_what_the_system_and_its_cgroups_allow(
    tmp_path: Path, files: dict[str, str], free: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert free_memory_bytes(tmp_path) == free


def test_this_machine_has_memory() -> None:
    assert 0 < (free_memory_bytes() or 0) < 1 << 50


# transformers


def test_the_logits_are_those_of_transformers(bench: Bench) -> None:
    report = compare_with_transformers(bench.source, bench.baseline, prompt(97))
    assert report.tokens == 64
    assert 0 < report.max_difference < 1e-3
    assert report.max_relative_difference < 1e-4
    assert report.top1_agreement == 1
    report.require(LogitsGate())
    assert set(json.loads(json.dumps(report.to_json()))["versions"]) >= {"transformers", "torch"}


def test_a_wrong_conversion_is_told(bench: Bench) -> None:
    name = "transformer.layers.1.attention.qkv.weight"
    candidate = bench.changed(lambda tensors: tensors[name].copy_(tensors[name].roll(8, 0)))
    report = compare_with_transformers(bench.source, candidate, prompt(97))
    with pytest.raises(VerificationError, match="logits differ from those of transformers by") as error:
        report.require(LogitsGate())
    assert error.value.code == "QUALIFY_FAILED"


def test_gemma_2_is_compared_with_its_soft_caps(tmp_path: Path, spec_of: Callable[[Path], ModelSpec]) -> None:
    torch.manual_seed(3)
    config = Gemma2Config(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, sliding_window=16, query_pre_attn_scalar=8, attn_logit_softcapping=0.5,
        final_logit_softcapping=3.0,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "source")
    (tmp_path / "checkpoint").mkdir()
    convert(tmp_path / "source", spec_of(tmp_path / "source"), Workspace(tmp_path / "checkpoint"))
    report = compare_with_transformers(tmp_path / "source", tmp_path / "checkpoint", prompt(96))
    assert report.max_difference < 1e-3


def test_without_transformers_the_extra_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HostError) as error:
        compare_with_transformers(bench.source, bench.baseline, prompt(97))
    assert error.value.code == "TRANSFORMERS_MISSING"
    assert "engine-builder[modelopt]" in str(error.value.hint)


def source_refused(bench: Bench) -> SourceError:
    with pytest.raises(SourceError) as error:
        compare_with_transformers(bench.source, bench.baseline, prompt(97))
    return error.value


def change_config(bench: Bench, **changes: object) -> None:
    path = bench.source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_source_with_quantised_weights_is_not_compared(bench: Bench) -> None:
    change_config(bench, quantization_config={"quant_method": "fp8"})
    assert source_refused(bench).code == "SOURCE_QUANTISED"


def test_code_of_the_source_is_not_run(bench: Bench) -> None:
    change_config(bench, model_type="mine", auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"})
    (bench.source / "mine.py").write_text(f"open({str(bench.folder / 'ran')!r}, 'w')")
    assert source_refused(bench).code == "TRANSFORMERS_REFUSES"
    assert not (bench.folder / "ran").exists()


def test_pickled_weights_are_not_read(bench: Bench) -> None:
    torch.save(load_file(bench.source / "model.safetensors"), bench.source / "pytorch_model.bin")
    (bench.source / "model.safetensors").unlink()
    assert source_refused(bench).code == "TRANSFORMERS_REFUSES"


def test_weights_that_the_source_lacks_are_not_made_up(bench: Bench) -> None:
    tensors = load_file(bench.source / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, bench.source / "model.safetensors", {"format": "pt"})
    error = source_refused(bench)
    assert error.code == "TRANSFORMERS_REFUSES"
    assert "model.norm.weight" in str(error.why)


def test_a_source_with_another_vocabulary_is_told(bench: Bench, tiny_llama: Callable[..., Path]) -> None:
    with pytest.raises(VerificationError) as error:
        compare_with_transformers(tiny_llama(folder="other", vocab_size=98), bench.baseline, prompt(97))
    assert error.value.code == "VOCABULARY_DIFFERS"


def test_a_prompt_outside_the_vocabulary_is_told(bench: Bench) -> None:
    with pytest.raises(VerificationError) as error:
        compare_with_transformers(bench.source, bench.baseline, [1, 97])
    assert error.value.code == "TOKEN_OUTSIDE_VOCABULARY"

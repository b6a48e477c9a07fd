import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import LlamaForCausalLM

from builder.checkpoint import behaviour
from builder.checkpoint.behaviour import TokenizedText, compare, measure, measure_pair, tokenize
from builder.checkpoint.convert import convert
from builder.errors import SourceError, VerificationError
from builder.model.spec import ModelSpec
from builder.reference.model import ReferenceModel
from builder.store import Workspace

SpecOf = Callable[[Path], ModelSpec]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Callable[..., Path]:
    """tokenizer.json with the words w0 to w94, unknown ones (95), and BOS (96), which it puts in front if asked to."""

    def make(bos: bool = False, **settings: object) -> Path:
        library = Tokenizer(WordLevel({f"w{number}": number for number in range(95)} | {"?": 95}, unk_token="?"))
        library.pre_tokenizer = WhitespaceSplit()
        library.add_special_tokens(["<s>"])
        if bos:
            library.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 96)])
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(json.loads(library.to_str()) | settings))
        return path

    return make


@pytest.fixture
def source(tiny_llama: Callable[..., Path]) -> Path:
    return tiny_llama(torch.float32, num_hidden_layers=2)


@pytest.fixture
def model(source: Path, tmp_path: Path, spec_of: SpecOf) -> ReferenceModel:
    (tmp_path / "checkpoint").mkdir()
    convert(source, spec_of(source), Workspace(tmp_path / "checkpoint"))
    return ReferenceModel.load(tmp_path / "checkpoint")


@pytest.fixture
def noisy(model: ReferenceModel, tmp_path: Path) -> ReferenceModel:
    """The same model with an output head that is a little off."""
    folder = tmp_path / "noisy"
    folder.mkdir()
    tensors = load_file(tmp_path / "checkpoint" / "rank0.safetensors")
    tensors["lm_head.weight"] += 0.05 * torch.randn(97, 48, generator=torch.manual_seed(1))
    save_file(tensors, folder / "rank0.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((tmp_path / "checkpoint" / "config.json").read_bytes())
    return ReferenceModel.load(folder)


def windows(count: int = 9, length: int = 24) -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng(3).integers(0, 97, (count, length)))


def transformers_logits(source: Path, window: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = LlamaForCausalLM.from_pretrained(source).double()(torch.from_numpy(window)[None]).logits
    return logits[0]


# the text


def write(folder: Path, words: int) -> Path:
    (folder / "text.txt").write_text(" ".join(f"w{number % 95}" for number in range(words)))
    return folder / "text.txt"


def test_a_text_becomes_windows_without_a_gap(tokenizer: Callable[..., Path], tmp_path: Path) -> None:
    text = tokenize(tokenizer(), write(tmp_path, 50))
    assert [window.tolist() for window in text.windows(16, 99)] == [
        list(range(16)),
        list(range(16, 32)),
        list(range(32, 48)),
    ]


def test_every_window_begins_as_the_tokenizer_begins_a_text(tokenizer: Callable[..., Path], tmp_path: Path) -> None:
    text = tokenize(tokenizer(bos=True), write(tmp_path, 50))
    assert text.prefix.tolist() == [96]
    assert [window.tolist() for window in text.windows(11, 99)][1] == [96, *range(10, 20)]
    assert len(text.windows(11, 99)) == 5


def test_fewer_windows_than_there_are_lie_spread_over_the_text() -> None:
    text = TokenizedText(np.array([], np.int64), np.arange(1000))
    assert [window[0] for window in text.windows(10, 4)] == [120, 370, 620, 870]
    assert [window[0] for window in text.windows(10, 100)] == list(range(0, 1000, 10))
    assert text.windows(1001, 4) == ()


def test_truncation_and_padding_of_the_tokenizer_are_left_out(tokenizer: Callable[..., Path], tmp_path: Path) -> None:
    truncation = {"max_length": 5, "direction": "Right", "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 128}, "direction": "Left", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "w0",
    }  # fmt: skip
    path = tokenizer(bos=True, truncation=truncation, padding=padding)
    text = tokenize(path, write(tmp_path, 50))
    assert (text.prefix.tolist(), text.tokens.size) == ([96], 50)


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "TEXT_UNREADABLE"), (b"\xff\xfe w1", "TEXT_NOT_UTF8"), (b"w1 " * (6 << 20), "TEXT_TOO_LARGE")],
)
def test_a_text_that_is_none_is_refused(
    tokenizer: Callable[..., Path], tmp_path: Path, content: bytes | None, code: str
) -> None:
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(SourceError) as error:
        tokenize(tokenizer(), tmp_path / "text.txt")
    assert error.value.code == code
    assert str(tmp_path / "text.txt") in error.value.render()


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": 1}'])
def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SourceError) as error:
        tokenize(tmp_path / "tokenizer.json", write(tmp_path, 5))
    assert error.value.code == "TOKENIZER_JSON"


# one model


def test_the_likelihoods_are_those_of_transformers(model: ReferenceModel, source: Path) -> None:
    measured = measure(model, windows())
    assert measured.nll.shape == measured.top1.shape == (9, 23)
    for window, nll, top1 in zip(windows(), measured.nll, measured.top1, strict=True):
        logits = transformers_logits(source, window)[:-1]
        theirs = torch.nn.functional.cross_entropy(logits, torch.from_numpy(window[1:]), reduction="none")
        np.testing.assert_allclose(nll, theirs.numpy(), rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(top1, logits.argmax(dim=1))
    assert measured.perplexity == pytest.approx(np.exp(measured.nll.mean()))


def test_a_large_vocabulary_is_computed_in_slices_with_the_same_result(
    model: ReferenceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measure(model, windows(3, 60))
    monkeypatch.setattr(behaviour, "_SLICE_BYTES", 20 * 4 * 97)
    sliced = measure(model, windows(3, 60))
    np.testing.assert_allclose(sliced.nll, whole.nll, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(sliced.top1, whole.top1)


def test_the_perplexity_of_a_model_that_knows_nothing_is_its_vocabulary(
    source: Path, tmp_path: Path, spec_of: SpecOf
) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"].zero_()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    (tmp_path / "blank").mkdir()
    convert(source, spec_of(source), Workspace(tmp_path / "blank"))
    assert measure(ReferenceModel.load(tmp_path / "blank"), windows()).perplexity == pytest.approx(97)


def test_progress_counts_every_token(model: ReferenceModel) -> None:
    steps: list[int] = []
    measure(model, windows(), steps.append)
    measure_pair(model, model, windows(), steps.append)
    assert sum(steps) == 3 * 9 * 24


def test_a_token_that_the_model_does_not_have_is_told(model: ReferenceModel) -> None:
    text = [*windows(2), np.full(24, 97)]
    with pytest.raises(VerificationError, match="the token 97, but the vocabulary of tiny has 97") as error:
        measure(model, text, name="tiny")
    assert (error.value.code, error.value.where) == ("TOKEN_OUTSIDE_VOCABULARY", "window 3")


class Damaged:
    """A model whose logits are damaged after one token."""

    vocab_size = 97

    def __init__(self, model: ReferenceModel, position: int, value: float) -> None:
        self._model, self._position, self._value = model, position, value

    def new_cache(self, capacity: int) -> object:
        return self._model.new_cache(capacity)

    def prefill(self, tokens: np.ndarray, cache: object, *, all_positions: bool) -> np.ndarray:
        logits = self._model.prefill(tokens, cache, all_positions=all_positions)  # type: ignore[arg-type]
        logits[self._position - 1, 5] = self._value
        return logits


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_told_with_their_position(model: ReferenceModel, value: float) -> None:
    damaged: ReferenceModel = Damaged(model, 7, value)  # type: ignore[assignment]
    with pytest.raises(VerificationError, match="logits of the candidate aren't finite") as error:
        measure_pair(model, damaged, windows())
    assert (error.value.code, error.value.where) == ("LOGITS_NOT_FINITE", "window 1, position 7 of 24")


# two models


def test_a_model_does_not_differ_from_itself(model: ReferenceModel) -> None:
    comparison = compare(*measure_pair(model, model, windows()))
    assert comparison.divergence is not None
    assert (comparison.divergence.mean_kl, comparison.divergence.max_logit_difference) == (0, 0)
    assert (comparison.increase.low, comparison.increase.high) == (0, 0)
    assert comparison.agreement.estimate == 1
    assert comparison.agreement.high == pytest.approx(1)
    assert comparison.tokens == 9 * 23


def test_side_by_side_gives_the_same_as_one_after_the_other(model: ReferenceModel, noisy: ReferenceModel) -> None:
    ours, theirs, _ = measure_pair(model, noisy, windows())
    for together, alone in ((ours, measure(model, windows())), (theirs, measure(noisy, windows()))):
        np.testing.assert_array_equal(together.nll, alone.nll)
        np.testing.assert_array_equal(together.top1, alone.top1)


def test_the_figures_are_those_of_torch(model: ReferenceModel, noisy: ReferenceModel) -> None:
    comparison = compare(*measure_pair(model, noisy, windows()))
    text = torch.from_numpy(np.stack(windows()))
    logits = [
        torch.stack(
            [
                torch.from_numpy(each.prefill(window, each.new_cache(24), all_positions=True)).double()[:-1]
                for window in windows()
            ]
        )
        for each in (model, noisy)
    ]
    nll = [torch.nn.functional.cross_entropy(each.flatten(0, 1), text[:, 1:].flatten()) for each in logits]
    assert comparison.reference_perplexity == pytest.approx(nll[0].exp().item(), rel=1e-5)
    assert comparison.candidate_perplexity == pytest.approx(nll[1].exp().item(), rel=1e-5)
    assert comparison.increase.estimate == pytest.approx((nll[1] - nll[0]).exp().item() - 1, rel=1e-4)
    assert comparison.increase.low < comparison.increase.estimate < comparison.increase.high
    same = (logits[0].argmax(-1) == logits[1].argmax(-1)).double().mean().item()
    assert 0 < same < 1
    assert comparison.agreement.estimate == pytest.approx(same)
    assert comparison.divergence is not None
    ours, theirs = (each.log_softmax(-1).flatten(0, 1) for each in logits)
    divergence = torch.nn.functional.kl_div(theirs, ours, log_target=True, reduction="batchmean").item()
    assert comparison.divergence.mean_kl == pytest.approx(divergence, rel=1e-4)
    assert comparison.divergence.max_logit_difference == pytest.approx((logits[0] - logits[1]).abs().max().item())


def test_a_model_that_is_broken_beyond_measure_has_figures_that_json_can_hold(model: ReferenceModel) -> None:
    measured = measure(model, windows())
    broken = behaviour.Measurement(measured.nll + np.linspace(1e6, 1e38, 9)[:, None], measured.top1)
    comparison = compare(measured, broken)
    assert np.isfinite([comparison.candidate_perplexity, comparison.increase.high, comparison.increase.low]).all()

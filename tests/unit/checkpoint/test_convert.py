import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builder.checkpoint.convert import convert
from builder.errors import HostError, PlanRefused, SourceError
from builder.model.layout import Split, checkpoint_bytes
from builder.model.spec import ModelSpec
from builder.store import Workspace, hash_file

MakeLlama = Callable[..., Path]
SpecOf = Callable[[Path], ModelSpec]


@pytest.fixture
def checkpoint(tmp_path: Path, spec_of: SpecOf) -> Callable[..., Workspace]:
    def make(source: Path, name: str = "checkpoint", tp: int = 1, pp: int = 1, **options: Any) -> Workspace:
        out = Workspace(tmp_path / name)
        out.path.mkdir()
        convert(source, spec_of(source), out, Split(tp, pp), **options)
        return out

    return make


def ranks(out: Workspace) -> list[dict[str, torch.Tensor]]:
    files = sorted(out.path.glob("rank*.safetensors"), key=lambda file: int(file.stem.removeprefix("rank")))
    return [load_file(file) for file in files]


def source_tensors(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("model*.safetensors"):
        tensors |= load_file(file)
    return tensors


def reassemble(out: Workspace) -> dict[str, torch.Tensor]:
    """The Hugging Face tensors, put together again from what TensorRT-LLM documents about its checkpoints."""
    config = json.loads((out.path / "config.json").read_text())
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    heads, key_value_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]
    every = ranks(out)
    assert len(every) == tp * pp == config["mapping"]["world_size"]
    assembled: dict[str, torch.Tensor] = {}

    def same(shards: list[torch.Tensor]) -> torch.Tensor:
        assert all(torch.equal(shard, shards[0]) for shard in shards)
        return shards[0]

    stages = [every[stage * tp : (stage + 1) * tp] for stage in range(pp)]
    first, last = stages[0], stages[-1]
    assembled["model.embed_tokens.weight"] = same([rank.pop("transformer.vocab_embedding.weight") for rank in first])
    assembled["model.norm.weight"] = same([rank.pop("transformer.ln_f.weight") for rank in last])
    head = torch.cat([rank.pop("lm_head.weight") for rank in last])
    assert not head[config["vocab_size"] :].any()
    assembled["lm_head.weight"] = head[: config["vocab_size"]]

    number = 0
    for stage in stages:
        local = 0
        while f"transformer.layers.{local}.input_layernorm.weight" in stage[0]:
            shards = [
                {
                    name.split(".", 3)[3]: rank.pop(name)
                    for name in list(rank)
                    if name.startswith(f"transformer.layers.{local}.")
                }
                for rank in stage
            ]
            layer = f"model.layers.{number}."
            assembled[layer + "input_layernorm.weight"] = same([shard["input_layernorm.weight"] for shard in shards])
            assembled[layer + "post_attention_layernorm.weight"] = same(
                [shard["post_layernorm.weight"] for shard in shards]
            )
            for ours, theirs in (("fc", "gate_proj"), ("gate", "up_proj")):
                for kind in ("weight", "bias") if config["mlp_bias"] else ("weight",):
                    assembled[f"{layer}mlp.{theirs}.{kind}"] = torch.cat(
                        [shard[f"mlp.{ours}.{kind}"] for shard in shards]
                    )
            for ours, theirs, biased in (
                ("attention.dense", "self_attn.o_proj", "attn_bias"),
                ("mlp.proj", "mlp.down_proj", "mlp_bias"),
            ):
                assembled[f"{layer}{theirs}.weight"] = torch.cat([shard[f"{ours}.weight"] for shard in shards], dim=1)
                if config[biased]:
                    assembled[f"{layer}{theirs}.bias"] = same([shard[f"{ours}.bias"] for shard in shards])
            for kind in ("weight", "bias") if config["attn_bias"] else ("weight",):
                query_rows, key_rows = heads // tp * size, max(1, key_value_heads // tp) * size
                parts = [
                    torch.split(shard[f"attention.qkv.{kind}"], [query_rows, key_rows, key_rows]) for shard in shards
                ]
                copies = max(1, tp // key_value_heads)
                for index, theirs in enumerate(("q_proj", "k_proj", "v_proj")):
                    pieces = [part[index] for part in parts]
                    if theirs != "q_proj" and copies > 1:
                        pieces = [same(pieces[start : start + copies]) for start in range(0, tp, copies)]
                    assembled[f"{layer}self_attn.{theirs}.{kind}"] = torch.cat(pieces)
            number, local = number + 1, local + 1
    assert not any(every), "a rank holds tensors that nobody knows"
    return assembled


def assert_same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name].view(torch.uint8), tensor.view(torch.uint8)), name


def digests(out: Workspace) -> dict[str, str]:
    return {path.name: hash_file(path).sha256 for path in sorted(out.path.iterdir())}


# the weights


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize(
    ("key_value_heads", "tp"),
    [(3, 1), (3, 3), (3, 6), (2, 2), (2, 6), (6, 1), (6, 2), (6, 3), (6, 6), (1, 2), (1, 3), (1, 6)],
)
def test_the_ranks_together_are_the_source_bit_for_bit(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], key_value_heads: int, tp: int, pp: int
) -> None:
    source = tiny_llama(num_key_value_heads=key_value_heads)
    assert_same_tensors(reassemble(checkpoint(source, tp=tp, pp=pp)), source_tensors(source))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_precision_of_the_model_is_kept(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], dtype: torch.dtype
) -> None:
    source = tiny_llama(dtype)
    out = checkpoint(source, tp=3)
    assert_same_tensors(reassemble(out), source_tensors(source))
    assert json.loads((out.path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (3, 2), (6, 7)])
def test_biases_come_along(tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tp: int, pp: int) -> None:
    source = tiny_llama(attention_bias=True, mlp_bias=True)
    assert_same_tensors(reassemble(checkpoint(source, tp=tp, pp=pp)), source_tensors(source))


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (3, 1), (1, 2)])
def test_a_tied_head_is_stored_on_its_own(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tp: int, pp: int
) -> None:
    source = tiny_llama(tie_word_embeddings=True)
    tensors = source_tensors(source)
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    assert_same_tensors(reassemble(checkpoint(source, tp=tp, pp=pp)), tensors)


def test_an_explicit_head_dim_gives_attention_its_own_width(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama(head_dim=16)
    out = checkpoint(source, tp=3)
    assert ranks(out)[0]["transformer.layers.0.attention.dense.weight"].shape == (48, 32)
    assert_same_tensors(reassemble(out), source_tensors(source))


@pytest.mark.parametrize("tp", [1, 3])
def test_weights_larger_than_a_block_are_copied_in_pieces(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tp: int
) -> None:
    source = tiny_llama(torch.float32, hidden_size=768, intermediate_size=3072, num_hidden_layers=1, vocab_size=5003)
    assert max(tensor.nbytes for tensor in source_tensors(source).values()) > 8 << 20
    assert_same_tensors(reassemble(checkpoint(source, tp=tp)), source_tensors(source))


def test_a_rank_file_is_what_the_safetensors_library_writes(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tmp_path: Path
) -> None:
    out = checkpoint(tiny_llama(), tp=3)
    for file in out.path.glob("rank*.safetensors"):
        save_file(load_file(file), tmp_path / "theirs", metadata={"format": "pt"})
        assert file.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_shards_give_the_same_bytes_as_a_single_file(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    single, shards = tiny_llama(folder="single"), tiny_llama(folder="shards", max_shard_size="50KB")
    assert (single / "model.safetensors").exists()
    assert len(list(shards.glob("model-*.safetensors"))) > 2
    assert digests(checkpoint(single, "a", tp=3)) == digests(checkpoint(shards, "b", tp=3))


def test_the_same_source_gives_the_same_bytes_and_their_digests_are_recorded(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    one, other = checkpoint(source, "one", tp=3, pp=2), checkpoint(source, "other", tp=3, pp=2)
    assert sorted(one.digests) == ["config.json", *(f"rank{rank}.safetensors" for rank in range(6))]
    assert digests(one) == digests(other)
    assert {name: digest.sha256 for name, digest in one.digests.items()} == digests(one)
    for name, digest in one.digests.items():
        content = (one.path / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (digest.size, digest.sha256)


def test_progress_counts_every_byte_of_the_tensors(tiny_llama: MakeLlama, tmp_path: Path, spec_of: SpecOf) -> None:
    source = tiny_llama(vocab_size=98)
    spec, steps = spec_of(source), []
    convert(source, spec, Workspace(tmp_path), tp=3, pp=2, advance=steps.append)
    assert sum(steps) == checkpoint_bytes(spec, Split(3, 2))
    assert sum(steps) == sum(tensor.nbytes for rank in ranks(Workspace(tmp_path)) for tensor in rank.values())


# config.json


def test_the_config_carries_what_tensorrt_llm_needs(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    rope = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    source = tiny_llama(
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **rope}, attention_bias=True, rms_norm_eps=1e-5
    )
    assert json.loads((checkpoint(source, tp=3, pp=2).path / "config.json").read_text()) == {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "logits_dtype": "float32",
        "num_hidden_layers": 7,
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_size": 8,
        "intermediate_size": 96,
        "vocab_size": 97,
        "max_position_embeddings": 64,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 500000.0,
        "rotary_scaling": {"type": "llama3", **rope},
        "norm_epsilon": 1e-5,
        "hidden_act": "silu",
        "attn_bias": True,
        "mlp_bias": False,
        "qk_layernorm": False,
        "tie_word_embeddings": False,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "mapping": {"world_size": 6, "tp_size": 3, "pp_size": 2},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }


def test_a_linear_rope_is_not_lost(tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]) -> None:
    source = tiny_llama(rope_parameters={"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0})
    config = json.loads((checkpoint(source).path / "config.json").read_text())
    assert (config["rotary_base"], config["rotary_scaling"]) == (100000.0, {"type": "linear", "factor": 4.0})


# precision


@pytest.mark.parametrize("tp", [1, 3])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
def test_a_precision_that_is_asked_for_is_rounded_to_as_torch_does(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], stored: torch.dtype, wanted: str, tp: int
) -> None:
    source = tiny_llama(stored)
    out = checkpoint(source, tp=tp, dtype=wanted)
    expected = {name: tensor.to(getattr(torch, wanted)) for name, tensor in source_tensors(source).items()}
    assert_same_tensors(reassemble(out), expected)
    assert json.loads((out.path / "config.json").read_text())["dtype"] == wanted


def test_weights_in_another_precision_than_the_config_says_are_refused_unless_one_is_asked_for(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama(torch.float32)
    edit_config(source, dtype="bfloat16")
    with pytest.raises(SourceError) as caught:
        checkpoint(source, "refused")
    assert caught.value.code == "DTYPE_MISMATCH"
    assert "stored as F32; config.json says bfloat16" in caught.value.message
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in source_tensors(source).items()}
    assert_same_tensors(reassemble(checkpoint(source, "asked", dtype="bfloat16")), expected)


def test_numbers_that_float16_can_not_hold_are_refused_by_name(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    edit_weights(source, lambda tensors: tensors["model.layers.3.mlp.up_proj.weight"].fill_(70000))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, dtype="float16")
    assert caught.value.code == "DTYPE_OVERFLOW"
    assert "model.layers.3.mlp.up_proj.weight" in caught.value.message
    assert "70144 is beyond the range of F16" in str(caught.value.why)


def test_quantised_weights_are_not_converted_even_if_a_precision_is_asked_for(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(source, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, dtype="bfloat16")
    assert caught.value.code == "DTYPE_MISMATCH"


# sources that don't fit


def edit_config(source: Path, **changes: Any) -> None:
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(source: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(source / "model.safetensors")
    edit(tensors)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})


def a_missing_norm(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.weight"]


def an_added_norm(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8, dtype=torch.bfloat16)


def a_longer_vocabulary(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.embed_tokens.weight"] = torch.zeros(98, 48, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (a_missing_norm, "TENSOR_MISSING", "model.norm.weight"),
        (an_added_norm, "TENSOR_UNEXPECTED", "q_norm.weight"),
        (a_longer_vocabulary, "TENSOR_SHAPE", "[98, 48]; config.json makes it [97, 48]"),
    ],
)
def test_weights_that_are_not_the_models_are_refused_before_anything_is_written(
    tiny_llama: MakeLlama,
    checkpoint: Callable[..., Workspace],
    tmp_path: Path,
    edit: Callable[[dict[str, torch.Tensor]], object],
    code: str,
    words: str,
) -> None:
    source = tiny_llama()
    edit_weights(source, edit)
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == code
    assert words in caught.value.message
    assert not list((tmp_path / "checkpoint").iterdir())


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"num_hidden_layers": 8}, "TENSOR_MISSING"), ({"num_hidden_layers": 6}, "TENSOR_UNEXPECTED")],
)
def test_a_config_with_another_number_of_layers_is_refused(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], changes: dict[str, Any], code: str
) -> None:
    source = tiny_llama()
    edit_config(source, **changes)
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == code


def test_frequencies_that_old_files_store_are_left_out(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    expected = source_tensors(source)
    derived = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4, dtype=torch.float32)}
    edit_weights(source, lambda tensors: tensors.update(derived))
    assert_same_tensors(reassemble(checkpoint(source)), expected)


def test_a_tied_model_may_store_its_head_if_it_is_the_embedding(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama(tie_word_embeddings=True)
    plain = digests(checkpoint(source, "plain", tp=3))
    edit_weights(
        source, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    )
    assert digests(checkpoint(source, "stored", tp=3)) == plain
    edit_weights(source, lambda tensors: tensors["lm_head.weight"][96, 47].add_(1))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, "differs", tp=3)
    assert caught.value.code == "TIED_HEAD_DIFFERS"


@pytest.mark.parametrize(("parallelism", "code"), [({"tp": 2}, "TP_HEADS"), ({"pp": 8}, "PP_LAYERS")])
def test_a_split_that_is_not_possible_is_refused(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], parallelism: dict[str, int], code: str
) -> None:
    with pytest.raises(PlanRefused) as caught:
        checkpoint(tiny_llama(), **parallelism)
    assert caught.value.code == code


def test_a_source_that_shrinks_while_it_is_read_is_noticed(
    tiny_llama: MakeLlama, tmp_path: Path, spec_of: SpecOf
) -> None:
    source = tiny_llama()

    def truncate(_: int) -> None:
        os.truncate(source / "model.safetensors", 10_000)

    with pytest.raises(SourceError) as caught:
        convert(source, spec_of(source), Workspace(tmp_path), advance=truncate)
    assert caught.value.code == "SHARD_TRUNCATED"


# the host


def test_a_full_disk_is_named(tiny_llama: MakeLlama, tmp_path: Path, spec_of: SpecOf) -> None:
    source = tiny_llama(vocab_size=50_000)  # larger than what can be buffered
    out = Workspace(tmp_path / "out")
    out.path.mkdir()
    (out.path / "rank1.safetensors").symlink_to("/dev/full")
    with pytest.raises(HostError) as caught:
        convert(source, spec_of(source), out, tp=3)
    assert "the disk is full" in caught.value.message
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.errno == errno.ENOSPC  # type: ignore[attr-defined]


A_LARGE_MODEL = textwrap.dedent(
    """
    import json, math, sys, threading
    from pathlib import Path
    from builder.checkpoint.convert import convert
    from builder.model.layout import source_shapes
    from builder.model.safetensors import encode_header
    from builder.model.config import load_config
    from builder.model.spec import ModelSpec
    from builder.store import Workspace

    source, out, tp, dtype = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    spec = ModelSpec.from_config(load_config(source), source)
    if not (source / "model.safetensors").exists():
        shapes = source_shapes(spec)
        with open(source / "model.safetensors", "wb") as file:
            file.write(encode_header({name: (spec.stored_dtype, shape) for name, shape in shapes.items()}, {}))
            file.truncate(file.tell() + 2 * sum(map(math.prod, shapes.values())))

    def anonymous_kib():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    """
)

MEASURE = A_LARGE_MODEL + textwrap.dedent(
    """
    before = peak = anonymous_kib()

    def watch(_):
        global peak
        peak = max(peak, anonymous_kib())

    convert(source, spec, Workspace(out), tp=tp, dtype=None if dtype == "kept" else dtype, advance=watch)
    print((peak - before) // 1024)
    """
)

BE_INTERRUPTED = A_LARGE_MODEL + textwrap.dedent(
    """
    seen = []

    def tell(count):
        if not seen:
            print("started", flush=True)
        seen.append(count)

    try:
        convert(source, spec, Workspace(out), tp=tp, dtype=dtype, advance=tell)
    except KeyboardInterrupt:
        print("interrupted" if threading.active_count() == 1 else "threads are left", flush=True)
    """
)


@pytest.fixture
def large_model(tmp_path: Path) -> Iterator[Path]:
    """A folder with the config of a model of 407 MB; its weights are made (as a sparse file) by whoever needs them."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": 2048,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "intermediate_size": 8192,
        "vocab_size": 20001,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "out").mkdir()
    yield folder
    shutil.rmtree(folder)  # pytest would keep gigabytes


@pytest.mark.parametrize(("tp", "dtype"), [(1, "kept"), (8, "kept"), (2, "float32")])
def test_memory_does_not_grow_with_the_model(large_model: Path, tp: int, dtype: str) -> None:
    command = [sys.executable, "-c", MEASURE, str(large_model), str(large_model / "out"), str(tp), dtype]
    grown_mib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (large_model / "model.safetensors").stat().st_size > 400_000_000
    assert grown_mib < 100


def test_an_interrupt_comes_through(large_model: Path) -> None:
    command = [sys.executable, "-c", BE_INTERRUPTED, str(large_model), str(large_model / "out"), "4", "float32"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n"
    assert process.returncode == 0
    assert not (large_model / "out" / "config.json").exists()

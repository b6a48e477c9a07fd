"""Damaged and hostile weight files, full disks and killed processes: a clear error, and nothing that looks finished."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from builder.checkpoint.convert import convert
from builder.errors import BuilderError, HostError, SourceError
from builder.model.layout import Split
from builder.model.safetensors import MAX_HEADER_BYTES
from builder.model.spec import ModelSpec
from builder.model.weight_files import INDEX_FILE, MAX_INDEX_BYTES
from builder.store import Artifact, LocalStore, Workspace

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float16",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 8,
    "vocab_size": 5,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
SPEC = ModelSpec.from_config(CONFIG, "config.json")
PROJECTIONS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
SHAPES = {
    "lm_head.weight": (5, 8),
    "model.embed_tokens.weight": (5, 8),
    "model.norm.weight": (8,),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    **{f"model.layers.0.{name}.weight": (8, 8) for name in PROJECTIONS},
}

Header = dict[str, Any]


def weights(names: Iterator[str] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(5)
    return {name: random.standard_normal(SHAPES[name]).astype(np.float16) for name in names or SHAPES}


GOOD = save(weights())
HEADER_BYTES = int.from_bytes(GOOD[:8], "little")
DATA = GOOD[8 + HEADER_BYTES :]


def header() -> Header:
    """That of the good file, in the order of its bytes."""
    content: Header = json.loads(GOOD[8 : 8 + HEADER_BYTES])
    return dict(sorted(content.items(), key=lambda item: item[1]["data_offsets"]))


def encoded(content: Any, data: bytes = DATA) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good model."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "model.safetensors").write_bytes(GOOD)
    return path


def build(store: LocalStore, folder: Path, split: Split = Split(4)) -> Artifact:  # noqa: B008 - frozen
    """What the stage does."""
    with store.building("checkpoint", "k") as workspace:
        convert(folder, SPEC, workspace, split)
        return store.seal("checkpoint", "k", workspace, {})


def files(root: Path) -> list[str]:
    """All files below `root`, but the locks of a store."""
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if not path.is_dir() and path.parent.name != "locks"
    )


def refusal(folder: Path, root: Path) -> SourceError:
    """The error that conversion ends with; it leaves nothing behind, and took no more memory than the files explain."""
    store, before = LocalStore(root), files(folder.parent)
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    index = (
        folder / INDEX_FILE
    ).exists()  # its reader asks for all that it may have, and doesn't touch what isn't there
    tracemalloc.start()
    try:
        with pytest.raises(SourceError) as caught:
            build(store, folder)
        assert tracemalloc.get_traced_memory()[1] < (1 << 20) + 20 * size + index * MAX_INDEX_BYTES
    finally:
        tracemalloc.stop()
    assert files(root) == []
    assert files(folder.parent) == before
    assert re.fullmatch("[A-Z][A-Z_]+", caught.value.code)
    shown = caught.value.render()
    assert shown.startswith(f"error[{caught.value.code}]: ")
    assert all(line.startswith(("error[", "  ")) and line.isprintable() for line in shown.splitlines())
    return caught.value


def test_the_good_file_is_converted(folder: Path, tmp_path: Path) -> None:
    artifact = build(LocalStore(tmp_path / "store"), folder)
    assert [entry.path for entry in artifact.entries] == ["config.json", *(f"rank{n}.safetensors" for n in range(4))]


# headers


def changed(name: str, **fields: Any) -> bytes:
    content = header()
    content[name] |= fields
    return encoded(content)


def moved(name: str, by: int, data: bytes = DATA) -> bytes:
    """The tensor and all behind it begin `by` bytes later, as they would say."""
    content = header()
    names = list(content)
    for other in names[names.index(name) :]:
        content[other]["data_offsets"] = [offset + by for offset in content[other]["data_offsets"]]
    return encoded(content, data)


def added(name: str, dtype: str = "F16", shape: tuple[int, ...] = (1,), nbytes: int = 2) -> bytes:
    content = header()
    content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(DATA), len(DATA) + nbytes]}
    return encoded(content, DATA + bytes(nbytes))


def twice(name: str) -> bytes:
    """The name stands in the header once more, as the last one: readers that take the last see other weights."""
    content = header()
    text = json.dumps(content)[:-1] + f", {json.dumps(name)}: {json.dumps(content['lm_head.weight'])}}}"
    return encoded(text.encode())


UP = "model.layers.0.mlp.up_proj.weight"
SECOND = list(header())[1]
MALFORMED: dict[str, bytes] = {
    "an empty file": b"",
    "five bytes": GOOD[:5],
    "a header of 2^63 bytes": (1 << 63).to_bytes(8, "little") + GOOD[8:],
    "a header of 2^64 - 1 bytes": b"\xff" * 8 + GOOD[8:],
    "a header of more bytes than are allowed": (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + GOOD[8:],
    "a header of one byte more than the file": (len(GOOD) - 7).to_bytes(8, "little") + GOOD[8:],
    "a header of no bytes": bytes(8) + GOOD[8:],
    "a header of half its bytes": (HEADER_BYTES // 2).to_bytes(8, "little") + GOOD[8:],
    "a list": encoded([header()]),
    "text": encoded('"model.norm.weight"'),
    "not UTF-8": encoded(b'{"\xff": 1}'),
    "not JSON": encoded(b"{'a': 1}"),
    "NaN": encoded(b'{"a": NaN}'),
    "deeper than is allowed": encoded(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    "so deep that parsers overflow": encoded(b'{"a":' + b"[" * 100_000),
    "a number of 5,000 digits": encoded(b'{"a":' + b"9" * 5000 + b"}"),
    "a tensor that is a list": encoded({**header(), UP: [1, 2]}),
    "a tensor with a path": changed(UP, path="/etc/passwd"),
    "an unknown dtype": changed(UP, dtype="Q9"),
    "a dtype that is a number": changed(UP, dtype=16),
    "a dtype of another size": changed(UP, dtype="F32"),
    "a dtype of half the size": changed(UP, dtype="U8"),
    "a shape of more than the bytes": changed(UP, shape=[8, 9]),
    "a shape that overflows": changed(UP, shape=[1 << 63, 1 << 63]),
    "a negative shape": changed(UP, shape=[-8, -8]),
    "a shape of fractions": changed(UP, shape=[8.0, 8.0]),
    "a shape of 2^64": changed(UP, shape=[1 << 64, 0]),
    "offsets that overlap": changed(SECOND, data_offsets=[offset - 2 for offset in header()[SECOND]["data_offsets"]]),
    "offsets with a gap": moved(SECOND, 16, DATA + bytes(16)),
    "offsets with a gap before the first": moved(next(iter(header())), 8, bytes(8) + DATA),
    "offsets beyond the file": moved(SECOND, len(DATA)),
    "offsets of 2^63": changed(UP, data_offsets=[1 << 63, (1 << 63) + 128]),
    "offsets below zero": changed(UP, data_offsets=[-128, 0]),
    "offsets that go back": changed(UP, data_offsets=header()[UP]["data_offsets"][::-1]),
    "offsets of fractions": changed(UP, data_offsets=[0.0, 128.0]),
    "three offsets": changed(UP, data_offsets=[0, 64, 128]),
    "all tensors on the same bytes": encoded(
        {name: {**entry, "data_offsets": [0, 128]} for name, entry in header().items()}
    ),
    "a tensor twice": twice(UP),
    "bytes of nobody": GOOD + b"x",
    "metadata that isn't text": encoded({"__metadata__": {"a": 1}, **header()}),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("shard", [False, True], ids=["single", "shard"])
def test_f08_a_malformed_file_is_refused(folder: Path, tmp_path: Path, name: str, shard: bool) -> None:
    file = folder / "model.safetensors"
    if shard:
        file.unlink()
        file = folder / "model-00001-of-00001.safetensors"
        write_index(folder, dict.fromkeys(SHAPES, file.name))
    file.write_bytes(MALFORMED[name])
    error = refusal(folder, tmp_path / "store")
    assert (error.code, error.where) == ("SAFETENSORS_HEADER", str(file))


STRANGE_NAMES = (
    "../../x",
    "/etc/passwd",
    "model.layers.0.mlp.up_proj.weight/../../../x",
    "model.layers.1.mlp.up_proj.weight",
    "MODEL.norm.weight",
    "model.norm.weight ",
    "transformer.ln_f.weight",
    "",
    "a\0b",
    "a\nerror[FAKE]: b",
    "\x1b[2Ja",
    "\ud800",
    "a" * 100_000,
)


@pytest.mark.parametrize("name", STRANGE_NAMES, ids=lambda name: repr(name)[:40])
def test_a_tensor_that_is_not_the_models_is_refused_whatever_its_name_is(
    folder: Path, tmp_path: Path, name: str
) -> None:
    (folder / "model.safetensors").write_bytes(added(name))
    assert refusal(folder, tmp_path / "store").code == "TENSOR_UNEXPECTED"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (added("a", shape=(0,), nbytes=0), "TENSOR_UNEXPECTED"),
        (encoded({}, b""), "TENSOR_MISSING"),
        (encoded({"__metadata__": {}}, b""), "TENSOR_MISSING"),
        (changed(UP, shape=[4, 16]), "TENSOR_SHAPE"),
        (changed(UP, shape=[64]), "TENSOR_SHAPE"),
        (changed(UP, shape=[8, 8, 1]), "TENSOR_SHAPE"),
        (changed(UP, shape=[1] * 60 + [8, 8]), "TENSOR_SHAPE"),
        (changed(UP, dtype="BF16"), "DTYPE_MISMATCH"),
        (changed(UP, dtype="I16"), "DTYPE_MISMATCH"),
        (changed(UP, dtype="F8_E4M3", shape=[8, 16]), "TENSOR_SHAPE"),
        (changed("model.norm.weight", dtype="F64", shape=[2]), "TENSOR_SHAPE"),
    ],
)
def test_a_file_that_is_well_formed_and_not_the_model_is_refused(
    folder: Path, tmp_path: Path, content: bytes, code: str
) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert refusal(folder, tmp_path / "store").code == code


def test_f08_empty_tensors_are_legal(folder: Path, tmp_path: Path) -> None:
    """Shape [0] and equal offsets; of what old files store beside the weights, since no weight is empty."""
    plain = build(LocalStore(tmp_path / "plain"), folder)
    (folder / "model.safetensors").write_bytes(
        added("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", shape=(0,), nbytes=0)
    )
    assert build(LocalStore(tmp_path / "store"), folder).digest == plain.digest


def test_a_header_of_many_tensors_is_refused_within_its_own_size(folder: Path, tmp_path: Path) -> None:
    content = header() | {
        f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [len(DATA)] * 2} for n in range(10_000)
    }
    (folder / "model.safetensors").write_bytes(encoded(content))
    error = refusal(folder, tmp_path / "store")
    assert error.code == "TENSOR_UNEXPECTED"
    assert "10000 tensors" in error.message
    assert len(error.render()) < 2000


# truncation


def cut(folder: Path, out: Path, file: Path, step: int = 1) -> None:
    """Convert with the file cut off at every size, and whole again."""
    whole = file.read_bytes()
    for size in range(0, len(whole), step):
        file.write_bytes(whole[:size])
        with pytest.raises(SourceError) as caught:
            convert(folder, SPEC, Workspace(out))
        assert (caught.value.code, caught.value.where) == ("SAFETENSORS_HEADER", str(file)), size
        assert not list(out.iterdir())
    file.write_bytes(whole)


def test_f08_a_file_that_is_cut_anywhere_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    cut(folder, tmp_path / "out", folder / "model.safetensors")


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def shards(folder: Path) -> dict[str, str]:
    """The good model in two files; the weight map of its index."""
    (folder / "model.safetensors").unlink()
    names = list(SHAPES)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[:6], names[6:]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        (folder / file).write_bytes(save(weights(iter(part))))
        weight_map |= dict.fromkeys(part, file)
    write_index(folder, weight_map)
    return weight_map


def test_a_shard_that_is_cut_anywhere_is_refused(folder: Path, tmp_path: Path, shards: dict[str, str]) -> None:
    (tmp_path / "out").mkdir()
    for name in sorted(set(shards.values())):
        cut(folder, tmp_path / "out", folder / name, step=7)
    build(LocalStore(tmp_path / "store"), folder)


# the index


def test_an_index_that_names_an_absent_shard_is_refused(folder: Path, tmp_path: Path, shards: dict[str, str]) -> None:
    write_index(folder, {**shards, "model.layers.1.mlp.up_proj.weight": "model-00003-of-00003.safetensors"})
    error = refusal(folder, tmp_path / "store")
    assert error.code == "SHARD_MISSING"
    assert "model-00003-of-00003.safetensors" in error.message


def test_a_shard_that_went_away_is_named(folder: Path, tmp_path: Path, shards: dict[str, str]) -> None:
    (folder / shards[UP]).unlink()
    error = refusal(folder, tmp_path / "store")
    assert error.code == "SHARD_MISSING"
    assert shards[UP] in error.message


def test_an_index_that_names_an_extra_shard_is_refused(folder: Path, tmp_path: Path, shards: dict[str, str]) -> None:
    extra = "model-00003-of-00003.safetensors"
    (folder / extra).write_bytes(save({"model.layers.1.mlp.up_proj.weight": np.zeros((8, 8), np.float16)}))
    write_index(folder, {**shards, "model.layers.1.mlp.up_proj.weight": extra})
    assert refusal(folder, tmp_path / "store").code == "TENSOR_UNEXPECTED"


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/tmp/outside.safetensors", "a/../../outside.safetensors", "..\\x.safetensors", "x.bin"],
)
def test_an_index_can_not_lead_out_of_the_folder(
    folder: Path, tmp_path: Path, shards: dict[str, str], name: str
) -> None:
    (tmp_path / "outside.safetensors").write_bytes(GOOD)
    write_index(folder, {**shards, UP: name})
    assert refusal(folder, tmp_path / "store").code == "PATH_ESCAPE"


def test_a_tensor_that_is_in_another_shard_is_refused(folder: Path, tmp_path: Path, shards: dict[str, str]) -> None:
    write_index(folder, {**shards, UP: shards["lm_head.weight"]})
    assert refusal(folder, tmp_path / "store").code == "INDEX_MISMATCH"


def test_a_tensor_that_the_index_forgets_is_missing(folder: Path, tmp_path: Path, shards: dict[str, str]) -> None:
    write_index(folder, {name: file for name, file in shards.items() if name != UP})
    error = refusal(folder, tmp_path / "store")
    assert error.code == "TENSOR_MISSING"
    assert UP in error.message


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"weight_map": 1}', b"\xff\xfe", b'{"weight_map": {"a": 1}}'])
def test_a_malformed_index_is_refused(folder: Path, tmp_path: Path, shards: dict[str, str], content: bytes) -> None:
    (folder / INDEX_FILE).write_bytes(content)
    assert refusal(folder, tmp_path / "store").code == "INDEX_JSON"


# other files


class Trap:
    """Its pickle writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickles_are_not_opened(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth"):
        (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "trapped")))
    assert refusal(folder, tmp_path / "store").code == "PICKLE_ONLY"
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["a-pipe", "a-folder"])
def test_what_is_not_a_file_is_refused(folder: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    (folder / "model.safetensors").unlink()
    make(folder / "model.safetensors")
    assert refusal(folder, tmp_path / "store").where == str(folder / "model.safetensors")


# the host


def onto_a_full_disk(store: LocalStore, folder: Path, rank: int) -> None:
    with store.building("checkpoint", "k") as workspace:
        (workspace.path / f"rank{rank}.safetensors").symlink_to("/dev/full")
        convert(folder, SPEC, workspace, Split(4))


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_disk_that_is_full_at_any_rank_is_named(folder: Path, tmp_path: Path, rank: int) -> None:
    store = LocalStore(tmp_path / "store")
    with pytest.raises(HostError, match="the disk is full") as caught:
        onto_a_full_disk(store, folder, rank)
    assert caught.value.code == "DISK_FULL"
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert files(tmp_path / "store") == []
    assert store.get("checkpoint", "k") is None
    build(store, folder)  # the next run starts anew


def test_a_disk_that_is_full_at_the_config_is_named(folder: Path, tmp_path: Path) -> None:
    out = Workspace(tmp_path)
    (tmp_path / "config.json").symlink_to("/dev/full")
    with pytest.raises(HostError) as caught:
        convert(folder, SPEC, out)
    assert caught.value.code == "DISK_FULL"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_disk_that_runs_full_while_ranks_are_written_ends_the_build(tmp_path: Path, small_disk: Path) -> None:
    """Four ranks with an embedding of 320 kB each: three have room."""
    source = tmp_path / "model"
    source.mkdir()
    config = CONFIG | {"vocab_size": 20_000}
    shapes = {**SHAPES, "lm_head.weight": (20_000, 8), "model.embed_tokens.weight": (20_000, 8)}
    (source / "model.safetensors").write_bytes(save({name: np.ones(size, np.float16) for name, size in shapes.items()}))
    store = LocalStore(small_disk)
    with pytest.raises(HostError) as caught, store.building("checkpoint", "k") as workspace:
        convert(source, ModelSpec.from_config(config, "config.json"), workspace, Split(4))
    assert caught.value.code == "DISK_FULL"
    assert files(small_disk) == []
    assert store.get("checkpoint", "k") is None


CONVERT_SLOWLY = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from tests.unit.checkpoint.test_convert_hostile import SPEC
    from builder.checkpoint.convert import convert
    from builder.model.layout import Split
    from builder.store import LocalStore

    def slowly(_):
        print("writing", flush=True)
        time.sleep(30)

    with LocalStore(Path(sys.argv[2])).building("checkpoint", "k") as workspace:
        convert(Path(sys.argv[1]), SPEC, workspace, Split(4), advance=slowly)
    """
)


def test_a_killed_conversion_leaves_nothing_that_counts(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    command = [sys.executable, "-c", CONVERT_SLOWLY, str(folder), str(root)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    left = files(root)
    assert left
    assert all(name.startswith("work/checkpoint-k/rank") for name in left)
    store = LocalStore(root)
    assert store.get("checkpoint", "k") is None
    artifact = build(store, folder)
    assert artifact == store.get("checkpoint", "k")
    assert len(artifact.entries) == 5
    assert not any(name.startswith("work/") for name in files(root))


def test_errors_reach_the_caller_when_they_come_from_a_thread(folder: Path, tmp_path: Path) -> None:
    """The reader's errors are SourceErrors, the writers' HostErrors; neither is hidden by the other."""
    for error in (SourceError("no", code="UNREADABLE"), HostError("no", code="DISK_FULL")):

        def fail(_: int, error: BuilderError = error) -> None:
            raise error

        (tmp_path / error.code).mkdir()
        with pytest.raises(type(error)) as caught:
            convert(folder, SPEC, Workspace(tmp_path / error.code), Split(4), advance=fail)
        assert caught.value is error

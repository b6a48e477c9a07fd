"""Memory is a few blocks, whatever the model's size; and a conversion can be interrupted at any time."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "llama in fp8": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 3,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    },
    "mixtral": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": 4096,
        "num_hidden_layers": 1,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "phi": {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]},
    "gemma": {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], "hidden_act": "gelu_pytorch_tanh"},
}
SIZES: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 8192,
    "vocab_size": 20001,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "pad_token_id": 0,
}

A_LARGE_MODEL = textwrap.dedent(
    """
    import json, math, struct, sys, threading
    from pathlib import Path
    from builder.checkpoint.convert import convert
    from builder.model.config import load_config
    from builder.model.layout import Split, source_tensors
    from builder.model.safetensors import DTYPE_BITS, encode_header, read_header
    from builder.model.spec import ModelSpec
    from builder.store import Workspace

    source, out, split, dtype = Path(sys.argv[1]), Path(sys.argv[2]), Split(**json.loads(sys.argv[3])), sys.argv[4]
    spec = ModelSpec.from_config(load_config(source), source)
    file = source / "model.safetensors"
    dtypes = {None: spec.stored_dtype, "float": "F32"}
    tensors = {name: (dtypes.get(part.dtype, part.dtype), part.shape) for name, part in source_tensors(spec)[0].items()}
    with open(file, "wb") as writer:  # zeros that take no room, and scales
        writer.write(encode_header(tensors, {}))
        size = writer.tell() + sum(math.prod(shape) * DTYPE_BITS[kind] // 8 for kind, shape in tensors.values())
        writer.truncate(size)
    with open(file, "r+b") as writer:
        for number, info in enumerate(read_header(file).values()):
            if info.name.endswith("_scale"):
                writer.seek(info.begin)
                writer.write(struct.pack("<f", 1 + number / 1000))

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

    convert(source, spec, Workspace(out), split, dtype=None if dtype == "kept" else dtype, advance=watch)
    print(size, (peak - before) // 1024)
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
        convert(source, spec, Workspace(out), split, dtype=dtype, advance=tell)
    except KeyboardInterrupt:
        print("interrupted" if threading.active_count() == 1 else "threads are left", flush=True)
    """
)

Command = Callable[..., list[str]]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """How to run a program with a model of some 300 MB, its split and its precision; removes what it wrote."""
    folder = tmp_path / "large"
    (folder / "out").mkdir(parents=True)

    def make(program: str, name: str, split: dict[str, Any], dtype: str) -> list[str]:
        (folder / "config.json").write_text(json.dumps({**SIZES, **MODELS[name]}))
        return [sys.executable, "-c", program, str(folder), str(folder / "out"), json.dumps(split), dtype]

    yield make
    shutil.rmtree(folder)  # pytest would keep gigabytes


@pytest.mark.parametrize(
    ("name", "split", "dtype"),
    [
        ("llama", {}, "kept"),
        ("llama", {"tp": 8}, "kept"),
        ("llama", {"tp": 2, "pp": 2}, "float32"),
        ("llama in fp8", {"tp": 4}, "kept"),
        ("mixtral", {"tp": 4, "moe_ep": 2}, "kept"),
        ("phi", {"tp": 4}, "kept"),
        ("gemma", {"tp": 4}, "float16"),
    ],
    ids=lambda value: "-".join(f"{key}{size}" for key, size in value.items()) if isinstance(value, dict) else value,
)
def test_memory_does_not_grow_with_the_model(command: Command, name: str, split: dict[str, Any], dtype: str) -> None:
    run = subprocess.run(command(MEASURE, name, split, dtype), check=True, capture_output=True, text=True)
    size, grown_mib = map(int, run.stdout.split())
    assert size > 290_000_000
    assert grown_mib < 100


def test_an_interrupt_comes_through(command: Command, tmp_path: Path) -> None:
    arguments = command(BE_INTERRUPTED, "llama", {"tp": 4}, "float32")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n"
    assert process.returncode == 0
    assert not (tmp_path / "large" / "out" / "config.json").exists()

"""How fast a conversion is, beside copying and hashing the same bytes, and beside transformers with ModelOpt.

    python bench/checkpoint.py [--sizes 1,4,8] [--rounds 3]

Models of random bf16 weights are made on the spot, a shard for every GB, and removed again. Times are medians of
interleaved rounds of one run, everything read from the page cache where it fits. Each line is a ratio with the bound
that it must keep; the exit code is 1 if one isn't kept.

    copy and hash   `cp` of the source, then one SHA-256 pass over the copy, one after the other
    tp 4, tp 8      seconds per byte written, beside one rank
    memory          the largest RssAnon of a process that converts; the largest model inside a cgroup of 1 GB
    ModelOpt        loading with transformers and exporting with export_tensorrt_llm_checkpoint, on the smallest model:
                    each as a command, from its start to its end; and without the seconds that loading libraries takes
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from builder.model.config import load_config
from builder.model.layout import source_tensors
from builder.model.safetensors import encode_header
from builder.model.spec import ModelSpec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
LAYERS_PER_GB = 8
GB = 10**9
MIB = 1 << 20

CONVERT = """
import sys, time
from pathlib import Path
from builder.checkpoint.convert import convert
from builder.model.config import load_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.store import Workspace
source, out, tp = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
spec = ModelSpec.from_config(load_config(source), source)
started = time.perf_counter()
convert(source, spec, Workspace(out), Split(tp))
print(time.perf_counter() - started)
"""

PEER = """
import sys, time, torch
from modelopt.torch.export import export_tensorrt_llm_checkpoint
from transformers import AutoModelForCausalLM
started = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
export_tensorrt_llm_checkpoint(model, "llama", torch.bfloat16, sys.argv[2], inference_tensor_parallel=1)
print(time.perf_counter() - started)
"""


def make_model(folder: Path, gigabytes: int) -> int:
    """A Llama of about so many GB; returns the bytes of its weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": LAYERS_PER_GB * gigabytes}))
    tensors, _ = source_tensors(ModelSpec.from_config(load_config(folder), folder))
    names = sorted(tensors)
    size = len(names) // gigabytes + 1
    weight_map, total, random = {}, 0, np.random.default_rng(0)
    for number, first in enumerate(range(0, len(names), size)):
        shard = names[first : first + size]
        file = f"model-{number + 1:05d}.safetensors"
        with open(folder / file, "wb") as out:
            out.write(encode_header({name: ("BF16", tensors[name].shape) for name in shard}, {"format": "pt"}))
            for name in shard:
                values = random.integers(0x3C00, 0x3D00, int(np.prod(tensors[name].shape)), dtype=np.uint16)
                out.write(values.data)
                total += values.nbytes
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


@contextmanager
def empty(folder: Path) -> Iterator[Path]:
    """A folder for one run; what runs before have written is on the disk by then."""
    folder.mkdir()
    os.sync()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Run:
    """A program's run: the seconds that it tells, all that it took, and its largest anonymous memory in bytes."""

    told: float
    whole: float
    memory: int


def child(program: str, *arguments: object, prefix: tuple[str, ...] = ()) -> Run:
    """Run a program in another process."""
    command = [*prefix, sys.executable, "-c", program, *map(str, arguments)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    largest = 0
    while process.poll() is None:
        largest = max(largest, anonymous_bytes(process.pid))
        time.sleep(0.02)
    whole = time.perf_counter() - started
    out, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}: {errors[-2000:]}")
    return Run(float(out.split()[-1]), whole, largest)


def anonymous_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def copy_and_hash(source: Path, out: Path) -> float:
    started = time.perf_counter()
    subprocess.run(["cp", "-r", source, out / "copy"], check=True)
    buffer = memoryview(bytearray(4 * MIB))
    for file in sorted((out / "copy").iterdir()):
        digest = hashlib.sha256()
        with open(file, "rb", buffering=0) as reader:
            while count := reader.readinto(buffer):
                digest.update(buffer[:count])
    return time.perf_counter() - started


def in_cgroup(run: Callable[[tuple[str, ...]], Any]) -> str | None:
    """Run something inside a memory cgroup of 1 GB (version 2 or 1); why not, where that can't be."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    root = Path("/sys/fs/cgroup") if unified else Path("/sys/fs/cgroup/memory")
    group = root / "engine-builder-bench"
    limit = "memory.max" if unified else "memory.limit_in_bytes"
    try:
        group.mkdir(exist_ok=True)
        (group / limit).write_text(str(10**9))
    except OSError as error:
        return f"no memory cgroup can be made here: {error.strerror}"
    try:
        run(("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"))
    finally:
        group.rmdir()
    return None


class Results:
    def __init__(self) -> None:
        self.missed = False

    def line(self, what: str, value: float, bound: float, unit: str = "", at_least: bool = False) -> None:
        kept = value >= bound if at_least else value <= bound
        self.missed |= not kept
        words = f"{'at least' if at_least else 'at most'} {bound:g}{unit}"
        print(f"{what:<58}{value:>9.2f}{unit:<4}{words:<18}{'kept' if kept else 'MISSED'}", flush=True)


def measure(folder: Path, gigabytes: int, rounds: int, results: Results) -> float:
    """One size; returns the seconds per byte of one rank."""
    source = folder / "source"
    written = {1: make_model(source, gigabytes)}
    copies: list[float] = []
    seconds: dict[int, list[float]] = {1: [], 4: [], 8: []}
    memory = 0
    for _ in range(rounds):
        with empty(folder / "out") as out:
            copies.append(copy_and_hash(source, out))
        for tp in seconds:
            with empty(folder / "out") as out:
                run = child(CONVERT, source, out, tp)
                written[tp] = sum(file.stat().st_size for file in out.iterdir())
            seconds[tp].append(run.told)
            memory = max(memory, run.memory)
    median = {tp: statistics.median(times) for tp, times in seconds.items()}
    per_byte = {tp: median[tp] / written[tp] for tp in median}
    name = f"{gigabytes} GB"
    results.line(f"{name}: one rank, beside copy and hash", median[1] / statistics.median(copies), 1.0)
    for tp in (4, 8):
        results.line(f"{name}: tp {tp} per byte written, beside one rank", per_byte[tp] / per_byte[1], 1.3)
    results.line(f"{name}: largest anonymous memory", memory / MIB, 500, " MiB")
    print(f"{'':<4}{written[1] / GB / median[1]:.2f} GB/s, median of {rounds}", flush=True)
    return per_byte[1]


def beside_modelopt(folder: Path, gigabytes: int, rounds: int, results: Results) -> None:
    source = folder / "source"
    ours, theirs = [], []
    for _ in range(rounds):
        with empty(folder / "out") as out:
            ours.append(child(CONVERT, source, out, 1))
        with empty(folder / "out") as out:
            theirs.append(child(PEER, source, out))

    def ratio(seconds: Callable[[Run], float]) -> float:
        return statistics.median(map(seconds, theirs)) / statistics.median(map(seconds, ours))

    results.line(
        f"{gigabytes} GB: times as fast as transformers and ModelOpt", ratio(lambda run: run.whole), 5, at_least=True
    )
    print(f"{'':<4}without loading libraries: {ratio(lambda run: run.told):.2f}; they hash nothing", flush=True)
    leaner = max(run.memory for run in theirs) / max(run.memory for run in ours)
    results.line(f"{gigabytes} GB: times as lean", leaner, 10, at_least=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,4,8", help="GB of the models")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sizes = sorted(map(int, arguments.sizes.split(",")))
    results = Results()
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < 3 * sizes[-1] * GB:
            raise SystemExit(f"{folder} needs {3 * sizes[-1]} GB of free disk")
        per_byte: dict[int, float] = {}
        for gigabytes in sizes:
            per_byte[gigabytes] = measure(folder, gigabytes, arguments.rounds, results)
            if gigabytes == sizes[0]:
                beside_modelopt(folder, gigabytes, arguments.rounds, results)
            if gigabytes == sizes[-1]:
                with empty(folder / "out") as out:
                    why = in_cgroup(lambda prefix: child(CONVERT, folder / "source", out, 1, prefix=prefix))
                print(f"{gigabytes} GB inside a cgroup of 1 GB: {why or 'converted'}", flush=True)
            shutil.rmtree(folder / "source")
        if len(sizes) > 1:
            growth = per_byte[sizes[-1]] / per_byte[sizes[0]]
            results.line(f"seconds per byte, {sizes[-1]} GB beside {sizes[0]} GB", growth, 1.5)
    return int(results.missed)


if __name__ == "__main__":
    sys.exit(main())

"""How long a plan takes when there is nothing to do, beside the dry run of snakemake over the same graph.

    python bench/plan.py [--recipes 1000] [--peer-recipes 1000]

1,000 recipes of 8 targets make 8,000 units of 4 stages. Every stage of every unit is in the store (as an empty artifact
under its true key), so both tools find that nothing has to be run. Times are of whole processes, the median of three,
all measured in one run; snakemake runs from an environment that uv makes and keeps. "first" is a plan that nothing is
remembered of: every recipe is read, checked and estimated; the others find the plans of the run before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from builder.image.wheels import runtime_digest
from builder.lock import load_lock
from builder.plan import plan_units, resolve_units
from builder.recipe import load_recipe

TARGETS = (
    "{sku: h100-sxm-80gb}",
    "{sku: h100-sxm-80gb, name: large, limits: {max_batch_size: 128}}",
    "{sku: h100-sxm-80gb, parallelism: {tensor: 2}}",
    "{sku: a100-sxm-80gb}",
    "{sku: a100-sxm-80gb, parallelism: {tensor: 2}}",
    "{sku: l40s-48gb, limits: {max_batch_size: 24}}",
    "{sku: l40s-48gb, name: short, limits: {max_seq_len: 4096, max_input_len: 2048}}",
    "{sku: h100-sxm-80gb, precision: {weights: fp16}}",
)

RECIPE = """\
schema: 1
name: model-{number:04d}
version: 1.0.0
model: {{source: "hf://example/model-{number:04d}", license: llama3.1}}
toolchain: trtllm-1.2.1
precision: {{weights: bf16}}
limits: {{max_batch_size: 64, max_input_len: 4096, max_seq_len: 8192, max_num_tokens: 8192}}
engine: {{multiple_profiles: true}}
serving: {{family: bls, kv_cache_free_gpu_mem_fraction: 0.9}}
targets:
{targets}
publish: {{repository: "registry.example.com/engines/model-{number:04d}"}}
"""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}

SNAKEFILE = """\
UNITS = [line.strip() for line in open("units.txt")]

rule all:
    input: expand("image/{unit}", unit=UNITS)

rule checkpoint:
    input: "weights", "config"
    output: "checkpoint/{unit}"
    shell: "convert {input} {output}"

rule engine:
    input: "checkpoint/{unit}"
    output: "engine/{unit}"
    shell: "build {input} {output}"

rule repository:
    input: "tokenizer", "config"
    output: "repository/{unit}"
    shell: "write {input} {output}"

rule image:
    input: "engine/{unit}", "repository/{unit}"
    output: "image/{unit}"
    shell: "pack {input} {output}"
"""


def make_recipes(folder: Path, count: int) -> None:
    folder.mkdir()
    targets = "\n".join(f"  - {target}" for target in TARGETS)
    for number in range(count):
        (folder / f"model-{number:04d}.yaml").write_text(RECIPE.format(number=number, targets=targets))
        (folder / f"model-{number:04d}.lock.json").write_text(json.dumps(lock(number), indent=2, sort_keys=True))


def lock(number: int) -> dict[str, object]:
    """A lock as `engine-builder lock` writes it where the toolchain's registry can't be reached."""
    shards = [f"model-{shard:05d}-of-00004.safetensors" for shard in range(1, 5)]
    kinds = dict.fromkeys((*shards, "model.safetensors.index.json"), "weights")
    kinds |= {"config.json": "config", "generation_config.json": "config", "README.md": "documentation"}
    kinds |= {
        "tokenizer.json": "tokenizer",
        "tokenizer_config.json": "tokenizer",
        "special_tokens_map.json": "tokenizer",
    }
    files = [
        {"path": path, "size": 4_015_130_624, "sha256": f"{number:032x}{index:032x}", "kind": kind}
        for index, (path, kind) in enumerate(sorted(kinds.items()))
    ]
    images = ("tensorrt-llm/release:1.2.1", "tritonserver:26.07-trtllm-python-py3")
    return {
        "schema": 2,
        "requested": {"source": f"hf://example/model-{number:04d}", "revision": None},
        "model": {
            "source": f"hf://example/model-{number:04d}",
            "revision": f"{number:040x}",
            "files": files,
            "config": CONFIG,
            "generation_config": {"eos_token_id": [128001, 128008, 128009]},
            "hf_quant_config": {},
            "tensors": {
                "digest": f"sha256:{number:064x}",
                "count": 291,
                "bytes": 16_060_522_496,
                "dtypes": {"BF16": 16_060_522_496},
                "embedding_rows": 128256,
                "head_stored": True,
            },
            "tokenizer": {"max_token_id": 128255, "added_tokens": {"<|reserved_special_token_247|>": 128255}},
            "chat_template": None,
        },
        "models": {},
        "images": {},
        "calibration": {},
        "chat_templates": {},
        "unresolved": {f"nvcr.io/nvidia/{name}": "can't be reached" for name in images},
    }


def fill_store(recipes: Path, store: Path) -> list[str]:
    """An empty artifact for every stage of every unit; returns the ids of the units."""
    units = []
    for file in sorted(recipes.glob("*.yaml")):
        recipe = load_recipe(file)
        pinned = load_lock(recipe.lock_file)
        assert pinned is not None
        for planned in plan_units(resolve_units(recipe, pinned), runtime_digest):
            assert not planned.refused, planned.findings
            units.append(planned.unit.id)
            for name, stage in planned.stages.items():
                artifact = store / "artifacts" / name / stage.derivation
                if not artifact.exists():
                    artifact.mkdir(parents=True)
                    manifest = {"stage": name, "key": stage.derivation, "digest": stage.derivation, "files": []}
                    (artifact / "manifest.json").write_text(json.dumps(manifest))
                derivation = store / "derivations" / name / stage.derivation
                derivation.parent.mkdir(parents=True, exist_ok=True)
                derivation.write_text(f"{stage.derivation} {stage.derivation}\n")
    return units


def plan(recipes: Path, store: Path) -> Callable[[], list[str]]:
    command = [sys.executable, "-m", "builder", "plan", "--frozen", "--format", "json"]
    return lambda: [*command, "--recipe", str(recipes), "--store", str(store)]


def measure(argv: list[str], folder: Path, runs: int = 3) -> float:
    """Seconds of the whole process, the median of some runs."""
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - started)
        if done.returncode:
            sys.exit(f"{' '.join(argv)} failed:\n{done.stderr[-2000:]}")
    return statistics.median(seconds)


def forget(store: Path) -> None:
    shutil.rmtree(store / "plans")


def check_nothing_to_do(argv: list[str], folder: Path, units: int) -> None:
    """A benchmark of a plan that would build something is worth nothing."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    planned = json.loads(done.stdout)["units"]
    to_do = [unit["id"] for unit in planned if not all(stage["hit"] for stage in unit["stages"].values())]
    if len(planned) != units or to_do:
        sys.exit(f"{len(planned)} units, {len(to_do)} of them not up to date")


def snakemake_graph(folder: Path, units: list[str]) -> list[str]:
    """The same units as files of the same graph, all there and in the right order of age."""
    (folder / "Snakefile").write_text(SNAKEFILE)
    names = [unit.replace("/", "_") for unit in units]
    (folder / "units.txt").write_text("\n".join(names) + "\n")
    for name in ("weights", "config", "tokenizer"):
        (folder / name).touch()
    for stage in ("checkpoint", "engine", "repository", "image"):
        (folder / stage).mkdir()
        for name in names:
            (folder / stage / name).touch()
    uv = str(Path(sys.executable).with_name("uv"))
    return [
        uv,
        "tool",
        "run",
        "--from",
        "snakemake==9.27.1",
        "snakemake",
        "--dry-run",
        "--quiet",
        "all",
        "--cores",
        "1",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=int, default=1000)
    parser.add_argument(
        "--peer-recipes", type=int, default=None, help="recipes in snakemake's graph [default: as many]"
    )
    options = parser.parse_args()
    peer_recipes = options.peer_recipes or options.recipes
    with tempfile.TemporaryDirectory(prefix="engine-builder-bench-") as temporary:
        root = Path(temporary)
        make_recipes(root / "recipes", options.recipes)
        store = root / "store"
        units = fill_store(root / "recipes", store)
        command = plan(root / "recipes", store)()
        check_nothing_to_do(command, root, len(units))
        forget(store)
        first = measure(command, root, runs=1)
        print(f"plan, {options.recipes} recipes, {len(units)} units, first: {first:.2f} s")
        whole = measure(command, root)
        print(f"plan, {options.recipes} recipes, {len(units)} units: {whole:.2f} s")
        for part in (options.recipes // 4, options.recipes // 2):
            make_recipes(root / f"recipes-{part}", part)
            measure(plan(root / f"recipes-{part}", store)(), root, runs=1)
            seconds = measure(plan(root / f"recipes-{part}", store)(), root)
            print(f"plan, {part} recipes, {part * len(TARGETS)} units: {seconds:.2f} s")
        one = plan(root / "recipes" / "model-0000.yaml", store)()
        forget(store)
        print(f"plan, one recipe, first: {measure(one, root, runs=1):.3f} s")
        print(f"plan, one recipe: {measure(one, root, runs=7):.3f} s")
        (root / "snakemake").mkdir()
        peer = snakemake_graph(root / "snakemake", units[: peer_recipes * len(TARGETS)])
        measure([*peer[:5], "snakemake", "--version"], root, runs=1)
        compared = whole
        if peer_recipes != options.recipes:
            make_recipes(root / "recipes-peer", peer_recipes)
            measure(plan(root / "recipes-peer", store)(), root, runs=1)
            compared = measure(plan(root / "recipes-peer", store)(), root)
        seconds = measure(peer, root / "snakemake", runs=1)
        print(f"snakemake 9.27.1 dry run, {peer_recipes * len(TARGETS)} units: {seconds:.2f} s")
        print(f"ratio: snakemake takes {seconds / compared:.1f} times as long")


if __name__ == "__main__":
    main()

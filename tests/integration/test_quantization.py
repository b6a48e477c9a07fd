"""Quantisation by NVIDIA's ModelOpt itself, on a CPU: SmolLM2, and small random models of every family it exports.

What is written for engines is, tensor by tensor, what the library's own export_tensorrt_llm_checkpoint writes, and the
reference model finds the same words the likeliest in it as transformers in the model.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from builder.checkpoint.config import checkpoint_config
from builder.checkpoint.convert import convert
from builder.checkpoint.modelopt.configs import CONFIGS
from builder.checkpoint.modelopt.failure import Failure, failure_of
from builder.checkpoint.modelopt.loading import load_model, load_tokenizer
from builder.checkpoint.modelopt.recipes import recipe_config
from builder.checkpoint.quantize import Quantization, quantize
from builder.errors import HostError, RecipeError, SourceError, ToolchainError
from builder.model.config import load_config
from builder.model.layout import Split, rank_tensors
from builder.model.quantization import SourceQuantization
from builder.model.spec import ModelSpec
from builder.reference.model import ReferenceModel
from builder.store import Workspace
from tests.integration.services import require_root
from tests.integration.smollm2 import SmolLM2
from tests.tiny_model import tiny_tokenizer
from tests.unit.checkpoint.families import edit_config, edit_weights, save_model

TEXTS = [
    "The harbour was quiet that morning, and the boats lay still.",
    "To make a good soup, start with an onion and a little butter.",
    "import numpy as np\n\ndef mean(values):\n    return np.sum(values) / len(values)\n",
    "Mount Everest is the highest mountain above sea level, at 8,849 metres.",
    "She asked whether the train to Geneva had left already. It had.",
    "A prime number has exactly two divisors: 1 and itself.",
]

UNSEEN = (
    "In 1969, two astronauts walked on the Moon while a third stayed in orbit. Water boils at 100 degrees Celsius at "
    "sea level, but at lower temperatures on high mountains. Once upon a time there was a ship that crossed the ocean "
    "with a cargo of tea, silk and stories, and its captain kept a diary in which she wrote down every storm, every "
    "island and every whale that they met on the way, until the paper ran out and she began to write on the sails."
)

SIZES = {
    "vocab_size": 260,  # no multiple of 64
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
BLOCK = 64


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A small model of a family with a byte-level tokenizer."""

    def make(family: str = "llama", **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("source") / "model"
        save_model(folder, family, **{**SIZES, **changes})
        edit_weights(folder, lambda tensors: _tame(tensors, 0 if family.startswith("gemma") else 1))
        (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "{{ messages }}"}))
        return folder

    return make


def _tame(tensors: dict[str, torch.Tensor], norm: float) -> None:
    """Weights like those of a trained model: products of a layer are about as large as what goes in. `norm`: the
    weight of a norm that changes nothing, which Gemma's add 1 to."""
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            tensors[name] = tensor * 0.1
        elif "norm" in name:
            tensors[name] = tensor * 0.1 + norm


@pytest.fixture(scope="session")
def tiny(make_tiny: Callable[..., Path]) -> Path:
    return make_tiny()


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Workspace]:
    """Where a checkpoint goes."""
    path = tmp_path / "checkpoint"
    path.mkdir()
    yield Workspace(path)
    shutil.rmtree(path, ignore_errors=True)  # pytest would keep those of the last sessions


def run(
    source: Path, out: Workspace, precision: str = "fp8", texts: list[str] = TEXTS, **settings: Any
) -> dict[str, Any]:
    """Quantise a model into `out`, with the config.json that a build writes; returns the facts."""
    spec = spec_of(source)
    job = Quantization(**{"precision": precision, "dtype": "bfloat16", "batch_size": 2, "max_length": 64, **settings})
    split = Split(job.tp, job.pp, use_parallel_embedding=True)
    return quantize(
        source,
        spec,
        texts,
        job,
        out,
        finish=lambda made: checkpoint_config(replace(spec, dtype=job.dtype), split, made["quantization"]),
    )


def spec_of(folder: Path) -> ModelSpec:
    quant = folder / "hf_quant_config.json"
    config = json.loads(quant.read_text()) if quant.exists() else None
    return ModelSpec.from_config(load_config(folder), folder / "config.json", hf_quant_config=config)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergence(expected: np.ndarray, checkpoint: Path, ids: list[int]) -> float:
    """Kullback-Leibler divergence of a checkpoint's next tokens from those of `expected` logits, mean over positions,
    in nats."""
    model = ReferenceModel.load(checkpoint)
    found = model.prefill(ids, model.new_cache(len(ids)), all_positions=True)
    ours, theirs = log_probabilities(found), log_probabilities(expected)
    return float((np.exp(theirs) * (theirs - ours)).sum(axis=1).mean())


def by_transformers(folder: Path, ids: list[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of a model in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([ids])).logits[0].numpy()
    return logits


def same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Bit for bit, NaN or not."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape), name
        assert torch.equal(tensor.view(-1).view(torch.uint8), theirs[name].view(-1).view(torch.uint8)), name


# SmolLM2


@pytest.fixture(scope="module")
def unseen(smollm2: SmolLM2) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(smollm2.folder / "tokenizer.json")).encode(UNSEEN).ids
    assert len(ids) > 90
    return ids


@pytest.fixture(scope="module")
def expected(smollm2: SmolLM2, unseen: list[int]) -> np.ndarray:
    return by_transformers(smollm2.folder, unseen)


@pytest.mark.parametrize(
    ("precision", "settings", "limit"),
    [
        ("fp8", {"kv_cache": "fp8"}, 0.05),
        ("fp8", {"tp": 3, "pp": 4}, 0.05),
        ("fp8-rowwise", {}, 0.05),
        ("nvfp4", {}, 0.4),
        ("int4-awq", {"group_size": BLOCK, "batch_size": 6}, 0.4),
        ("w4a8-awq", {"group_size": BLOCK, "batch_size": 6}, 0.4),
        ("int8-sq", {"kv_cache": "int8"}, 0.3),
    ],
    ids=["fp8-kv", "fp8-tp3-pp4", "fp8-rowwise", "nvfp4", "int4-awq", "w4a8-awq", "int8-sq-kv"],
)
def test_smollm2_predicts_nearly_the_same_when_quantised_for_engines(
    smollm2: SmolLM2,
    out: Workspace,
    unseen: list[int],
    expected: np.ndarray,
    precision: str,
    settings: dict[str, Any],
    limit: float,
) -> None:
    """Limits are about twice what was measured; other weights, or scales of another layer, give several nats."""
    facts = run(smollm2.folder, out, precision, **settings)
    assert (facts["modelopt"], facts["device"]) == ("0.47.0", "cpu")
    assert facts["texts"] == (len(TEXTS) if precision != "fp8-rowwise" else 0)
    assert 270e6 < facts["peak_memory_bytes"] < 8e9  # 135 million weights of two bytes, and the library
    ranks = settings.get("tp", 1) * settings.get("pp", 1)
    assert out.digests.keys() == {"config.json", *(f"rank{rank}.safetensors" for rank in range(ranks))}
    assert divergence(expected, out.path, unseen) < limit


@pytest.mark.parametrize(
    ("precision", "settings", "limit"),
    [("fp8", {}, 0.05), ("nvfp4", {}, 0.4), ("int4-awq", {"group_size": BLOCK, "batch_size": 6}, 0.4)],
    ids=["fp8", "nvfp4", "int4-awq"],
)
def test_smollm2_predicts_nearly_the_same_when_quantised_for_the_pytorch_flow(
    smollm2: SmolLM2,
    out: Workspace,
    tmp_path: Path,
    unseen: list[int],
    expected: np.ndarray,
    precision: str,
    settings: dict[str, Any],
    limit: float,
) -> None:
    """Read as published weights are: by our own converter."""
    run(smollm2.folder, out, precision, export_format="hf", **settings)
    converted = tmp_path / "converted"
    converted.mkdir()
    convert(out.path, spec_of(out.path), Workspace(converted), Split(3))
    assert divergence(expected, converted, unseen) < limit


# what the library writes

EXPORT = """
import copy, json, sys
import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_tensorrt_llm_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

for job in json.load(sys.stdin):
    model = AutoModelForCausalLM.from_pretrained(job["source"], dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(job["source"], padding_side="left")
    config = copy.deepcopy(getattr(mtq, job["config"]))
    for entry in config["quant_cfg"]:
        for step in entry["cfg"] if isinstance(entry.get("cfg"), list) else [entry.get("cfg") or {}]:
            if step.get("num_bits") == 4:
                step["block_sizes"][-1] = job["block"]
    if job["kv"]:
        config["quant_cfg"] += mtq.FP8_KV_CFG["quant_cfg"]

    def calibrate(model):
        for first in range(0, len(job["texts"]), 2):
            model(**tokenizer(job["texts"][first : first + 2], return_tensors="pt", padding=True,
                              truncation=True, max_length=64, return_token_type_ids=False))

    with torch.no_grad():
        model = mtq.quantize(model, config, forward_loop=calibrate)
    export_tensorrt_llm_checkpoint(model, job["decoder"], torch.bfloat16, export_dir=job["out"],
                                   inference_tensor_parallel=job["tp"], inference_pipeline_parallel=job["pp"])
"""

SAME = [
    ("llama", "fp8", {"kv_cache": "fp8", "tp": 2, "pp": 2}),
    ("llama", "fp8-rowwise", {"tp": 2}),
    ("llama", "nvfp4", {"tp": 2}),
    ("llama", "int4-awq", {"group_size": BLOCK, "tp": 2, "pp": 2}),
    ("llama", "w4a8-awq", {"group_size": BLOCK}),
    ("llama", "int8-sq", {"pp": 4}),
    ("mistral with a window", "fp8", {"tp": 4}),
    ("qwen2", "fp8", {"kv_cache": "fp8", "pp": 2}),
    ("qwen3", "int8-sq", {"tp": 2}),
    ("gemma", "fp8", {"tp": 2}),
]


def case_name(case: tuple[str, str, dict[str, Any]]) -> str:
    family, precision, settings = case
    return f"{family.split()[0]}-{precision}-tp{settings.get('tp', 1)}-pp{settings.get('pp', 1)}"


@pytest.fixture(scope="module")
def library(
    tmp_path_factory: pytest.TempPathFactory, make_tiny: Callable[..., Path]
) -> Iterator[dict[str, tuple[Path, Path]]]:
    """Source and the library's own export of each case, made in one process."""
    folder = tmp_path_factory.mktemp("library")
    sources = {family: make_tiny(family, num_hidden_layers=4) for family in {case[0] for case in SAME}}
    decoders = {"qwen2": "qwen", "qwen3": "qwen", "gemma": "gemma"}
    jobs = [
        {
            "source": str(sources[family]),
            "out": str(folder / case_name((family, precision, settings))),
            "config": CONFIGS[precision],
            "kv": settings.get("kv_cache"),
            "block": BLOCK,
            "decoder": decoders.get(family, "llama"),
            "tp": settings.get("tp", 1),
            "pp": settings.get("pp", 1),
            "texts": TEXTS,
        }
        for family, precision, settings in SAME
    ]
    done = subprocess.run([sys.executable, "-c", EXPORT], input=json.dumps(jobs), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    yield {case_name(case): (sources[case[0]], folder / case_name(case)) for case in SAME}
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Case:
    precision: str
    settings: dict[str, Any]
    source: Path
    ours: Path
    theirs: Path

    @property
    def split(self) -> Split:
        return Split(self.settings.get("tp", 1), self.settings.get("pp", 1), use_parallel_embedding=True)


@pytest.fixture(scope="module", params=SAME, ids=case_name)
def case(
    request: pytest.FixtureRequest, library: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    """One of them, quantised by us as well."""
    source, theirs = library[case_name(request.param)]
    _, precision, settings = request.param
    ours = tmp_path_factory.mktemp("ours")
    run(source, Workspace(ours), precision, **settings)
    yield Case(precision, settings, source, ours, theirs)
    shutil.rmtree(ours)


def test_the_layers_are_those_that_the_library_writes(case: Case) -> None:
    vocabulary = ("transformer.vocab_embedding.weight", "lm_head.weight")  # the library pads them for INT4
    for rank in range(case.split.files):
        ours, theirs = (load_file(folder / f"rank{rank}.safetensors") for folder in (case.ours, case.theirs))
        for name in vocabulary:
            ours.pop(name, None)
            theirs.pop(name, None)
        same_tensors(ours, theirs)
    ours_section, theirs_section = (
        json.loads((folder / "config.json").read_text())["quantization"] for folder in (case.ours, case.theirs)
    )
    assert ours_section == theirs_section


def test_the_tensors_are_those_of_our_table(case: Case) -> None:
    """Where the library writes more: the scales of keys and values apart, besides the larger of both; and numbers
    without a dimension where the network has one."""
    group, cache = case.settings.get("group_size"), case.settings.get("kv_cache")
    published = SourceQuantization("modelopt", case.precision, group_size=group, kv_cache=cache)
    spec = replace(spec_of(case.source), quantization=published)
    for rank in range(case.split.files):
        table = {tensor.name: (tensor.dtype, tensor.shape) for tensor in rank_tensors(spec, case.split, rank)}
        with safe_open(case.ours / f"rank{rank}.safetensors", "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            found = {name: (slice.get_dtype(), tuple(slice.get_shape()) or (1,)) for name, slice in slices.items()}
        assert {name: value for name, value in found.items() if name.rsplit(".", 1)[-1] not in APART} == table


APART = ("k_cache_scaling_factor", "v_cache_scaling_factor")


# what the library can't, or writes otherwise


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 3)])
@pytest.mark.parametrize(
    ("family", "precision", "settings", "limit"),
    [
        ("llama with biases", "int4-awq", {"group_size": BLOCK}, 0.1),
        ("llama, tied", "int8-sq", {"kv_cache": "int8"}, 0.05),
        ("gemma", "int4-awq", {"group_size": BLOCK}, 0.1),
        ("gemma", "fp8", {}, 0.05),
    ],
    ids=["llama-int4", "tied-int8", "gemma-int4", "gemma-fp8"],
)
def test_any_vocabulary_and_any_stages_are_exported(
    make_tiny: Callable[..., Path],
    out: Workspace,
    family: str,
    precision: str,
    settings: dict[str, Any],
    limit: float,
    tp: int,
    pp: int,
) -> None:
    """260 tokens, four layers on three stages, and heads that are tied: the library's own export pads the first,
    refuses the second, and leaves out the third."""
    source = make_tiny(family, num_hidden_layers=4)
    run(source, out, precision, tp=tp, pp=pp, **settings)
    published = load_file(source / "model.safetensors")
    embedding = published["model.embed_tokens.weight"]
    ranks = [load_file(out.path / f"rank{rank}.safetensors") for rank in range(tp * pp)]
    for name, stage, weight in (
        ("transformer.vocab_embedding.weight", 0, embedding),
        ("lm_head.weight", pp - 1, published.get("lm_head.weight", embedding)),
    ):
        assert torch.equal(torch.cat([ranks[stage * tp + rank][name] for rank in range(tp)]), weight)
    config = json.loads((out.path / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"]) == (260, 4)
    ids = list(UNSEEN.encode()[:100])
    assert divergence(by_transformers(source, ids), out.path, ids) < limit


def test_the_head_is_quantised_when_asked_for(make_tiny: Callable[..., Path], out: Workspace) -> None:
    run(make_tiny(), out, quantize_lm_head=True, tp=2)
    ranks = [load_file(out.path / f"rank{rank}.safetensors") for rank in range(2)]
    assert [rank["lm_head.weight"].dtype for rank in ranks] == [torch.float8_e4m3fn] * 2
    assert json.loads((out.path / "config.json").read_text())["quantization"]["exclude_modules"] == []


def test_a_kv_cache_is_quantised_alone(tiny: Path, out: Workspace) -> None:
    """INT8: the largest key or value of a layer is 127 steps."""
    run(tiny, out, "bf16", kv_cache="int8")
    tensors, published = load_file(out.path / "rank0.safetensors"), load_file(tiny / "model.safetensors")
    assert torch.equal(tensors["transformer.layers.1.mlp.fc.weight"], published["model.layers.1.mlp.gate_proj.weight"])
    scale = tensors["transformer.layers.0.attention.kv_cache_scaling_factor"]
    apart = [tensors[f"transformer.layers.0.attention.{name}"] for name in APART]
    assert torch.equal(scale, torch.maximum(*apart))
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    largest = torch.zeros(1)
    tokenizer = AutoTokenizer.from_pretrained(tiny, padding_side="left")
    with torch.no_grad():
        for first in range(0, len(TEXTS), 2):
            batch = tokenizer(
                TEXTS[first : first + 2], return_tensors="pt", padding=True, max_length=64, truncation=True
            )
            cache = model(batch["input_ids"], attention_mask=batch["attention_mask"]).past_key_values
            largest = torch.maximum(largest, cache.layers[0].values.abs().amax().float())
    assert apart[1].item() == pytest.approx(largest.item() / 127, rel=1e-6)


def test_float16_is_kept(tiny: Path, out: Workspace) -> None:
    run(tiny, out, dtype="float16")
    tensors = load_file(out.path / "rank0.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16, torch.float32, torch.float8_e4m3fn}


@pytest.mark.parametrize("export_format", ["tensorrt_llm", "hf"])
def test_the_same_job_gives_the_same_bytes(tiny: Path, tmp_path: Path, export_format: str) -> None:
    """However many threads there are, and whatever order sets come in."""
    made = []
    for threads in ("1", "2"):
        out = Workspace(tmp_path / threads)
        out.path.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", AGAIN, str(tiny), str(out.path), export_format],
            env={**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        made.append(json.loads(done.stdout))
    assert made[0] == made[1]
    assert len(made[0]) > 1


AGAIN = """
import json, sys
from pathlib import Path
from builder.store import Workspace
from tests.integration.test_quantization import run
out = Workspace(Path(sys.argv[2]))
run(Path(sys.argv[1]), out, "int4-awq", group_size=64, kv_cache="fp8", export_format=sys.argv[3])
print(json.dumps({name: digest.sha256 for name, digest in out.digests.items()}))
"""


# the folder for the PyTorch flow


def test_the_folder_for_the_pytorch_flow_is_complete(tiny: Path, out: Workspace) -> None:
    """And its config.json is the published one: transformers 4, which TensorRT-LLM has, doesn't know how transformers 5
    writes it."""
    edit = {"rope_theta": 123456.0, "rope_parameters": None}
    source = out.path.parent / "source"
    shutil.copytree(tiny, source)
    config = json.loads((source / "config.json").read_text())
    config.pop("rope_parameters")
    config.pop("dtype")  # published configs of transformers 4 say torch_dtype
    (source / "config.json").write_text(
        json.dumps(config | {"rope_theta": edit["rope_theta"], "torch_dtype": "float32"})
    )
    run(source, out, export_format="hf")
    made = json.loads((out.path / "config.json").read_text())
    assert made.pop("quantization_config")["quant_algo"] == "FP8"
    assert made.pop("torch_dtype") == "bfloat16"
    assert made == config | {"rope_theta": 123456.0}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out.path / name).read_bytes() == (source / name).read_bytes()
    told = json.loads((out.path / "hf_quant_config.json").read_text())["quantization"]
    assert (told["quant_algo"], told["kv_cache_quant_algo"]) == ("FP8", None)


@pytest.mark.parametrize(
    ("family", "changes", "precision"),
    [
        ("gemma-2", {}, "int8-sq"),
        ("gemma-3", {"layer_types": ["sliding_attention", "full_attention"] * 2}, "int8-sq"),
        ("mixtral", {}, "fp8"),
        ("qwen3-moe", {"moe_intermediate_size": 64}, "fp8"),
    ],
    ids=["gemma-2", "gemma-3", "mixtral", "qwen3-moe"],
)
def test_families_without_an_export_for_engines_have_one_for_the_pytorch_flow(
    make_tiny: Callable[..., Path], out: Workspace, tmp_path: Path, family: str, changes: dict[str, Any], precision: str
) -> None:
    """It is right: converted as published weights are, it computes what the model does."""
    source = make_tiny(family, num_hidden_layers=4, **changes)
    run(source, out, precision, export_format="hf")
    converted = tmp_path / "converted"
    converted.mkdir()
    convert(out.path, spec_of(out.path), Workspace(converted), Split(2))
    ids = list(UNSEEN.encode()[:100])
    assert divergence(by_transformers(source, ids), converted, ids) < 0.05


# recipes of the library


def library_recipe(name: str) -> Path:
    [path] = importlib.resources.files("modelopt_recipes").joinpath("general/ptq").glob(f"{name}.yaml")
    return Path(path)


def test_a_recipe_of_the_library_makes_what_the_precision_makes(tiny: Path, tmp_path: Path) -> None:
    digests = []
    for recipe in (None, library_recipe("fp8_default-kv_fp8")):
        out = Workspace(tmp_path / str(bool(recipe)))
        out.path.mkdir()
        run(tiny, out, "fp8", kv_cache="fp8", modelopt_recipe=recipe)
        digests.append(out.digests)
    assert digests[0] == digests[1]


def test_a_recipe_may_leave_linears_out(tiny: Path, out: Workspace) -> None:
    """With a name for each on its own stage, where the library's patterns count over all stages."""
    run(tiny, out, "nvfp4", kv_cache="fp8", modelopt_recipe=library_recipe("nvfp4_mlp_only-kv_fp8"), pp=3)
    excluded = json.loads((out.path / "config.json").read_text())["quantization"]["exclude_modules"]
    assert excluded == ["lm_head", "transformer.layers.0.attention.dense", "transformer.layers.0.attention.qkv"]
    for rank in range(3):
        dtypes = {name: tensor.dtype for name, tensor in load_file(out.path / f"rank{rank}.safetensors").items()}
        assert dtypes["transformer.layers.0.attention.qkv.weight"] == torch.bfloat16
        assert dtypes["transformer.layers.0.mlp.fc.weight"] == torch.uint8


def test_int4_without_smoothing_is_read_as_awq_of_ones(tiny: Path, out: Workspace) -> None:
    run(tiny, out, "int4-awq", modelopt_recipe=library_recipe("int4_blockwise_weight_only"))
    scales = {name: tensor for name, tensor in load_file(out.path / "rank0.safetensors").items() if "prequant" in name}
    assert len(scales) == 3 * 5
    assert all(bool((tensor == 1).all()) for tensor in scales.values())
    ids = list(UNSEEN.encode()[:100])
    assert divergence(by_transformers(tiny, ids), out.path, ids) < 0.1


QUANTIZE = "metadata: {recipe_type: ptq}\nquantize: {algorithm: max, quant_cfg: [%s]}"
FP8_WEIGHTS = (
    "{quantizer_name: '*weight_quantizer', cfg: {num_bits: e4m3}}, "
    "{quantizer_name: '*input_quantizer', cfg: {num_bits: e4m3}}"
)
FIRST_LAYER = (
    "{quantizer_name: '*', enable: false}, "
    "{quantizer_name: '*layers.0.*_proj.weight_quantizer', cfg: {num_bits: e4m3}}, "
    "{quantizer_name: '*layers.0.*_proj.input_quantizer', cfg: {num_bits: e4m3}}"
)


OFF = "{quantizer_name: '*', enable: false}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "ParserError"),
        ("metadata: {recipe_type: ptq}", "must contain 'quantize'"),
        ("metadata: {recipe_type: speculative_eagle}\neagle: {}", "only ptq"),
        ("imports: {x: /etc/passwd}\n" + QUANTIZE % "{$import: x}", "isn't one of the library's"),
        ("imports: {x: ../x}\n" + QUANTIZE % "{$import: x}", "isn't one of the library's"),
        ("imports: {x: beside}\n" + QUANTIZE % "{$import: x}", "isn't one of the library's"),
        ("imports: [beside]\n" + QUANTIZE % OFF, "no mapping"),
        (QUANTIZE % "!!python/object/apply:os.system [touch /tmp/engine-builder-was-here]", "constructor"),
        (QUANTIZE % "{quantizer_name: '*', surprise: true}", "surprise"),
        ("#" * (2 << 20), "more than 1048576 bytes"),
    ],
    ids=["syntax", "empty", "eagle", "absolute", "above", "beside", "list", "code", "unknown", "large"],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    """As is one that imports files, which no lock has pinned: the library would look in this folder first."""
    monkeypatch.chdir(tmp_path)
    recipe, trace = tmp_path / "recipe.yaml", Path("/tmp/engine-builder-was-here")
    trace.unlink(missing_ok=True)
    recipe.write_text(text)
    (tmp_path / "beside.yaml").write_text("quantizer_name: '*'\nenable: false\n")
    with pytest.raises(Failure, match=words) as error:
        recipe_config(recipe)
    assert error.value.kind == "RECIPE"
    assert not trace.exists()


@pytest.mark.parametrize(
    ("quantizers", "code", "words"),
    [
        (OFF, "MODELOPT_RECIPE_DIFFERENT", "floats"),
        (
            f"{OFF}, {{quantizer_name: '*weight_quantizer', cfg: {{num_bits: 8, axis: 0}}}}",
            "MODELOPT_RECIPE_DIFFERENT",
            "int8",
        ),
        (f"{OFF}, {FP8_WEIGHTS}", "MODELOPT_RECIPE_DIFFERENT", "the head is quantised"),
        (FIRST_LAYER, "MIXED_STAGES", "tensor parallelism alone"),
    ],
    ids=["off", "int8", "head", "stages"],
)
def test_a_recipe_that_makes_something_else_than_the_precision_is_refused(
    tiny: Path, out: Workspace, tmp_path: Path, quantizers: str, code: str, words: str
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(QUANTIZE % quantizers)
    with pytest.raises(RecipeError) as error:
        run(tiny, out, modelopt_recipe=recipe, pp=3)
    assert error.value.code == code
    assert words in (error.value.why or "") + (error.value.hint or "")
    assert error.value.where == str(recipe)


# models that can't be quantised

DOWN = "model.layers.1.mlp.down_proj.weight"


def _as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _with_code(folder: Path) -> None:
    edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_own.Own", "AutoConfig": "modeling_own.OwnConfig"})
    (folder / "modeling_own.py").write_text("open('/tmp/engine-builder-was-here', 'w')\n")


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (_as_pickle, "MODEL", "no file named model.safetensors"),
        (lambda folder: edit_weights(folder, lambda tensors: tensors.pop(DOWN)), "MODEL", f"don't have {DOWN}"),
        (
            lambda folder: edit_weights(folder, lambda tensors: tensors.update({DOWN: tensors[DOWN][1:].clone()})),
            "MODEL",
            f"have other shapes of {DOWN}",
        ),
        (
            lambda folder: edit_weights(folder, lambda tensors: tensors[DOWN][0].fill_(float("nan"))),
            "WEIGHTS",
            f"{DOWN} holds NaN",
        ),
        (lambda folder: edit_config(folder, model_type="surprise"), "MODEL", "surprise"),
    ],
    ids=["pickle", "missing", "misshapen", "nan", "unknown"],
)
def test_a_model_that_isnt_all_there_is_refused(
    tiny: Path, tmp_path: Path, spoil: Callable[[Path], object], kind: str, words: str
) -> None:
    """transformers would fill what is missing with random numbers."""
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    spoil(source)
    with pytest.raises(Exception, match=words) as error:
        load_model(str(source), "bfloat16", "cpu")
    assert failure_of(error.value, "load").kind == kind


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "there is none of tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "JSONDecodeError"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), ""),
    ],
    ids=["none", "broken", "empty"],
)
def test_a_tokenizer_that_cant_be_used_is_refused(
    tiny: Path, tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    spoil(source)
    with pytest.raises(Failure, match=words) as error:
        load_tokenizer(str(source))
    assert error.value.kind == "TOKENIZER"


def test_a_tokenizer_of_another_model_is_told(tiny: Path, tmp_path: Path, out: Workspace) -> None:
    source, tokenizer = tmp_path / "source", tiny_tokenizer()
    shutil.copytree(tiny, source)
    tokenizer["model"]["vocab"]["<large>"] = 700
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 700, "content": "<large>"})
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SourceError) as error:
        run(source, out, texts=["a <large> text"])
    assert error.value.code == "TOKENIZER_UNUSABLE"
    assert error.value.why == "it makes token 700, and the model has 260"
    assert error.value.where == str(source)


def test_code_of_the_model_is_never_run(tiny: Path, tmp_path: Path, out: Workspace) -> None:
    """A llama has a class of its own in transformers, which is taken instead."""
    source, trace = tmp_path / "source", Path("/tmp/engine-builder-was-here")
    trace.unlink(missing_ok=True)
    shutil.copytree(tiny, source)
    _with_code(source)
    run(source, out)
    assert not trace.exists()


def test_a_linear_of_zeros_has_no_scale(tiny: Path, tmp_path: Path, out: Workspace) -> None:
    """The library divides by it and writes NaN."""
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    edit_weights(source, lambda tensors: tensors[DOWN].zero_())
    with pytest.raises(ToolchainError) as error:
        run(source, out, "nvfp4")
    assert error.value.code == "CALIBRATION_NOT_FINITE"
    assert "transformer.layers.1.mlp.proj.weights_scaling_factor" in (error.value.why or "")


def test_float16_that_overflows_is_told(make_tiny: Callable[..., Path], out: Workspace) -> None:
    source = make_tiny()
    edit_weights(source, lambda tensors: [tensors[name].mul_(3000) for name in tensors if ".mlp." in name])
    with pytest.raises(ToolchainError) as error:
        run(source, out, dtype="float16")
    assert error.value.code == "CALIBRATION_NOT_FINITE"
    assert "bf16" in (error.value.hint or "")


# a machine that can't


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A memory cgroup of 300 MB, of version 2 or 1."""
    require_root("a memory cgroup")
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup" if unified else "/sys/fs/cgroup/memory") / f"engine-builder-{os.getpid()}"
    group.mkdir()
    (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(300 << 20))
    yield group
    group.rmdir()


IN_LITTLE_MEMORY = """
import sys
from pathlib import Path
from builder.checkpoint.quantize import Quantization, quantize
from builder.errors import BuilderError
from builder.model.config import load_config
from builder.model.spec import ModelSpec
from builder.store import Workspace

source = Path(sys.argv[1])
spec = ModelSpec.from_config(load_config(source), source / "config.json")
try:
    quantize(source, spec, ["a text"], Quantization("fp8", "bfloat16"), Workspace(Path(sys.argv[2])))
except BuilderError as error:
    print(error.render())
"""


def test_running_out_of_memory_is_told(smollm2: SmolLM2, out: Workspace, little_memory: Path) -> None:
    """The system kills the process that quantises, and not the one that waits for it."""
    enter = f'echo $$ > {little_memory}/cgroup.procs && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, "sh", sys.executable, "-c", IN_LITTLE_MEMORY, str(smollm2.folder), str(out.path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "error[OUT_OF_MEMORY]: memory ran out while quantising" in done.stdout
    assert "The weights alone take 0.3 GB as bfloat16" in done.stdout


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    require_root("mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("export_format", ["tensorrt_llm", "hf"])
def test_a_full_disk_is_told(tiny: Path, full_disk: Path, export_format: str) -> None:
    with pytest.raises(HostError) as error:
        run(tiny, Workspace(full_disk), export_format=export_format)
    assert error.value.code == "DISK_FULL"
    assert error.value.where == str(full_disk)


def test_a_killed_build_leaves_nothing_that_quantises(tiny: Path, out: Workspace) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom builder.store import Workspace\n"
        "from tests.integration.test_quantization import run\n"
        "run(Path(sys.argv[1]), Workspace(Path(sys.argv[2])), texts=['a text to run'] * 100_000)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tiny), str(out.path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    worker = _worker_of(parent.pid)
    assert b"builder.checkpoint.modelopt" in Path(f"/proc/{worker}/cmdline").read_bytes()
    time.sleep(2)  # it has been told its parent
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def _worker_of(parent: int) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            if numbers := children.read_text().split():
                return int(numbers[0])
        time.sleep(0.1)
    raise AssertionError("it started no worker")

"""What is written for engines is, tensor by tensor, what ModelOpt's own export_tensorrt_llm_checkpoint writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from builder.checkpoint.modelopt.configs import CONFIGS
from builder.model.layout import Split, rank_tensors
from builder.model.quantization import SourceQuantization
from builder.store import Workspace
from tests.integration.quantization.support import (
    APART,
    BLOCK,
    TEXTS,
    run,
    same_tensors,
    spec_of,
)

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

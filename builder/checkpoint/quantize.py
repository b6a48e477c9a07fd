"""Quantisation of a model by NVIDIA's ModelOpt, in a process of its own: see `builder.checkpoint.modelopt`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from builder.checkpoint.modelopt.child import run
from builder.checkpoint.modelopt.complaints import complaint, export_unsupported
from builder.checkpoint.modelopt.configs import FLOATS
from builder.checkpoint.modelopt.limits import OLDEST, block_size, fitting_blocks, unexported, unquantized_head
from builder.errors import HostError, PlanRefused, ToolchainError, disk_errors
from builder.model.spec import ModelSpec, stage_layers
from builder.model.stored import DTYPE_BYTES
from builder.model.weights import parameter_count, weights
from builder.store.digests import Advance, hash_file, ignore_progress
from builder.store.local import Workspace

Finish = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes config.json of what ModelOpt wrote into it."""

_NEEDED = ("modelopt", "torch", "transformers", "accelerate")
_SPLIT_ROLES = ("attention_out", "row", "expert_row")


@dataclass(frozen=True)
class Quantization:
    """Everything that shapes the output.

    precision: the catalog's name: fp8, fp8-rowwise, nvfp4, int4-awq, w4a8-awq, int8-sq; fp16 or bf16 for a KV cache
        that is quantised alone. kv_cache: None, "fp8", "int8", "nvfp4". dtype: of what isn't quantised.
    group_size: weights of INT4 that share a scale; None: as the library has it.
    export_format: "tensorrt_llm", split over tp tensor ranks and pp pipeline stages, or "hf", which is whole.
    max_length, batch_size: tokens of a text that are used, texts that are run together.
    modelopt_recipe: a YAML file that says how; it must make what the other fields say.
    """

    precision: str
    dtype: str
    kv_cache: str | None = None
    group_size: int | None = None
    smoothquant_alpha: float | None = None
    quantize_lm_head: bool = False
    export_format: str = "tensorrt_llm"
    tp: int = 1
    pp: int = 1
    max_length: int = 512
    batch_size: int = 1
    seed: int = 1234
    modelopt_recipe: Path | None = None

    @property
    def calibrated(self) -> bool:
        """Whether anything is measured on texts: the scales of row-wise FP8 are those of weights and of each token."""
        return self.precision != "fp8-rowwise" or self.kv_cache is not None or self.modelopt_recipe is not None


def require_modelopt(wanted: str | None = None) -> str:
    """The installed version of ModelOpt. HostError MODELOPT_MISSING, or MODELOPT_VERSION if it isn't `wanted`, or is
    older than any that is known here."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    try:
        found = version("nvidia-modelopt")
    except PackageNotFoundError:
        missing = ["modelopt", *(name for name in missing if name != "modelopt")]
    if missing:
        raise HostError(
            f"quantising needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install 'engine-builder[modelopt]'",
            code="MODELOPT_MISSING",
        )
    if wanted is not None and found != wanted:
        raise HostError(
            f"ModelOpt {found} is installed, and checkpoints are quantised with {wanted}",
            why="its version is part of the checkpoint's key: another one may give other weights",
            hint=f"pip install nvidia-modelopt=={wanted}",
            code="MODELOPT_VERSION",
        )
    if too_old(found):
        raise HostError(
            f"ModelOpt {found} is installed, which is older than {'.'.join(map(str, OLDEST))}",
            hint="pip install 'engine-builder[modelopt]'",
            code="MODELOPT_VERSION",
        )
    return found


def too_old(found: str) -> bool:
    """Whether a version of ModelOpt is older than any that is known here; builds of its own aren't."""
    try:
        return Version(found).release[: len(OLDEST)] < OLDEST
    except InvalidVersion:
        return False


def quantize(
    source: Path,
    spec: ModelSpec,
    texts: Sequence[str],
    job: Quantization,
    out: Workspace,
    *,
    finish: Finish | None = None,
    advance: Advance = ignore_progress,
) -> dict[str, Any]:
    """Quantise the model in folder `source`, measuring on `texts`, and write the checkpoint to `out`.

    In TensorRT-LLM's format: config.json, of which `finish` makes the final one, and rank0.safetensors, … with
    `transformer.vocab_embedding.weight` split over the tensor ranks as with use_parallel_embedding, dim 0, and the head
    stored, tied or not. In Hugging Face's: what TensorRT-LLM's PyTorch flow reads, tokenizer and all. The same job
    gives the same bytes.

    `advance` is told texts that are done. Returns facts: versions, device, texts, tokens, seconds, peak memory.

    HostError if the library isn't there, or memory or disk run out; ToolchainError for what the library can't do;
    SourceError for a model, tokenizer or texts that it can't read; RecipeError for a ModelOpt recipe that can't be
    used. Nothing runs on after the call, however it ends.
    """
    require_modelopt()
    request = _request(source, spec, texts, job, out)
    _check(spec, job, request)
    facts = run(request, advance)
    with disk_errors(out.path):
        if finish is not None and job.export_format == "tensorrt_llm":
            config = out.path / "config.json"
            made = finish(json.loads(config.read_text()))
            config.write_text(json.dumps(made, indent=2, allow_nan=False) + "\n")
        for file in sorted(out.path.rglob("*")):
            if file.is_file():
                out.record(file.relative_to(out.path).as_posix(), hash_file(file))
    return facts


def _request(source: Path, spec: ModelSpec, texts: Sequence[str], job: Quantization, out: Workspace) -> dict[str, Any]:
    """The job as the worker gets it: plain values."""
    stages = [stage_layers(spec.num_hidden_layers, job.pp, stage) for stage in range(job.pp)]
    return {
        **asdict(job),
        "modelopt_recipe": str(job.modelopt_recipe.absolute()) if job.modelopt_recipe else None,
        "architecture": spec.architecture,
        "model_type": spec.model_type,
        "vocab_size": spec.vocab_size,
        "tied": spec.tie_word_embeddings,
        "kv_heads": spec.num_key_value_heads,
        "model_bytes": parameter_count(spec) * DTYPE_BYTES[job.dtype],
        "stages": [[layers.start, layers.stop] for layers in stages],
        "source": str(source.absolute()),
        "out": str(out.path.absolute()),
        "texts": list(texts) if job.calibrated else [],
    }


def _check(spec: ModelSpec, job: Quantization, request: Mapping[str, Any]) -> None:
    """What can be known before the library is started."""
    if job.calibrated and not any(text.strip() for text in request["texts"]):
        raise complaint("TEXT", "there are none, or they are blank", request)
    if (reason := unexported(request)) is not None:
        raise export_unsupported(reason, request)
    if job.quantize_lm_head and (reason := unquantized_head(request)) is not None:
        raise complaint("HEAD", reason, request)
    if job.precision in FLOATS and job.kv_cache is None:
        raise PlanRefused(f"nothing is quantised with {job.precision} weights", code="NOTHING_QUANTIZED")
    if (size := block_size(request)) is not None and job.modelopt_recipe is None:
        _check_blocks(spec, job, size)


def _check_blocks(spec: ModelSpec, job: Quantization, size: int) -> None:
    """Scales of blocks lie along the inputs, of which row-parallel linears have a share per rank."""
    tp = job.tp if job.export_format == "tensorrt_llm" else 1
    inputs = {
        weight.shape[1] // (tp if weight.role in _SPLIT_ROLES else 1) for weight in weights(spec) if weight.quantized
    }
    if not (misfits := sorted(number for number in inputs if number % size)):
        return
    fitting = " or ".join(map(str, fitting_blocks(inputs))) if "awq" in job.precision else ""
    where = f" on each of {tp} tensor ranks" if tp > 1 else ""
    raise ToolchainError(
        f"linears of {' and '.join(map(str, misfits))} inputs{where} can't be cut into blocks of {size} weights",
        why="the weights of a block share a scale, and ModelOpt exports no part of a block",
        hint=f"use blocks of {fitting} weights: precision.group_size" if fitting else "use fp8 or int8-sq",
        code="EXPORT_BLOCK_SIZE",
    )

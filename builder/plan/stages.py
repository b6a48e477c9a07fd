"""The stages of a unit, and what each is for: the inputs from which its key is computed.

checkpoint ──▶ engine ──┐
     └──▶ qualify       ├──▶ image          flow: engine; qualify where the recipe wants something proved
repository ─────────────┘

checkpoint ─────────────┬──▶ image          flow: pytorch, without a compile step
repository ─────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

from builder import catalog
from builder.plan.build_config import build_config
from builder.plan.keys import StagePlan, plan_stage
from builder.plan.serving import serving_settings
from builder.plan.unit import Unit

RuntimeDigest = Callable[[str], str]
"""The digest of what the runtime layer for a Python version ("3.11") would hold."""


def plan_stages(unit: Unit, runtime_digest: RuntimeDigest) -> dict[str, StagePlan]:
    """The stages of a unit from below, each with its inputs and its derivation key."""
    stages = {
        "checkpoint": plan_stage(
            "checkpoint",
            checkpoint_parameters(unit),
            {
                **unit.files.get("weights", {}),
                **_model_config(unit),
                **_calibration_files(unit),
                **_modelopt_recipe(unit),
            },
            {},
        )
    }
    if unit.proof is not None:
        proof = plan_stage("qualify", _proof_parameters(unit), _proof_files(unit), {"checkpoint": stages["checkpoint"]})
        stages["qualify"] = proof
    if unit.flow == "engine":
        stages["engine"] = plan_stage("engine", engine_parameters(unit), {}, {"checkpoint": stages["checkpoint"]})
    stages["repository"] = plan_stage("repository", repository_parameters(unit), _served_files(unit), {})
    packed = "engine" if unit.flow == "engine" else "checkpoint"
    stages["image"] = plan_stage(
        "image",
        _image_parameters(unit, runtime_digest),
        {},
        {packed: stages[packed], "repository": stages["repository"]},
    )
    return stages


def checkpoint_parameters(unit: Unit) -> dict[str, Any]:
    """What shapes the checkpoint. Where we make it ourselves, no release of TensorRT-LLM counts."""
    split, wanted = unit.parallelism, unit.settings.precision
    if unit.maker == "snapshot":
        return {"maker": "snapshot"}
    parameters: dict[str, Any] = {
        "precision": unit.precision.name,
        "dtype": unit.dtype,
        "tensor": split.tensor,
        "pipeline": split.pipeline,
    }
    if split.context > 1:
        parameters["context"] = split.context
    if split.use_parallel_embedding:
        parameters["embedding_sharding_dim"] = split.embedding_sharding_dim
    if unit.maker == "toolchain":
        parameters["toolchain"] = toolchain_parameters(unit)
    if unit.maker == "modelopt":
        parameters |= {"modelopt": catalog.toolchains()["reference"].modelopt, "flow": unit.flow}
    if unit.quantized_here:
        parameters |= {
            "group_size": unit.group_size,
            "smoothquant_alpha": wanted.smoothquant_alpha,
            "quantize_lm_head": wanted.quantize_lm_head,
        }
    if unit.kv_precision.quant_algo:
        parameters["kv_cache"] = unit.kv_precision.name
    if unit.spec.experts:
        parameters |= {"expert": unit.moe_expert, "expert_tensor": unit.moe_tensor}
    if unit.calibrated_here and unit.settings.calibration:
        parameters["calibration"] = unit.settings.calibration.model_dump()
    return parameters


def _proof_parameters(unit: Unit) -> dict[str, Any]:
    """The gates that count, and how much of a text a window may hold."""
    gates = unit.settings.qualify
    if gates is None:
        return {}
    if unit.proof == "logits":
        return {"logits": gates.logits.model_dump() if gates.logits else None}
    return {**gates.model_dump(exclude={"logits"}), "longest": unit.max_seq_len}


def _proof_files(unit: Unit) -> dict[str, str]:
    """The model itself is below: the checkpoint was made from it."""
    gates = unit.settings.qualify
    if gates is None or gates.perplexity is None or unit.proof != "perplexity":
        return {}
    pinned = unit.lock.calibration.get(gates.perplexity.text)
    files = {path: digest for path, digest in unit.files.get("tokenizer", {}).items() if path == "tokenizer.json"}
    return files | {gates.perplexity.text: pinned.revision if pinned else "unresolved"}


def engine_parameters(unit: Unit) -> dict[str, Any]:
    """What shapes the engine besides the checkpoint."""
    return {"sku": unit.gpu.name, "toolchain": toolchain_parameters(unit), **build_config(unit)}


def repository_parameters(unit: Unit) -> dict[str, Any]:
    """What shapes the model repository besides files: the whole record that it is written from."""
    return {
        name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in vars(serving_settings(unit)).items()
    }


def toolchain_parameters(unit: Unit) -> dict[str, Any]:
    """The release by name and versions, and by the digest of its build image where the lock has it."""
    toolchain = unit.toolchain
    image = unit.lock.image(toolchain.build_image, unit.gpu.platform) if toolchain.build_image else None
    return {
        "name": toolchain.name,
        "tensorrt": toolchain.tensorrt,
        "cuda": toolchain.cuda,
        "image": image.digest if image else None,
    }


def _image_parameters(unit: Unit, runtime_digest: RuntimeDigest) -> dict[str, Any]:
    content = unit.recipe.content
    parameters: dict[str, Any] = {
        "unit": unit.id,
        "platform": unit.gpu.platform,
        "title": content.name,
        "version": content.version,
        "license": content.model.license,
    }
    if unit.package.base == "none":
        return parameters
    base = unit.lock.image(unit.package.base, unit.gpu.platform)
    if base is None:
        return parameters | {"base": f"{unit.package.base}, unresolved"}
    python = unit.lock.images[unit.package.base].python
    return parameters | {"base": base.digest, "runtime": runtime_digest(python) if python else None}


def _model_config(unit: Unit) -> dict[str, str]:
    """What says how to read the weights."""
    return {path: digest for path, digest in unit.files.get("config", {}).items() if path != "generation_config.json"}


def _served_files(unit: Unit) -> dict[str, str]:
    """Tokenizer, configuration, and the chat template that the recipe brings."""
    files = {**unit.files.get("tokenizer", {}), **unit.files.get("config", {})}
    if own := unit.serving.chat_template:
        pinned = unit.lock.chat_templates.get(own)
        files[own] = pinned.sha256 if pinned else "unresolved"
    return files


def _modelopt_recipe(unit: Unit) -> dict[str, str]:
    name = unit.settings.precision.modelopt_recipe
    if name is None:
        return {}
    pinned = unit.lock.calibration.get(name)
    return {"modelopt_recipe": pinned.revision if pinned else "unresolved"}


def _calibration_files(unit: Unit) -> dict[str, str]:
    """Calibration reads the data set, and tokenises it."""
    settings = unit.settings.calibration
    if settings is None or not (unit.precision.calibrated or unit.kv_precision.quant_algo):
        return {}
    pinned = unit.lock.calibration.get(settings.dataset)
    data = {file.path: file.sha256 for file in pinned.files} if pinned else {settings.dataset: "unresolved"}
    return {**unit.files.get("tokenizer", {}), **{f"calibration/{path}": digest for path, digest in data.items()}}

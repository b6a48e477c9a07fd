"""What went wrong in the worker, as errors for whoever started it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from builder.checkpoint.memory import free_memory_bytes
from builder.errors import BuilderError, HostError, RecipeError, SourceError, ToolchainError

_SMALLER = "quantise on a machine with more memory, or set calibration.batch_size or calibration.max_length lower"
_OTHERWISE = "use flow: pytorch, whose checkpoints it exports for every family, or precision.quantizer: toolchain"


def complaint(kind: str, message: str, job: Mapping[str, Any]) -> BuilderError:
    """The error of a failure of this kind; `message` is the library's own, or ours."""
    return _KINDS.get(kind, _unknown)(message, job)


def ended(status: int, said: str, job: Mapping[str, Any]) -> BuilderError:
    """The worker ended without telling why: `status` as subprocess has it, `said` the last of its standard error."""
    if status == -signal.SIGKILL:
        return _memory("it was killed, as the system does where memory runs out", job)
    reason = f"it ended with status {status}" if status >= 0 else f"it ended by {signal.Signals(-status).name}"
    return ToolchainError(
        "ModelOpt's process ended before it was done",
        why=f"{reason}{': ' if said else ''}{said}",
        hint="run it again; if it ends the same way, precision.quantizer: toolchain quantises in the release's image",
        code="MODELOPT_FAILED",
    )


def export_unsupported(reason: str, job: Mapping[str, Any]) -> BuilderError:
    """ModelOpt has no such export."""
    what = "for TensorRT-LLM's engines" if job["export_format"] == "tensorrt_llm" else "in the Hugging Face format"
    return ToolchainError(
        f"ModelOpt can't export {job['architecture']} with {job['precision']} weights {what}",
        why=reason,
        hint=_OTHERWISE if job["export_format"] == "tensorrt_llm" else "choose another precision",
        code="EXPORT_UNSUPPORTED",
    )


def _model(message: str, job: Mapping[str, Any]) -> BuilderError:
    return SourceError(
        "transformers can't load the model",
        where=job["source"],
        why=message,
        hint="code of the model's own and pickle files are never loaded; it needs safetensors of a known architecture",
        code="MODEL_UNREADABLE",
    )


def _weights(message: str, job: Mapping[str, Any]) -> BuilderError:
    return SourceError(
        "weights of the model aren't finite numbers",
        where=job["source"],
        why=message,
        hint="the download is damaged, or the weights are beyond the range of this dtype: see precision.activations",
        code="WEIGHTS_NOT_FINITE",
    )


def _tokenizer(message: str, job: Mapping[str, Any]) -> BuilderError:
    return SourceError(
        "the model's own tokenizer can't make tokens of the calibration texts",
        where=job["source"],
        why=message,
        hint="quantising needs the tokenizer's files beside the weights, and they must be the model's",
        code="TOKENIZER_UNUSABLE",
    )


def _text(message: str, _: Mapping[str, Any]) -> BuilderError:
    return SourceError(
        "there is no text to measure activations with", why=message, hint="see calibration.dataset", code="TEXT_EMPTY"
    )


def _memory(message: str, job: Mapping[str, Any]) -> BuilderError:
    free = free_memory_bytes()
    there = "" if free is None else f"; {free / 1e9:.1f} GB of this machine's are free now"
    return HostError(
        "memory ran out while quantising",
        why=f"{message}. The weights alone take {job['model_bytes'] / 1e9:.1f} GB as {job['dtype']}, and calibration "
        f"runs batches of {job['batch_size']} texts of {job['max_length']} tokens{there}",
        hint=_SMALLER,
        code="OUT_OF_MEMORY",
    )


def _disk(message: str, job: Mapping[str, Any]) -> BuilderError:
    return HostError(
        "the disk is full",
        where=job["out"],
        why=message,
        hint="free some space, or choose another store with --store; the next run starts over with this checkpoint",
        code="DISK_FULL",
    )


def _not_finite(message: str, job: Mapping[str, Any]) -> BuilderError:
    overflow = ", or set precision.activations: bf16, which has more range" if job["dtype"] == "float16" else ""
    return ToolchainError(
        "calibration gave values that aren't finite, or scales that aren't above 0",
        why=message,
        hint=f"calibrate with other texts, or choose another precision{overflow}; a linear of zeros alone does it too",
        code="CALIBRATION_NOT_FINITE",
    )


def _recipe(message: str, job: Mapping[str, Any]) -> BuilderError:
    return RecipeError(
        "the ModelOpt recipe can't be used",
        where=job["modelopt_recipe"],
        why=message,
        hint="it is a YAML file for post-training quantisation, with snippets of the library alone: see "
        "modelopt_recipes/general/ptq in the library",
        code="MODELOPT_RECIPE",
    )


def _different(message: str, job: Mapping[str, Any]) -> BuilderError:
    if job["modelopt_recipe"]:
        return RecipeError(
            f"the ModelOpt recipe quantises otherwise than precision.weights: {job['precision']} says",
            where=job["modelopt_recipe"],
            why=message,
            hint="let precision.weights, kv_cache and group_size say what the ModelOpt recipe makes",
            code="MODELOPT_RECIPE_DIFFERENT",
        )
    return ToolchainError(
        "ModelOpt quantised otherwise than it was told",
        why=message,
        hint="use the version of ModelOpt that this toolchain names",
        code="QUANTIZED_DIFFERENTLY",
    )


def _stages(message: str, job: Mapping[str, Any]) -> BuilderError:
    return RecipeError(
        "the ModelOpt recipe makes pipeline stages that differ in which of their layers are quantised",
        where=job["modelopt_recipe"],
        why=message,
        hint="use tensor parallelism alone, or quantise all layers alike",
        code="MIXED_STAGES",
    )


def _head(message: str, _: Mapping[str, Any]) -> BuilderError:
    return ToolchainError(
        "ModelOpt doesn't quantise the head of this model",
        why=message,
        hint="leave out precision.quantize_lm_head",
        code="HEAD_NOT_QUANTIZED",
    )


def _calibrate(message: str, _: Mapping[str, Any]) -> BuilderError:
    return ToolchainError(
        "ModelOpt can't calibrate the model",
        why=message,
        hint="choose another precision, or precision.quantizer: toolchain",
        code="CALIBRATION_FAILED",
    )


def _unknown(message: str, _: Mapping[str, Any]) -> BuilderError:
    return ToolchainError("ModelOpt failed", why=message, code="MODELOPT_FAILED")


_KINDS: dict[str, Callable[[str, Mapping[str, Any]], BuilderError]] = {
    "MODEL": _model,
    "WEIGHTS": _weights,
    "TOKENIZER": _tokenizer,
    "TEXT": _text,
    "MEMORY": _memory,
    "DISK": _disk,
    "NOT_FINITE": _not_finite,
    "RECIPE": _recipe,
    "DIFFERENT": _different,
    "HEAD": _head,
    "STAGES": _stages,
    "CALIBRATE": _calibrate,
    "EXPORT": export_unsupported,
}

"""Quantise one model: the job comes as JSON on standard input, what is done goes as JSON lines to standard output."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from builder.checkpoint.modelopt.configs import DECODERS, quantization_config

_BESIDE = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
)
_NOT_PARTS = ("quant_cfg.json",)


class Failure(Exception):
    """What the parent turns into its own error; `kind` is one that it knows."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main() -> int:
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the libraries print to standard output: that is for the parent alone

    def tell(**what: Any) -> None:
        told.write(json.dumps(what) + "\n")
        told.flush()

    job = json.load(sys.stdin)
    try:
        tell(facts=_quantize(job, lambda count: tell(texts=count)))
    except Failure as failure:
        tell(error=failure.kind, message=str(failure))
        return 1
    except MemoryError as error:
        tell(error="MEMORY", message=str(error) or "no memory was left")
        return 1
    return 0


def _quantize(job: dict[str, Any], advance: Any) -> dict[str, Any]:
    import modelopt
    import modelopt.torch.quantization as mtq
    import torch
    import transformers

    started = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(job["seed"])
    model, tokenizer = _load(job, device)
    config = _recipe(job["modelopt_recipe"]) if job["modelopt_recipe"] else quantization_config(mtq, job)

    def calibrate(model: Any) -> None:
        size, texts = job["batch_size"], job["texts"]
        for first in range(0, len(texts), size):
            batch = tokenizer(
                texts[first : first + size],
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=job["max_length"],
            ).to(device)
            with torch.no_grad():
                model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
            advance(len(texts[first : first + size]))

    try:
        model = mtq.quantize(model, config, forward_loop=calibrate)
        _export(model, job)
    except torch.OutOfMemoryError as error:
        raise Failure("MEMORY", str(error)) from error
    _check_scales(Path(job["out"]))
    return {
        "modelopt": modelopt.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "texts": len(job["texts"]),
        "seconds": round(time.monotonic() - started, 1),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _load(job: dict[str, Any], device: str) -> tuple[Any, Any]:
    """Safetensors only, no code of the repository, nothing downloaded."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    safe = {"trust_remote_code": False, "local_files_only": True}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            job["source"], dtype=getattr(torch, job["dtype"]), use_safetensors=True, device_map=device, **safe
        )
        model.eval()
        tokenizer = AutoTokenizer.from_pretrained(job["source"], padding_side="left", **safe)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise Failure("MODEL", str(error)) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return model, tokenizer


def _recipe(path: str) -> dict[str, Any]:
    """A ModelOpt recipe (YAML) for post-training quantisation."""
    from modelopt.recipe import load_recipe

    try:
        recipe = load_recipe(Path(path))
        config: dict[str, Any] = recipe.quantize.model_dump(exclude_unset=True)
    except Exception as error:
        raise Failure("RECIPE", f"{path}: {error}") from error
    return config


def _export(model: Any, job: dict[str, Any]) -> None:
    import torch
    from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint

    out = Path(job["out"])
    if job["export_format"] == "hf":
        export_hf_checkpoint(model, export_dir=out)
        for pattern in _BESIDE:
            for file in Path(job["source"]).glob(pattern):
                if not (out / file.name).exists():
                    shutil.copyfile(file, out / file.name)
        return
    try:
        with torch.inference_mode():
            export_tensorrt_llm_checkpoint(
                model,
                DECODERS.get(job["model_type"], job["model_type"]),
                getattr(torch, job["dtype"]),
                export_dir=out,
                inference_tensor_parallel=job["tp"],
                inference_pipeline_parallel=job["pp"],
            )
    except (
        NotImplementedError,
        AssertionError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
    ) as error:
        raise Failure("EXPORT_UNSUPPORTED", f"{type(error).__name__}: {error}") from error
    for name in _NOT_PARTS:
        (out / name).unlink(missing_ok=True)


def _check_scales(out: Path) -> None:
    import torch
    from safetensors import safe_open

    for file in sorted(out.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it isn't a mapping
                if "scal" not in name.rsplit(".", 1)[-1]:
                    continue
                values = tensors.get_tensor(name).float()
                if not (torch.isfinite(values).all() and (values >= 0).all()):
                    raise Failure("NOT_FINITE", f"{name} in {file.name}")


if __name__ == "__main__":
    sys.exit(main())

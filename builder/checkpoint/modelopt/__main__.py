"""The worker: quantise one model. What it is told, and what it says, is in the package's docstring."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder.checkpoint.modelopt.calibration import Batch, batches, run_batches
from builder.checkpoint.modelopt.configs import passes, quantization_config
from builder.checkpoint.modelopt.exporting import check_format, export_hugging_face, export_ranks
from builder.checkpoint.modelopt.failure import failure_of
from builder.checkpoint.modelopt.loading import load_model, load_tokenizer
from builder.checkpoint.modelopt.recipes import recipe_config

_PR_SET_PDEATHSIG = 1


def main() -> int:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the libraries print to standard output, and it is for the parent alone
    doing = "load"

    def tell(**news: Any) -> None:
        nonlocal doing
        doing = news.get("doing", doing)
        channel.write(json.dumps(news) + "\n")
        channel.flush()

    job = json.load(sys.stdin)
    die_with(job["parent"])
    try:
        tell(facts=quantize(job, tell))
    except Exception as error:  # whatever it is, it goes to the parent in one of the kinds that it knows
        traceback.print_exc()
        failure = failure_of(error, doing)
        tell(error=failure.kind, message=str(failure), doing=doing)
        return 1
    return 0


def die_with(parent: int) -> None:
    """The kernel ends this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def quantize(job: dict[str, Any], tell: Callable[..., None]) -> dict[str, Any]:
    """Do the job; returns facts: versions, device, texts, tokens, seconds and peak memory. What is cheap to find out
    comes first."""
    started = time.monotonic()
    tell(doing="load")
    import modelopt.torch.quantization as mtq
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(job["seed"])
    if device == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    recipe = job["modelopt_recipe"]
    config = recipe_config(Path(recipe)) if recipe else quantization_config(mtq, job)
    made = _batches(job)
    model = load_model(job["source"], job["dtype"], device)

    tell(doing="calibrate", passes=passes(config.get("algorithm")))

    def calibrate(model: Any) -> None:
        run_batches(model, made, lambda count: tell(texts=count))

    model = mtq.quantize(model, {**config, "algorithm": None})
    check_format(model, job)
    model = mtq.calibrate(model, config.get("algorithm"), forward_loop=calibrate if made else None)

    tell(doing="export")
    export = export_hugging_face if job["export_format"] == "hf" else export_ranks
    export(model, job, Path(job["out"]))
    return {
        **_versions(),
        **_device(device),
        "texts": sum(len(ids) for ids, _ in made),
        "tokens": sum(int(mask.sum()) for _, mask in made),
        "seconds": round(time.monotonic() - started, 1),
        "peak_memory_bytes": peak_memory_bytes(),
    }


def peak_memory_bytes() -> int:
    """The most memory that this process had. getrusage would count what the parent had when it started this one."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _batches(job: dict[str, Any]) -> list[Batch]:
    if not job["texts"]:
        return []
    tokenizer = load_tokenizer(job["source"])
    return batches(tokenizer, job["texts"], job["batch_size"], job["max_length"], job["vocab_size"])


def _versions() -> dict[str, str]:
    import modelopt
    import torch
    import transformers

    return {
        "modelopt": modelopt.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _device(device: str) -> dict[str, Any]:
    import torch

    if device == "cpu":
        return {"device": "cpu"}
    gpus = range(torch.cuda.device_count())
    return {
        "device": torch.cuda.get_device_name(),
        "peak_gpu_memory_bytes": sum(torch.cuda.max_memory_allocated(number) for number in gpus),
    }


if __name__ == "__main__":
    sys.exit(main())

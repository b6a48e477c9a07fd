"""Quantisation by NVIDIA's ModelOpt, in a process of its own.

The child (`python -m builder.checkpoint.modelopt`) is told the job as JSON on its standard input, and tells what it
does as JSON lines on its standard output. It gets no secrets and no network; its memory is gone when it ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from builder.errors import BuilderError, HostError, SourceError, ToolchainError, disk_errors
from builder.model.spec import ModelSpec
from builder.store.digests import Advance, hash_file, ignore_progress
from builder.store.local import Workspace

Finish = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes config.json of what ModelOpt wrote into it."""

_NEEDED = ("modelopt", "torch", "transformers")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_TAIL = 4000


@dataclass(frozen=True)
class Quantization:
    """Everything that shapes the output. `precision` is the catalog's name; `export_format` "tensorrt_llm" or "hf"."""

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


def require_modelopt(wanted: str | None = None) -> str:
    """The installed version of ModelOpt. HostError MODELOPT_MISSING, or MODELOPT_VERSION if it isn't `wanted`."""
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
    return found


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

    `advance` is told calibration texts as they are run. Returns facts: versions, device, seconds, peak memory.

    HostError if the library isn't there or memory runs out, ToolchainError for what the library can't do, SourceError
    for a model or texts that it can't read. Nothing runs on after the call, however it ends.
    """
    require_modelopt()
    if not texts or not any(text.strip() for text in texts):
        raise SourceError(
            "there is no text to measure activations with", hint="see calibration.dataset", code="TEXT_EMPTY"
        )
    request = {
        **asdict(job),
        "modelopt_recipe": str(job.modelopt_recipe) if job.modelopt_recipe else None,
        "architecture": spec.architecture,
        "model_type": spec.model_type,
        "source": str(source),
        "out": str(out.path),
        "texts": list(texts),
    }
    facts = _run(request, advance)
    with disk_errors(out.path):
        config = out.path / "config.json"
        if finish is not None and job.export_format == "tensorrt_llm":
            made = finish(json.loads(config.read_text()))
            config.write_text(json.dumps(made, indent=2, allow_nan=False) + "\n")
        for file in sorted(out.path.rglob("*")):
            if file.is_file():
                out.record(file.relative_to(out.path).as_posix(), hash_file(file))
    return facts


def _run(request: Mapping[str, Any], advance: Advance) -> dict[str, Any]:
    command = [sys.executable, "-m", "builder.checkpoint.modelopt"]
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _OFFLINE
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            return _talk(child, request, advance, errors)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _talk(
    child: subprocess.Popen[bytes], request: Mapping[str, Any], advance: Advance, errors: IO[bytes]
) -> dict[str, Any]:
    if child.stdin is None or child.stdout is None:
        raise AssertionError
    try:
        child.stdin.write(json.dumps(request).encode())
        child.stdin.close()
    except BrokenPipeError:
        pass  # it says why on its way out
    facts: dict[str, Any] | None = None
    for line in child.stdout:
        try:
            told = json.loads(line)
        except ValueError:
            continue  # the libraries print what they like
        match told:
            case {"texts": int(count)}:
                advance(count)
            case {"facts": dict(facts)}:
                pass
            case {"error": str(kind), "message": str(message)}:
                raise _error(kind, message, request)
    status = child.wait()
    if facts is not None and status == 0:
        return facts
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL))
    tail = errors.read().decode(errors="replace").strip().splitlines()
    if status == -signal.SIGKILL:
        raise HostError(
            "quantising was killed",
            why="most likely the machine ran out of memory: the whole model is in memory, and its activations",
            hint="quantise on a machine with more memory, or with fewer or shorter calibration texts",
            code="OUT_OF_MEMORY",
        )
    raise ToolchainError(
        "ModelOpt failed", why=tail[-1] if tail else f"it ended with status {status}", code="MODELOPT_FAILED"
    )


def _error(kind: str, message: str, request: Mapping[str, Any]) -> BuilderError:
    if kind == "MODEL":
        return SourceError(
            "ModelOpt can't load the model", where=request["source"], why=message, code="MODEL_UNREADABLE"
        )
    if kind == "MEMORY":
        return HostError(
            "memory ran out while quantising",
            why=message,
            hint="use a larger machine, a smaller calibration.batch_size or shorter calibration.max_length",
            code="OUT_OF_MEMORY",
        )
    hints = {
        "EXPORT_UNSUPPORTED": "use flow: pytorch, whose checkpoints the library exports for every family, or the "
        "toolchain's own quantize.py (precision.quantizer: toolchain)",
        "NOT_FINITE": "calibrate with other texts, or choose another precision",
        "RECIPE": "see modelopt_recipes in the library for examples",
    }
    titles = {
        "EXPORT_UNSUPPORTED": f"ModelOpt doesn't export {request['architecture']} for TensorRT-LLM's engines",
        "NOT_FINITE": "quantising gave scales that aren't finite numbers above 0",
        "RECIPE": "the ModelOpt recipe can't be used",
    }
    code = {"NOT_FINITE": "CALIBRATION_NOT_FINITE", "RECIPE": "MODELOPT_RECIPE"}.get(kind, kind)
    return ToolchainError(titles.get(kind, "ModelOpt failed"), why=message, hint=hints.get(kind), code=code)


def _die_with_parent() -> None:
    """In the child: the kernel ends it when this process ends, however that happens."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)

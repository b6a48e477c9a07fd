"""The process that quantises, played by small programs: what it gets, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from builder.checkpoint.modelopt.child import environment, run
from builder.errors import BuilderError, HostError, RecipeError, SourceError, ToolchainError

JOB: dict[str, Any] = {
    "texts": ["one", "two", "three", "four"],
    "architecture": "LlamaForCausalLM",
    "precision": "fp8",
    "export_format": "tensorrt_llm",
    "dtype": "float16",
    "batch_size": 2,
    "max_length": 512,
    "model_bytes": 3_000_000_000,
    "source": "/models/source",
    "out": "/store/work",
    "modelopt_recipe": "/recipes/recipe.yaml",
}


def played(program: str, job: dict[str, Any] = JOB, **environ: str) -> tuple[dict[str, Any], list[int]]:
    """Run a job with a program in the worker's place; returns its facts and what progress was told."""
    told: list[int] = []
    path = {"PATH": os.environ["PATH"]}
    facts = run(job, told.append, [sys.executable, "-c", f"import json, os, sys, time\n{program}"], path | environ)
    return facts, told


def gone(process: int) -> bool:
    """Whether a process has ended; a little time is given, as signals take theirs."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # nobody has asked for its status, as may be with a child of a child
            return True
        time.sleep(0.05)
    return False


def test_the_job_comes_whole_with_who_its_parent_is() -> None:
    facts, _ = played('print(json.dumps({"facts": json.load(sys.stdin)}))')
    assert facts == {**JOB, "parent": os.getpid()}


def test_a_job_of_many_texts_comes_whole() -> None:
    job = {**JOB, "texts": ["a text of some words " * 100] * 2000}
    facts, _ = played('print(json.dumps({"facts": {"texts": len(json.load(sys.stdin)["texts"])}}))', job)
    assert facts == {"texts": 2000}


def test_secrets_stay_here_and_the_network_is_off() -> None:
    facts, _ = played(
        'print(json.dumps({"facts": dict(os.environ)}))',
        HF_TOKEN="hf_secret",
        AWS_SECRET_ACCESS_KEY="secret",
        HTTPS_PROXY="http://user:secret@proxy",
        CUDA_VISIBLE_DEVICES="1",
        PYTHONPATH="/somewhere/else",
    )
    assert "secret" not in json.dumps(facts)
    assert facts["CUDA_VISIBLE_DEVICES"] == "1"
    assert (facts["HF_HUB_OFFLINE"], facts["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"} & facts.keys()


def test_the_worker_finds_the_modules_that_are_here_and_none_of_the_folder_we_are_in() -> None:
    paths = environment({})["PYTHONPATH"].split(os.pathsep)
    assert all(Path(path).is_absolute() for path in paths)
    assert str(Path(__file__).parents[3]) in paths
    facts, _ = played('print(json.dumps({"facts": {"cwd": os.getcwd(), "files": os.listdir()}}))')
    assert facts["files"] == []
    assert not Path(facts["cwd"]).exists()


def test_progress_is_that_of_all_passes_together() -> None:
    news = [{"passes": 2}, *[{"texts": 2}] * 4]
    _, told = played(f'for news in {news}: print(json.dumps(news))\nprint(json.dumps({{"facts": {{}}}}))')
    assert told == [1, 1, 1, 1]


@pytest.mark.parametrize("batches", [1, 9])
def test_progress_ends_with_all_texts_whatever_was_told(batches: int) -> None:
    news = [{"texts": 1}] * batches
    _, told = played(f'for news in {news}: print(json.dumps(news))\nprint(json.dumps({{"facts": {{}}}}))')
    assert sum(told) == 4


def test_lines_that_are_no_news_are_passed_over() -> None:
    facts, _ = played("""
print("Inserted 756 quantizers")
print("[1, 2")
print('{"something": "new"}')
print('{"facts": {"device": "cpu"}}')""")
    assert facts == {"device": "cpu"}


@pytest.mark.parametrize(
    ("kind", "error", "code", "words"),
    [
        ("MODEL", SourceError, "MODEL_UNREADABLE", "pickle files are never loaded"),
        ("WEIGHTS", SourceError, "WEIGHTS_NOT_FINITE", "/models/source"),
        ("TOKENIZER", SourceError, "TOKENIZER_UNUSABLE", "tokenizer's files beside the weights"),
        ("TEXT", SourceError, "TEXT_EMPTY", "calibration.dataset"),
        ("MEMORY", HostError, "OUT_OF_MEMORY", "3.0 GB as float16"),
        ("DISK", HostError, "DISK_FULL", "/store/work"),
        ("NOT_FINITE", ToolchainError, "CALIBRATION_NOT_FINITE", "precision.activations: bf16"),
        ("RECIPE", RecipeError, "MODELOPT_RECIPE", "/recipes/recipe.yaml"),
        ("DIFFERENT", RecipeError, "MODELOPT_RECIPE_DIFFERENT", "precision.weights: fp8"),
        ("STAGES", RecipeError, "MIXED_STAGES", "tensor parallelism"),
        ("HEAD", ToolchainError, "HEAD_NOT_QUANTIZED", "quantize_lm_head"),
        ("CALIBRATE", ToolchainError, "CALIBRATION_FAILED", "another precision"),
        ("EXPORT", ToolchainError, "EXPORT_UNSUPPORTED", "flow: pytorch"),
        ("SOMETHING", ToolchainError, "MODELOPT_FAILED", "ModelOpt failed"),
    ],
)
def test_every_kind_of_failure_has_its_error(kind: str, error: type[BuilderError], code: str, words: str) -> None:
    with pytest.raises(error) as caught:
        played(f'print(json.dumps({{"error": "{kind}", "message": "the reason"}}))\nsys.exit(1)')
    assert caught.value.code == code
    assert "the reason" in (caught.value.why or "")
    assert words in caught.value.render()


def test_a_job_without_a_recipe_that_came_out_otherwise_is_no_fault_of_a_recipe() -> None:
    with pytest.raises(ToolchainError) as caught:
        played('print(json.dumps({"error": "DIFFERENT", "message": "INT8"}))', {**JOB, "modelopt_recipe": None})
    assert caught.value.code == "QUANTIZED_DIFFERENTLY"


def test_a_killed_worker_has_run_out_of_memory() -> None:
    with pytest.raises(HostError, match="memory ran out") as caught:
        played("os.kill(os.getpid(), 9)")
    assert caught.value.code == "OUT_OF_MEMORY"
    assert "The weights alone take 3.0 GB as float16" in (caught.value.why or "")
    assert "2 texts of 512 tokens" in (caught.value.why or "")


def test_a_crash_is_told_with_the_last_that_was_said() -> None:
    with pytest.raises(ToolchainError) as caught:
        played('print("a line", file=sys.stderr)\nraise RuntimeError("a kernel is missing")')
    assert caught.value.code == "MODELOPT_FAILED"
    assert caught.value.why == "it ended with status 1: RuntimeError: a kernel is missing"


def test_a_crash_of_a_library_is_told_by_its_signal() -> None:
    with pytest.raises(ToolchainError) as caught:
        played("os.kill(os.getpid(), 11)")
    assert caught.value.why == "it ended by SIGSEGV"


def test_an_end_without_facts_is_no_success() -> None:
    with pytest.raises(ToolchainError, match="before it was done"):
        played('print(json.dumps({"texts": 4}))')


def test_facts_of_a_worker_that_then_failed_dont_count() -> None:
    with pytest.raises(ToolchainError, match="before it was done"):
        played('print(json.dumps({"facts": {}}))\nsys.exit(3)')


def test_a_worker_that_talks_without_end_doesnt_stop_and_only_its_end_is_kept() -> None:
    with pytest.raises(ToolchainError) as caught:
        played('for number in range(200_000): print("line", number, file=sys.stderr)\nsys.exit(1)')
    assert caught.value.why == "it ended with status 1: line 199999"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_no_process(tmp_path: Path, interruption: type[BaseException]) -> None:
    """Neither the worker, nor what it started."""
    note = tmp_path / "processes"
    program = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(note)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
print(json.dumps({{"texts": 1}}), flush=True)
time.sleep(600)"""

    def interrupt(_: int) -> None:
        raise interruption

    with pytest.raises(interruption):
        run(JOB, interrupt, [sys.executable, "-c", f"import json, os, sys, time\n{program}"], dict(os.environ))
    processes = [int(word) for word in note.read_text().split()]
    assert len(processes) == 2
    assert all(gone(process) for process in processes)


def test_nothing_is_left_of_what_a_worker_started_when_it_is_done(tmp_path: Path) -> None:
    note = tmp_path / "process"
    facts, _ = played(f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
open({str(note)!r}, "w").write(str(child.pid))
print(json.dumps({{"facts": {{}}}}))""")
    assert facts == {}
    assert gone(int(note.read_text()))


def test_ctrl_c_of_the_terminal_goes_to_this_process_alone() -> None:
    facts, _ = played('print(json.dumps({"facts": {"session": os.getsid(0), "group": os.getpgid(0)}}))')
    assert facts["session"] == facts["group"] != os.getsid(0)


def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    """A parent that is killed can't tidy up."""
    note = tmp_path / "process"
    worker = tmp_path / "worker.py"
    worker.write_text(f"""
import json, os, sys, time
from builder.checkpoint.modelopt.__main__ import die_with
die_with(json.load(sys.stdin)["parent"])
open({str(note)!r}, "w").write(str(os.getpid()))
time.sleep(600)""")
    parent = os.spawnv(
        os.P_NOWAIT,
        sys.executable,
        [
            sys.executable,
            "-c",
            "import sys\nfrom builder.checkpoint.modelopt.child import run\n"
            f"run({{'texts': []}}, print, [sys.executable, {str(worker)!r}])",
        ],
    )
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process = int(note.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert gone(process)

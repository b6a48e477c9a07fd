"""Checks over a written model repository that need no server, each a small function over the parsed configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig


@dataclass(frozen=True)
class LintFinding:
    """Something that Triton would refuse, or accept and then fail at. `where` is relative to the repository."""

    code: str
    where: str
    message: str


Configs = Mapping[str, ModelConfig]
Findings = Iterator[LintFinding]


def lint_repository(models: Path, engine_max_batch_size: int) -> list[LintFinding]:
    """All findings over the folder `models`; none means that it is sound."""
    findings = list(_stray_entries(models))
    configs: dict[str, ModelConfig] = {}
    for path in sorted(models.glob("*/config.pbtxt")):
        name = path.parent.name
        text = path.read_text()
        if "${" in text:
            findings.append(LintFinding("UNFILLED_PLACEHOLDER", f"{name}/config.pbtxt", "a ${…} was never filled in"))
        try:
            configs[name] = text_format.Parse(text, ModelConfig())
        except text_format.ParseError as error:
            findings.append(LintFinding("CONFIG_UNREADABLE", f"{name}/config.pbtxt", str(error)))
    for rule in _RULES:
        findings += rule(configs)
    for name, config in configs.items():
        if config.max_batch_size > engine_max_batch_size:
            message = f"max_batch_size is {config.max_batch_size}, the engine was built for {engine_max_batch_size}"
            findings.append(LintFinding("TRITON_BATCH_GT_ENGINE", name, message))
    return findings


def _stray_entries(models: Path) -> Findings:
    """Triton takes every folder for a model and every numeric one in it for a version."""
    for entry in sorted(models.iterdir()):
        if not (entry / "config.pbtxt").is_file():
            yield LintFinding("REPO_STRAY_ENTRY", entry.name, "not a model: it has no config.pbtxt")
            continue
        versions = [each for each in entry.iterdir() if each.is_dir()]
        for each in versions:
            if not each.name.isdecimal():
                yield LintFinding(
                    "REPO_STRAY_ENTRY", f"{entry.name}/{each.name}", "not a version: its name isn't a number"
                )
        if not any(each.name.isdecimal() for each in versions):
            yield LintFinding("NO_VERSION", entry.name, "it has no version folder")


def _names(configs: Configs) -> Findings:
    for name, config in configs.items():
        if config.name != name:
            yield LintFinding("NAME_MISMATCH", name, f"the configuration calls it {config.name!r}")


def _duplicates(configs: Configs) -> Findings:
    for name, config in configs.items():
        for kind, tensors in (("input", config.input), ("output", config.output)):
            for tensor, count in Counter(tensor.name for tensor in tensors).items():
                if count > 1:
                    yield LintFinding("DUPLICATE_TENSOR", name, f"the {kind} {tensor} is declared {count} times")


def _decoupled(configs: Configs) -> Findings:
    decoupled = {
        name: configs[name].model_transaction_policy.decoupled
        for name in ("tensorrt_llm", "tensorrt_llm_bls")
        if name in configs
    }
    if len(set(decoupled.values())) > 1:
        yield LintFinding("DECOUPLED_DIFFERS", "tensorrt_llm_bls", f"decoupled must be equal: {decoupled}")


def _ensembles(configs: Configs) -> Findings:
    for name, config in configs.items():
        if config.platform == "ensemble":
            yield from _ensemble(name, config, configs)


def _ensemble(name: str, config: ModelConfig, configs: Configs) -> Findings:
    types = {tensor.name: tensor.data_type for tensor in config.input}
    produced = Counter(types.keys())
    used: set[str] = set()
    for step in config.ensemble_scheduling.step:
        if step.model_name not in configs:
            yield LintFinding("UNKNOWN_STEP", name, f"there is no model {step.model_name}")
            continue
        model = configs[step.model_name]
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for kind, known, mapped in (("input", inputs, step.input_map), ("output", outputs, step.output_map)):
            for tensor in sorted(mapped.keys() - known.keys()):
                yield LintFinding("UNKNOWN_TENSOR", name, f"{step.model_name} has no {kind} {tensor}")
        for tensor, declared in sorted(inputs.items()):
            if not declared.optional and tensor not in step.input_map:
                yield LintFinding("UNMAPPED_INPUT", name, f"{step.model_name} needs its input {tensor}")
        for tensor, internal in sorted(step.input_map.items()):
            used.add(internal)
            if internal not in produced:
                yield LintFinding(
                    "NOT_PRODUCED", name, f"{internal}, an input of {step.model_name}, comes from nowhere"
                )
            elif tensor in inputs and internal in types and inputs[tensor].data_type != types[internal]:
                yield LintFinding("TYPES_DIFFER", name, f"{internal} isn't of the type of {step.model_name}'s {tensor}")
        for tensor, internal in sorted(step.output_map.items()):
            produced[internal] += 1
            if tensor in outputs:
                types[internal] = outputs[tensor].data_type
    for tensor in sorted(each.name for each in config.input if each.name not in used):
        yield LintFinding("UNUSED_INPUT", name, f"no step uses the input {tensor}")
    for output in config.output:
        if output.name not in produced:
            yield LintFinding("NOT_PRODUCED", name, f"no step makes the output {output.name}")
        elif types.get(output.name, output.data_type) != output.data_type:
            yield LintFinding("TYPES_DIFFER", name, f"the output {output.name} isn't of the type of the step's")
    for tensor, count in sorted(produced.items()):
        if count > 1:
            yield LintFinding("PRODUCED_TWICE", name, f"{tensor} comes from {count} places")


_RULES: tuple[Callable[[Configs], Findings], ...] = (_names, _duplicates, _decoupled, _ensembles)

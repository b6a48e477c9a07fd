"""`engine-builder explain UNIT`: every value and where it comes from, memory, commands, and what there is to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from builder.build.machine import obstacle
from builder.build.preparation import prepare
from builder.cli.facts import fact_lines
from builder.cli.options import format_option, frozen_option, human_bytes, print_json, recipe_option, store_option
from builder.cli.progress import Progress
from builder.errors import PlanRefused
from builder.plan import PlannedUnit, Unit, match_units, stage_states
from builder.plan.memory import FORMULAS, host_estimate, legal_estimate, proposals, sizes
from builder.store import LocalStore, default_store_root
from builder.trtllm.commands import commands


@click.command()
@click.argument("unit")
@recipe_option
@store_option
@frozen_option
@format_option
def command(unit: str, recipe: Path, store: Path | None, frozen: bool, form: str) -> int:
    """Show every value of the units that UNIT (an id or a glob) names, with its origin."""
    local = LocalStore(store or default_store_root())
    matched = match_units(prepare(recipe, local, frozen, Progress()), [unit])
    explained = [_explain(item, local) for item in matched]
    if form == "json":
        print_json({"schema": 1, "units": explained})
    else:
        for entry in explained:
            _show(entry)
    return PlanRefused.exit_code if any(item.refused for item in matched) else 0


def _explain(planned: PlannedUnit, store: LocalStore) -> dict[str, Any]:
    unit = planned.unit
    states = stage_states(unit.id, planned.stages, store)
    memory, host, files = legal_estimate(unit), host_estimate(unit), sizes(unit)
    return {
        "id": unit.id,
        "obstacle": obstacle(planned),
        "values": {name: {"value": value, "origin": origin} for name, value, origin in _values(unit)},
        "memory": {**asdict(memory), "formulas": dict(FORMULAS)} if memory else None,
        "proposals": asdict(proposals(unit)),
        "host": asdict(host) if host else None,
        "sizes": files.to_json() if files else None,
        "commands": [asdict(one) for one in commands(unit)],
        "stages": {
            name: {
                "derivation": planned.stages[name].derivation,
                "inputs": planned.stages[name].inputs,
                "state": "up to date" if state.artifact else f"to do: {state.reason}",
                "artifact": str(state.artifact.root) if state.artifact else None,
                "facts": state.artifact.facts if state.artifact else None,
            }
            for name, state in states.items()
        },
        "findings": [vars(finding) for finding in planned.findings],
    }


def _values(unit: Unit) -> Iterator[tuple[str, Any, str]]:
    content, snapshot = unit.recipe.content, unit.lock.snapshot
    lock = unit.recipe.lock_file
    yield "version", content.version, str(unit.recipe.place("version"))
    yield "model.source", content.model.source, str(unit.recipe.place("model", "source"))
    yield "model.revision", snapshot.revision, str(lock)
    yield "model.architecture", unit.spec.architecture, f"config.json in {lock}"
    yield "model.trust_remote_code", content.model.trust_remote_code, _origin(unit, "model", "trust_remote_code")
    yield "sku", unit.gpu.name, str(unit.recipe.place("sku", target=unit.target))
    gpus = content.targets[unit.target].gpus
    yield "gpus", unit.gpus, str(unit.recipe.place("gpus", target=unit.target)) if gpus else "one for each rank"
    toolchain_origin = "units of cpu" if unit.gpu.is_cpu else _origin(unit, "toolchain")
    yield "toolchain", unit.toolchain.name, toolchain_origin
    for path, value in _flatten(unit.settings.model_dump(exclude={"toolchain"})):
        resolved = _RESOLVED.get(path)
        if resolved and value in (None, "auto"):
            yield ".".join(path), resolved[0](unit), resolved[1]
        elif value is not None and value != ():
            yield ".".join(path), value, _origin(unit, *path)


_RESOLVED: Mapping[tuple[str, ...], tuple[Callable[[Unit], Any], str]] = {
    ("limits", "max_input_len"): (lambda unit: unit.max_input_len, "max_seq_len - 1"),
    ("limits", "max_seq_len"): (lambda unit: unit.max_seq_len, "max_position_embeddings of the model"),
    ("precision", "kv_cache"): (lambda unit: unit.kv_precision.name, "auto: as the activations, or as published"),
    ("precision", "activations"): (lambda unit: unit.dtype, "auto: as the source has it"),
    ("serving", "served_model_name"): (lambda unit: unit.served_model_name, "the recipe's name"),
    ("serving", "enable_kv_cache_reuse"): (lambda unit: unit.kv_cache_reuse, "on where the engine can"),
}
"""Values that a recipe may leave open, and what they become."""


def _origin(unit: Unit, *path: str) -> str:
    places = unit.recipe.document.places
    override: tuple[str | int, ...] = ("targets", unit.target, *path)
    for candidate in (override, path):
        if candidate in places:
            return str(places[candidate])
    return "default"


def _flatten(value: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flatten(inner, (*prefix, name))
        else:
            yield (*prefix, name), inner


def _show(entry: dict[str, Any]) -> None:
    click.echo(f"{entry['id']}\n\nvalues")
    width = max(len(name) for name in entry["values"])
    for name, value in entry["values"].items():
        click.echo(f"  {name:<{width}}  {value['value']!s:<30}  {value['origin']}")
    if memory := entry["memory"]:
        _show_memory(memory)
    _show_proposals(entry["proposals"])
    if host := entry["host"]:
        click.echo("\nthe machine that builds")
        for step, needs in host.items():
            if needs:
                click.echo(f"  {step:<24}" + _needs(needs))
    if files := entry["sizes"]:
        click.echo(
            f"  {'sizes':<24}download {human_bytes(files['download_bytes'])}, "
            f"checkpoint {human_bytes(files['checkpoint_bytes'])}, image {human_bytes(files['image_bytes'])}"
        )
    click.echo("\ncommands")
    for one in entry["commands"]:
        click.echo(
            f"  {one['stage']:<11}{' '.join(one['argv'])}"
            + (f"\n             in {one['image']}" if one["image"] else "")
        )
    click.echo("\nstages")
    for name, stage in entry["stages"].items():
        click.echo(f"  {name:<11}{stage['derivation'][:12]}  {stage['state']}")
        for line in fact_lines(stage["facts"] or {}):
            click.echo(f"{'':<27}{line}")
    click.echo(f"\nthis machine: {entry['obstacle'] or 'can build it'}")
    for finding in entry["findings"]:
        waived = f" (waived: {finding['waived']})" if finding["waived"] else ""
        click.echo(f"{finding['severity']} {finding['code']}: {finding['message']} ({finding['where']}){waived}")


def _show_memory(memory: Mapping[str, Any]) -> None:
    click.echo("\nmemory of the fullest rank")
    click.echo(f"  {'weights':<24}{human_bytes(memory['weights_bytes'])}")
    click.echo(f"  {'activations':<24}{_bytes(memory['activations'])}")
    click.echo(f"  {'logits':<24}{human_bytes(memory['logits_bytes'])}")
    if memory["all_reduce_bytes"]:
        click.echo(f"  {'all-reduce':<24}{human_bytes(memory['all_reduce_bytes'])}")
    click.echo(f"  {'CUDA and runtime':<24}{_bytes(memory['overhead'])}")
    click.echo(f"  {'KV cache per token':<24}{memory['kv_bytes_per_token']:,} bytes")
    if memory["kv_tokens"] is None:
        return
    click.echo(f"  {'KV cache':<24}{_bytes(memory['kv_pool'])} of {human_bytes(memory['gpu_bytes'])}")
    click.echo(f"  {'tokens that fit':<24}{_count(memory['kv_tokens'])}")
    click.echo(f"  {'full sequences that fit':<24}{_count(memory['sequences'])}")


def _show_proposals(found: Mapping[str, Any]) -> None:
    words = {
        "tensor": "smallest parallelism.tensor",
        "max_batch_size": "largest batch of full sequences",
        "max_num_tokens": "largest max_num_tokens",
    }
    shown = {words[name]: value for name, value in found.items() if name in words and value is not None}
    if not shown:
        return
    click.echo("\nwhat leaves room")
    for name, value in shown.items():
        click.echo(f"  {name:<34}{value:,}")
    if found["precisions"]:
        click.echo(f"  {'precisions':<34}{', '.join(found['precisions'])}")


def _needs(needs: Mapping[str, Any]) -> str:
    gpu = f", GPU memory {_bytes(needs['vram_bytes'])}" if needs["vram_bytes"]["high"] else ""
    return f"main memory {_bytes(needs['ram_bytes'])}{gpu}, disk {human_bytes(needs['disk_bytes'])}"


def _bytes(value: Mapping[str, int]) -> str:
    low, high = human_bytes(value["low"]), human_bytes(value["high"])
    return low if low == high else f"{low} to {high}"


def _count(value: Mapping[str, int]) -> str:
    return f"{value['low']:,} to {value['high']:,}" if value["low"] != value["high"] else f"{value['low']:,}"

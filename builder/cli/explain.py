"""`engine-builder explain UNIT`: every value and where it comes from, memory, and what there is to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from builder.build.machine import obstacle
from builder.build.preparation import prepare
from builder.cli.options import format_option, frozen_option, human_bytes, print_json, recipe_option, store_option
from builder.cli.progress import Progress
from builder.errors import PlanRefused
from builder.plan import PlannedUnit, Unit, legal_estimate, match_units, stage_states
from builder.store import LocalStore, default_store_root


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
    states = stage_states(planned, store)
    memory = legal_estimate(unit)
    return {
        "id": unit.id,
        "obstacle": obstacle(planned),
        "values": {name: {"value": value, "origin": origin} for name, value, origin in _values(unit)},
        "memory": asdict(memory) if memory else None,
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
    yield "sku", unit.gpu.name, str(unit.recipe.place("sku", target=unit.target))
    toolchain_origin = "units of cpu" if unit.gpu.is_cpu else _origin(unit, "toolchain")
    yield "toolchain", unit.toolchain.name, toolchain_origin
    settings = unit.recipe.settings(unit.target).model_dump(exclude={"toolchain"})
    for path, value in _flatten(settings):
        origin = _origin(unit, *path)
        if path == ("limits", "max_input_len") and value is None:
            value, origin = unit.max_input_len, "max_seq_len - 1"
        if path == ("serving", "served_model_name") and value is None:
            value, origin = unit.served_model_name, str(unit.recipe.place("name"))
        yield ".".join(path), value, origin


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
    for name, value in entry["values"].items():
        click.echo(f"  {name:<40}{value['value']!s:<30}  {value['origin']}")
    if memory := entry["memory"]:
        click.echo("\nmemory per rank, before activations")
        click.echo(f"  weights                 {human_bytes(memory['weights_bytes'])}")
        click.echo(f"  KV cache per token      {memory['kv_bytes_per_token']:,} bytes")
        if memory["kv_tokens"] is not None:
            click.echo(f"  KV cache, at most       {memory['kv_tokens']:,} tokens")
    click.echo("\nstages")
    for name, stage in entry["stages"].items():
        click.echo(f"  {name:<11}{stage['derivation'][:12]}  {stage['state']}")
    click.echo(f"\nthis machine: {entry['obstacle'] or 'can build it'}")
    for finding in entry["findings"]:
        click.echo(f"{finding['severity']} {finding['code']}: {finding['message']} ({finding['where']})")

"""`engine-builder verify`: checkpoints against their source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder.build.preparation import model_files, prepare
from builder.build.verification import verify_unit
from builder.checkpoint.verification import verify
from builder.cli.options import format_option, print_json, recipe_option, store_option, unit_option
from builder.cli.progress import Progress
from builder.errors import BuilderError, UsageError, VerificationError, worst
from builder.model.config import load_config, load_generation_config, load_hf_quant_config
from builder.model.spec import ModelSpec
from builder.plan import match_units
from builder.store import LocalStore, default_store_root

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_SHOWN = 20


@click.command()
@recipe_option
@unit_option
@store_option
@click.option("--checkpoint", type=_FOLDER, help="A folder with a checkpoint, made by whatever; needs --source.")
@click.option("--source", type=_FOLDER, help="The Hugging Face model that --checkpoint was made from.")
@format_option
def command(
    recipe: Path, units: tuple[str, ...], store: Path | None, checkpoint: Path | None, source: Path | None, form: str
) -> int:
    """Check the checkpoints of units, or one in a folder: names, shapes, types, and every weight against the source."""
    if checkpoint is not None or source is not None:
        if checkpoint is None or source is None:
            raise UsageError("--checkpoint and --source belong together", hint="give both folders")
        return _folder(checkpoint, source, form)
    local = LocalStore(store or default_store_root())
    progress = Progress()
    results: list[dict[str, Any]] = []
    failures = []
    for item in match_units(prepare(recipe, local, True, progress), units):
        try:
            verified = verify_unit(item, local, model_files(item, local), progress)
        except BuilderError as error:
            click.echo(error.render(), err=True)
            failures.append(error.exit_code)
            continue
        progress.done(item.unit.id, "verify", "failed" if verified.faults else "verified")
        results.append({"id": item.unit.id, "faults": list(verified.faults), **verified.facts})
        if verified.faults:
            failures.append(VerificationError.exit_code)
    if form == "json":
        print_json({"schema": 1, "units": results})
    else:
        for entry in results:
            _show(entry["id"], entry)
    return worst(failures)


def _folder(checkpoint: Path, source: Path, form: str) -> int:
    spec = ModelSpec.from_config(
        load_config(source),
        source / "config.json",
        load_generation_config(source),
        load_hf_quant_config(source),
    )
    report = verify(checkpoint, source, spec)
    entry = {"checkpoint": str(checkpoint), "faults": list(report.faults), **report.to_json()}
    if form == "json":
        print_json({"schema": 1, **entry})
    else:
        _show(str(checkpoint), entry)
    return 0 if report.ok else VerificationError.exit_code


def _show(name: str, entry: dict[str, Any]) -> None:
    faults = entry["faults"]
    click.echo(f"{name}  {f'{len(faults)} faults' if faults else 'verified'}")
    for fault in faults[:_SHOWN]:
        click.echo(f"  {fault}")
    if len(faults) > _SHOWN:
        click.echo(f"  and {len(faults) - _SHOWN} more")

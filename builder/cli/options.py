"""Options that several commands share, and printing in the two formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def recipe_option(command: Command) -> Command:
    return click.option(
        "--recipe",
        type=click.Path(path_type=Path),
        default=Path("recipes"),
        show_default=True,
        help="A recipe, or a folder of recipes.",
    )(command)


def unit_option(command: Command) -> Command:
    return click.option("--unit", "units", multiple=True, metavar="GLOB", help="Select units; may be given again.")(
        command
    )


def store_option(command: Command) -> Command:
    return click.option(
        "--store",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="Where artifacts lie. [default: $ENGINE_BUILDER_STORE or the user's cache folder]",
    )(command)


def registry_option(command: Command) -> Command:
    return click.option(
        "--registry",
        metavar="HOST/REPO|oci:DIR",
        default=None,
        help="Where the release goes; replaces the recipe's publish.repository.",
    )(command)


def frozen_option(command: Command) -> Command:
    return click.option("--frozen", is_flag=True, help="Refuse to pin anything that the lock doesn't hold (for CI).")(
        command
    )


def format_option(command: Command) -> Command:
    return click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)(
        command
    )


def print_json(value: Any) -> None:
    """One line, strict JSON: what reads it is a program."""
    click.echo(json.dumps(value, allow_nan=False, ensure_ascii=False))


def human_bytes(count: int) -> str:
    """256 B, 1.5 kB, 269.1 MB: decimal units, as registries and disks count."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def pull_seconds(size: int, mb_per_s: float) -> int:
    """How long a pull of `size` bytes takes at so many 10^6 bytes a second."""
    return round(size / (mb_per_s * 1_000_000))

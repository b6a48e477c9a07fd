"""The entry point: commands are loaded when they are asked for, so that `--help` is quick; errors become exit codes."""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
from types import FrameType

import click

from builder import __version__
from builder.errors import BuilderError, HostError, Interrupted

COMMANDS = {
    "validate": "Check recipes.",
    "schema": "Print the JSON Schema of recipes, or the recipe reference.",
    "catalog": "Show the facts that plans are made with.",
    "lock": "Pin what recipes name outside: the model's files, base images.",
    "plan": "Show units, their stages, and what is known to fail.",
    "explain": "Show every value of a unit, where it comes from, and what it needs.",
    "build": "Build what isn't built yet.",
    "verify": "Check checkpoints against the models that they were made from.",
    "publish": "Publish built units as a release.",
    "pull": "Fetch a release into a folder.",
    "list": "List the releases of a repository.",
    "inspect": "Show what a release contains.",
    "serve": "Run a release on this machine.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"builder.cli.{name}").command
        gc.freeze()
        gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="engine-builder")
def cli() -> None:
    """From a recipe to TensorRT-LLM engines, served images and published releases."""


def main() -> None:
    """Run the command line and exit with the code that `builder.errors` defines."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; every failure becomes one message on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal has every letter
    try:
        result = cli.main(arguments, prog_name="engine-builder", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except BuilderError as error:
        click.echo(error.render(), err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(Interrupted("interrupted", hint="run the same command again; it continues").render(), err=True)
        return Interrupted.exit_code
    except SystemExit:
        return 0  # click's answer to a reader that went away, as `head` does; nobody is left to be told
    except OSError as error:
        click.echo(HostError(error.strerror or str(error), where=error.filename).render(), err=True)
        return HostError.exit_code
    except Exception as error:
        if os.environ.get("ENGINE_BUILDER_DEBUG"):
            raise
        internal = BuilderError(
            f"{type(error).__name__}: {error}",
            why="this is a mistake in engine-builder",
            hint="run it again with ENGINE_BUILDER_DEBUG=1 and report what it prints",
        )
        click.echo(internal.render(), err=True)
        return internal.exit_code
    return result if isinstance(result, int) else 0


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

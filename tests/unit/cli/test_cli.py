import click
import pytest

from builder.cli.main import COMMANDS, cli, run
from builder.cli.options import human_bytes


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"engine-builder {name}" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name}" in shown for name in COMMANDS)


def test_a_mistake_of_ours_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> click.Command:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(type(cli), "get_command", broken)
    assert run(["plan"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error[INTERNAL]: ZeroDivisionError: oops\n")
    assert "ENGINE_BUILDER_DEBUG=1" in shown


def test_an_interruption_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> click.Command:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(cli), "get_command", interrupted)
    assert run(["plan"]) == 130
    assert "error[INTERRUPTED]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (269_060_552, "269.1 MB"), (70_000_000_000, "70.0 GB")],
)
def test_sizes_are_shown_in_decimal_units(count: int, shown: str) -> None:
    assert human_bytes(count) == shown

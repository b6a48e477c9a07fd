import errno
from pathlib import Path

import pytest

from builder import errors
from builder.errors import BuilderError, HostError, SourceError, disk_errors, worst


def test_an_error_renders_what_where_why_and_what_to_do() -> None:
    error = SourceError("the file is gone", where=Path("a/b"), why="someone took it", hint="bring it back", code="GONE")
    assert error.render() == (
        "error[GONE]: the file is gone\n  where: a/b\n  why: someone took it\n  try: bring it back"
    )
    assert str(error) == "the file is gone"


def test_parts_that_are_absent_are_left_out() -> None:
    assert HostError("no").render() == "error[HOST]: no"


def test_every_class_has_the_exit_code_that_the_readme_lists() -> None:
    classes = [item for item in vars(errors).values() if isinstance(item, type) and item.__module__ == errors.__name__]
    codes = {item.__name__: item.exit_code for item in classes}
    assert codes == {
        "BuilderError": 1,
        "UsageError": 2,
        "RecipeError": 2,
        "PlanRefused": 3,
        "SourceError": 4,
        "ToolchainError": 5,
        "StorageError": 6,
        "VerificationError": 7,
        "HostError": 8,
        "Interrupted": 130,
    }
    assert all(issubclass(item, BuilderError) for item in classes)


@pytest.mark.parametrize(
    ("codes", "code"), [([], 0), ([0, 0], 0), ([3, 4], 4), ([8, 6, 3], 6), ([5, 7], 7), ([1, 7], 1), ([2, 3], 3)]
)
def test_of_several_failures_the_worst_counts(codes: list[int], code: int) -> None:
    assert worst(codes) == code


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "DISK_FULL"), (errno.EDQUOT, "DISK_FULL"), (errno.EROFS, "NOT_WRITABLE")]
)
def test_what_the_disk_refuses_becomes_a_host_error(number: int, code: str) -> None:
    with pytest.raises(HostError) as error, disk_errors(Path("/store")):
        raise OSError(number, "refused")
    assert error.value.code == code


def test_other_errors_of_the_system_pass_through() -> None:
    with pytest.raises(FileNotFoundError), disk_errors(Path("/store")):
        raise FileNotFoundError(errno.ENOENT, "no such file")


def test_words_of_others_look_like_no_error_of_ours_and_command_no_terminal() -> None:
    error = SourceError("the file a\nerror[FAKE]: b\x1b[2J\u202e is gone", why="one\ntwo\r\ud800")
    assert error.render() == (
        "error[SOURCE]: the file a\n    error[FAKE]: b\\x1b[2J\\u202e is gone\n  why: one\n    two\\r\\ud800"
    )


def test_lines_that_are_indented_stay_as_they_are() -> None:
    assert HostError("no", hint="one of:\n       a\n       b").render().endswith("try: one of:\n       a\n       b")


def test_long_parts_are_cut_and_say_how_much_is_left() -> None:
    shown = SourceError("x" * 100_000).render()
    assert shown == f"error[SOURCE]: {'x' * 1000}… (99000 more characters)"

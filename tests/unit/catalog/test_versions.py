import random

import pytest

from builder.catalog.versions import parse
from builder.errors import UsageError

SEEN = ["0.9.0.dev2024022000", "0.9.0", "0.10.0", "0.21.0rc0", "0.21.0", "1.0.0rc6", "1.0.0", "1.0.3.2510", "1.3.0rc27"]


def test_versions_seen_in_the_wild_sort_as_they_were_released() -> None:
    shuffled = random.Random(1).sample(SEEN, len(SEEN))
    assert sorted(shuffled, key=parse) == SEEN


def test_four_part_versions_of_nvidia_are_compared_by_number() -> None:
    assert parse("10.9.0.34") < parse("10.10.0.31") < parse("10.13.3.9")


def test_a_post_release_follows_its_release() -> None:
    assert parse("0.20.0") < parse("0.20.0.post1") < parse("0.21.0rc0")


@pytest.mark.parametrize("word", ["", "latest", "1.2.x", "v1..2"])
def test_what_is_no_version_is_one_clear_error(word: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(word)
    assert error.value.code == "BAD_VERSION"
    assert error.value.exit_code == 2

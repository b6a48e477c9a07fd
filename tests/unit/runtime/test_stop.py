import random

from builder.runtime.stop import StopStrings


def shown(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    stop = StopStrings(stops)
    text = "".join(stop.push(piece) for piece in pieces)
    return text + stop.flush(), stop.stopped


def test_text_ends_before_the_stop_string() -> None:
    assert shown(["."], ["Paris. It is"]) == ("Paris", True)


def test_a_stop_string_is_found_across_pieces() -> None:
    assert shown(["\n\nUser:"], ["Hello", "\n", "\nUs", "er", ": more"]) == ("Hello", True)


def test_what_only_looked_like_a_stop_string_is_shown_in_the_end() -> None:
    assert shown(["\n\nUser:"], ["Hello\n\nUs", "A"]) == ("Hello\n\nUsA", False)
    assert shown(["END"], ["the EN"]) == ("the EN", False)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert shown(["later", "soon"], ["it ends soon, not later"]) == ("it ends ", True)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings([]).push("anything") == "anything"


def test_nothing_follows_a_stop() -> None:
    stop = StopStrings(["x"])
    stop.push("ax")
    assert stop.push("b") + stop.flush() == ""


def test_where_the_pieces_are_cut_makes_no_difference() -> None:
    chance = random.Random(3)
    for _ in range(300):
        text = "".join(chance.choices("ab", k=30))
        stops = ["".join(chance.choices("ab", k=chance.randrange(3, 8))) for _ in range(2)]
        cuts = sorted(chance.choices(range(31), k=6))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, 30], strict=True)]
        found = [text.find(stop) for stop in stops if stop in text]
        # A stop string that ends later may begin earlier; whole text and pieces agree on the one that ends first.
        first_end = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=None)
        begun = [text[:first_end].find(stop) for stop in stops if stop in text[:first_end]] if found else []
        assert shown(stops, list(text)) == (text[: min(begun)] if begun else text, bool(begun))
        assert shown(stops, pieces)[1] == bool(begun)

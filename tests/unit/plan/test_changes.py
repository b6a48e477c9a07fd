"""Changes, grouped over units."""

from builder.plan import Changed, group_changes


def test_one_change_of_several_units_is_told_once_with_what_is_kept() -> None:
    limit = {"checkpoint": (), "engine": ("limits.max_batch_size 64 → 128",), "image": ()}
    units = [Changed(f"unit-{n}", limit, frozenset({"checkpoint"})) for n in range(3)]
    (change,) = group_changes(units)
    assert str(change) == "limits.max_batch_size 64 → 128 changes the engine of 3 units; checkpoints are reused"


def test_only_what_all_units_keep_is_reused() -> None:
    what = {"repository": ("serving.max_queue_size 0 → 5",)}
    units = [
        Changed("one", what, frozenset({"checkpoint", "engine"})),
        Changed("two", what, frozenset({"checkpoint"})),
    ]
    (change,) = group_changes(units)
    assert change.reused == ("checkpoint",)
    assert change.units == ("one", "two")


def test_a_change_that_several_stages_see_names_them() -> None:
    what = "limits.max_seq_len 1 → 2"
    (change,) = group_changes([Changed("one", {"engine": (what,), "repository": (what,)}, frozenset())])
    assert str(change) == f"{what} changes the engine and repository of 1 unit"


def test_nothing_changed_is_nothing_told() -> None:
    assert group_changes([Changed("one", {"engine": ()}, frozenset({"engine"}))]) == []

from builder.lock import PinnedImage, PlatformImage
from builder.plan import difference, key
from tests.unit.plan.plans import RECIPE, MakePlan


def changed_stages(make_plan: MakePlan, unit: int = 0, **changes: object) -> set[str]:
    """The stages of one unit that get another derivation key through a change."""
    before, after = make_plan()[unit], make_plan(**changes)[unit]
    return {name for name in before.stages if before.stages[name].derivation != after.stages[name].derivation}


def test_the_same_words_and_facts_give_the_same_keys(make_plan: MakePlan) -> None:
    assert changed_stages(make_plan) == set()


def test_a_changed_readme_touches_nothing(make_plan: MakePlan) -> None:
    assert changed_stages(make_plan, files={"README.md": "9" * 64}) == set()


def test_changed_weights_touch_checkpoint_engine_and_image(make_plan: MakePlan) -> None:
    assert changed_stages(make_plan, files={"model.safetensors": "9" * 64}) == {"checkpoint", "engine", "image"}


def test_a_changed_tokenizer_touches_repository_and_image_only(make_plan: MakePlan) -> None:
    assert changed_stages(make_plan, files={"tokenizer.json": "9" * 64}) == {"repository", "image"}


def test_generation_defaults_never_touch_the_checkpoint(make_plan: MakePlan) -> None:
    assert changed_stages(make_plan, files={"generation_config.json": "9" * 64}) == {"repository", "image"}


def test_a_batch_limit_never_touches_the_checkpoint(make_plan: MakePlan) -> None:
    text = RECIPE.replace("max_batch_size: 4", "max_batch_size: 5")
    assert changed_stages(make_plan, text=text) == {"engine", "repository", "image"}


def test_a_version_touches_the_image_only(make_plan: MakePlan) -> None:
    assert changed_stages(make_plan, text=RECIPE.replace("version: 1.0.0", "version: 1.0.1")) == {"image"}


def test_another_precision_touches_everything_below_the_repository(make_plan: MakePlan) -> None:
    changed = changed_stages(make_plan, text=RECIPE.replace("bf16", "fp16"))
    assert {"checkpoint", "engine", "image"} <= changed


def test_all_skus_share_the_checkpoint_and_nothing_else(make_plan: MakePlan) -> None:
    cpu, l40s = make_plan()
    same = {name for name in cpu.stages if cpu.stages[name].derivation == l40s.stages[name].derivation}
    assert same == {"checkpoint"}


def test_a_base_image_and_its_runtime_touch_the_image_only(make_plan: MakePlan) -> None:
    text = RECIPE + "package: {base: 'oci:base:py3.11'}\n"

    def image(digest: str, runtime: str = "r") -> str:
        base = PinnedImage(None, {"linux/amd64": PlatformImage(f"sha256:{digest}", 10)}, "3.11")
        unit = make_plan(text=text, images={"oci:base:py3.11": base}, runtime=runtime)[0]
        assert unit.stages["engine"].derivation == make_plan()[0].stages["engine"].derivation
        return unit.stages["image"].derivation

    assert len({image("a"), image("b"), image("a", "another runtime"), make_plan()[0].stages["image"].derivation}) == 4


def test_a_key_does_not_depend_on_the_order_of_its_parts() -> None:
    assert key("engine", {"a": 1, "b": 2}, {"x": "1", "y": "2"}) == key(
        "engine", {"b": 2, "a": 1}, {"y": "2", "x": "1"}
    )


def test_a_difference_names_what_changed_from_what_to_what() -> None:
    before = {"version": 1, "parameters": {"max_batch_size": 64, "toolchain": {"cuda": "13.0"}}, "files": {}}
    after = {
        "version": 1,
        "parameters": {"max_batch_size": 128, "toolchain": {"cuda": "13.1"}},
        "files": {"a": "f" * 64},
    }
    assert difference(before, after) == [
        "a absent → ffffffffffff",
        "limits.max_batch_size 64 → 128",
        "toolchain.cuda 13.0 → 13.1",
    ]

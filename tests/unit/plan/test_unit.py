import pytest

from builder.errors import RecipeError
from tests.unit.plan.plans import RECIPE, MakeUnits


def test_two_targets_with_one_id_are_refused(make_units: MakeUnits) -> None:
    with pytest.raises(RecipeError, match="same unit") as error:
        make_units(RECIPE + "  - sku: cpu\n")
    assert error.value.code == "DUPLICATE_UNIT"


def test_a_name_tells_two_targets_apart(make_units: MakeUnits) -> None:
    units = make_units(RECIPE + "  - {sku: cpu, name: small}\n")
    assert units[2].id == "tiny/bf16-tp1/cpu/small"

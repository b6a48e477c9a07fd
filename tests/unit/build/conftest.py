from tests.unit.plan.plans import make_units

__all__ = ["make_units"]

from tests.unit.plan.plans import make_plan, make_units

__all__ = ["make_plan", "make_units"]

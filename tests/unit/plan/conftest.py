from tests.unit.plan.plans import make_plan

__all__ = ["make_plan"]

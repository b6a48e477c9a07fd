"""The loop over stages: what isn't in the store is made, sealed, and found again by the next run."""

from builder.build.loop import Report, build_unit, buildable_here
from builder.build.preparation import Session, open_session, prepare

__all__ = ["Report", "Session", "build_unit", "buildable_here", "open_session", "prepare"]

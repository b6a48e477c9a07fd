"""The loop over stages: what isn't in the store is made, sealed, and found again by the next run."""

from builder.build.loop import Report, Reporter, build_unit, buildable_here
from builder.build.preparation import model_files, prepare
from builder.build.stages import image_of

__all__ = ["Report", "Reporter", "build_unit", "buildable_here", "image_of", "model_files", "prepare"]

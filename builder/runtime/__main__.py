"""`python -m builder.runtime`: the entry point of an image, as PID 1. Settings come from options or NIM's variables."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.errors import BuilderError
from builder.runtime.launcher import IMAGE_ROOT
from builder.runtime.serve import GRACE_SECONDS, START_SECONDS, serve

_LEVELS = {"DEFAULT": "INFO", "TRACE": "DEBUG"} | {
    level: level for level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
}
"""NIM's log levels as Python's."""


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Returns the exit code. Values of the environment are checked like those of options."""
    parser = argparse.ArgumentParser(prog="python -m builder.runtime", description="Serve one model.")
    parser.add_argument("--root", type=Path, default=IMAGE_ROOT, help="folder with serving.json (%(default)s)")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (%(default)s)")  # noqa: S104
    parser.add_argument("--port", type=int, default=environ.get("NIM_SERVER_PORT", "8000"), help="NIM_SERVER_PORT")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(environ.get("NIM_CACHE_PATH", "/opt/nim/.cache")),
        help="the only folder written to; NIM_CACHE_PATH",
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=environ.get("NIM_SHUTDOWN_GRACE_SECONDS", str(GRACE_SECONDS)),
        help="how long open answers may take after SIGTERM; NIM_SHUTDOWN_GRACE_SECONDS",
    )
    parser.add_argument("--start-seconds", type=float, default=START_SECONDS, help="how long loading may take")
    options = parser.parse_args(arguments)
    level = environ.get("NIM_LOG_LEVEL", "DEFAULT").upper()
    if level not in _LEVELS:
        parser.error(f"NIM_LOG_LEVEL is {level!r}, expected one of {', '.join(_LEVELS)}")
    logging.basicConfig(level=_LEVELS[level], format="%(asctime)s %(levelname)s %(message)s")
    names = [name.strip() for name in environ.get("NIM_SERVED_MODEL_NAME", "").split(",") if name.strip()]
    try:
        serve(
            options.root,
            cache=options.cache,
            host=options.host,
            port=options.port,
            model_names=names,
            grace_seconds=options.grace_seconds,
            start_seconds=options.start_seconds,
        )
    except BuilderError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))

"""`python -m builder` is `engine-builder`."""

from builder.cli import main

main()

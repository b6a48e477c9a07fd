"""`python -m builder` is `engine-builder`."""

from builder.cli.main import main

main()

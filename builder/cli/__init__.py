"""The command line: parsing and printing, one file per command."""

import gc

# While modules are loaded: what they make stays, and looking through it for garbage takes a tenth of a short command.
# `main` enables it again.
gc.disable()

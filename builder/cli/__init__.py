"""The command line: one file per command; only parsing and printing."""

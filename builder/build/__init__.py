"""The loop over stages: what isn't in the store is made, sealed, and found again by the next run.

preparation.py   recipes are read, locked and planned
machine.py       what this machine can build
loop.py          one unit, from its first missing stage up to its image
stages.py        the stages themselves
"""

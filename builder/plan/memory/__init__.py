"""What a unit takes: memory of its GPUs, memory and disk of the machine that builds it, and bytes to move.

estimate.py is the numeric core on plain values, of_unit.py fills it from a recipe; weights, kv and activations are its
parts. host.py is about building, sizes.py about files, proposals.py about what would fit instead.
"""

from builder.plan.memory.estimate import FORMULAS, Demand, MemoryEstimate, memory
from builder.plan.memory.host import BuildHost, HostEstimate, host_estimate
from builder.plan.memory.kv import host_kv_blocks, kv_blocks
from builder.plan.memory.of_unit import demand_of, estimate, kv_sequence_bytes, legal_estimate
from builder.plan.memory.proposals import Proposals, proposals
from builder.plan.memory.ranges import Range
from builder.plan.memory.sizes import Sizes, sizes
from builder.plan.memory.weights import Split, Storage

__all__ = [
    "FORMULAS",
    "BuildHost",
    "Demand",
    "HostEstimate",
    "MemoryEstimate",
    "Proposals",
    "Range",
    "Sizes",
    "Split",
    "Storage",
    "demand_of",
    "estimate",
    "host_estimate",
    "host_kv_blocks",
    "kv_blocks",
    "kv_sequence_bytes",
    "legal_estimate",
    "memory",
    "proposals",
    "sizes",
]

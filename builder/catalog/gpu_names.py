"""What people and drivers call a GPU, resolved to one SKU or to none: variants are never guessed.

A word is resolved as a SKU, a driver's (NVML) product name or an alias, and then by its parts: it must name the
model ("h100", "rtx-4070-super"), and may leave out brand, form factor, edition and memory size where only one SKU
is left. "A100-80GB" has two (SXM and PCIe) and so resolves to none; the hint lists both.
"""

from __future__ import annotations

import re
from functools import cache

from builder.catalog.gpus import Gpu, gpus
from builder.catalog.words import did_you_mean

_NOISE = frozenset({"nvidia", "tesla", "geforce", "gpu", "blackwell", "generation", "edition", "mig"})
_OPTIONAL = frozenset({"rtx", "sxm", "pcie", "nvl", "workstation", "server", "max", "q"})
_SIZE = re.compile(r"^(\d+)gi?b?$")
_SXM = re.compile(r"^sxm\d$")


def find_gpu(word: str) -> Gpu | None:
    """The one GPU that a word means; None where it is unknown or means several."""
    found = candidates(word)
    return found[0] if len(found) == 1 else None


def candidates(word: str) -> tuple[Gpu, ...]:
    """All GPUs that a word may mean, in the catalog's order."""
    key, parts = _key(word), _parts(word)
    exact = _exact().get(key)
    if exact is not None:
        return exact
    matches = tuple(gpu for gpu, allowed, required in _parts_of_gpus() if required <= parts <= allowed)
    return matches or _exact().get(f"nvidia-{key}", ())


def gpu_hint(word: str) -> str:
    """A sentence for a word that isn't a SKU: what it may mean, or the nearest SKU."""
    names = [gpu.name for gpu in candidates(word)]
    if len(names) == 1:
        return f"did you mean {names[0]!r}?"
    if names:
        return f"{word!r} may be {', '.join(names[:-1])} or {names[-1]}: name the one that you have"
    return did_you_mean(_key(word), [name for name, gpu in gpus().items() if gpu.mig is None])


def _key(word: str) -> str:
    return re.sub(r"[\s_/-]+", "-", word.strip().lower())


def _parts(word: str) -> frozenset[str]:
    """The words in a name, in one spelling: sxm4 is sxm, 80g is 80gb; brands and the like are left out."""
    return frozenset(_SXM.sub("sxm", _SIZE.sub(r"\1gb", part)) for part in _key(word).split("-")) - _NOISE


@cache
def _exact() -> dict[str, tuple[Gpu, ...]]:
    """The GPUs that have a word as SKU, product name or alias."""
    result: dict[str, tuple[Gpu, ...]] = {}
    for gpu in gpus().values():
        for key in dict.fromkeys(map(_key, (gpu.name, *gpu.products, *gpu.aliases))):
            result[key] = (*result.get(key, ()), gpu)
    return result


@cache
def _parts_of_gpus() -> tuple[tuple[Gpu, frozenset[str], frozenset[str]], ...]:
    """Each GPU with the parts that a word for it may have, and those that it must have."""
    result = []
    for gpu in gpus().values():
        if not gpu.is_cpu:
            allowed = _parts(gpu.name).union(*map(_parts, gpu.aliases))
            required = frozenset(part for part in _parts(gpu.name) - _OPTIONAL if not _SIZE.fullmatch(part))
            result.append((gpu, allowed, required))
    return tuple(result)

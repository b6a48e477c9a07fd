"""Toolchains: TensorRT-LLM releases with their images, versions and abilities, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from builder.catalog.loading import read_facts, record
from builder.catalog.versions import parse

if TYPE_CHECKING:
    from builder.catalog import Gpu

Table = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Per flow, and then per precision, architecture or row: names."""

FLOAT = ("fp32", "fp16", "bf16")

_ABILITIES = ("precisions", "unknown", "kv_precisions", "kv_unknown")


@dataclass(frozen=True)
class Toolchain:
    """One TensorRT-LLM release (or `reference`). None or an absent entry: no source states it.

    `precisions` and `kv_precisions` hold, per flow and precision, the SMs (compute capabilities, or `cpu`) that run it;
    `unknown` and `kv_unknown` those of which no source says either way. Any other SM is refused by the release.
    `retired`: why a release is known by name and version map only, and isn't built with.
    `convert_script` maps an architecture to the path of its convert_checkpoint.py inside the build image.
    """

    name: str
    version: str
    flows: tuple[str, ...]
    backend: str
    skus: tuple[str, ...] = ()
    retired: str | None = None
    build_image: str | None = None
    serving_images: tuple[str, ...] = ()
    tensorrt: str | None = None
    cuda: str | None = None
    driver: str | None = None
    python: str | None = None
    torch: str | None = None
    transformers: str | None = None
    modelopt: str | None = None
    git_commit: str | None = None
    quantize_script: str | None = None
    convert_script: Mapping[str, str] = field(default_factory=dict)
    precisions: Table = field(default_factory=dict)
    unknown: Table = field(default_factory=dict)
    kv_precisions: Table = field(default_factory=dict)
    kv_unknown: Table = field(default_factory=dict)
    architectures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    model_precisions: Table = field(default_factory=dict)
    model_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def serving_image(self) -> str | None:
        """The image that serves by default: the newest of them."""
        return self.serving_images[0] if self.serving_images else None

    def runs(self, precision: str, gpu: Gpu, flow: str = "engine") -> bool | None:
        """Whether a flow of this release runs a weight precision on a GPU; None: no source says."""
        return _among(gpu, precision, self.precisions.get(flow, {}), self.unknown.get(flow, {}))

    def runs_kv(self, precision: str, gpu: Gpu, flow: str = "engine") -> bool | None:
        """The same for a precision of the KV cache."""
        return _among(gpu, precision, self.kv_precisions.get(flow, {}), self.kv_unknown.get(flow, {}))

    def supports(self, architecture: str, precision: str, flow: str = "engine") -> bool | None:
        """Whether the release's table of models has a precision for an architecture; None: no such row or column."""
        row = self.model_precisions.get(flow, {}).get(architecture)
        if row is None or precision not in (*FLOAT, *self.model_columns.get(flow, ())):
            return None
        return precision in row


def _among(gpu: Gpu, precision: str, known: Mapping[str, Any], unknown: Mapping[str, Any]) -> bool | None:
    where = gpu.compute_capability or gpu.name
    if where in known.get(precision, ()):
        return True
    return None if where in unknown.get(precision, ()) else False


class _Toolchains(Mapping[str, Toolchain]):
    """All toolchains by name, newest last. One is read when it is first asked for: a plan needs one or two of them."""

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())

    def __contains__(self, name: object) -> bool:
        return name in _names()

    def __getitem__(self, name: str) -> Toolchain:
        if name not in self:
            raise KeyError(name)
        return _toolchain(name)


@cache
def _names() -> tuple[str, ...]:
    stems = [path.name.removesuffix(".yaml") for path in files("builder.catalog").joinpath("toolchains").iterdir()]
    releases = [name for name in stems if name.startswith("trtllm-")]
    others = sorted(set(stems) - set(releases))
    return (*others, *sorted((*releases, *_retired()), key=lambda name: parse(name.removeprefix("trtllm-"))))


@cache
def toolchains() -> Mapping[str, Toolchain]:
    return _Toolchains()


def latest_engine_toolchain() -> Toolchain:
    """The newest stable release that compiles engines."""
    for name in reversed(_names()):
        one = toolchains()[name]
        if "engine" in one.flows and not one.retired and not parse(one.version).is_prerelease:
            return one
    raise AssertionError("the catalog has no toolchain with engines")


@cache
def _retired() -> Mapping[str, Mapping[str, Any]]:
    sheet = read_facts("retired.yaml")
    return {
        f"trtllm-{version}": {**entry, "version": version, "retired": sheet["reason"]}
        for version, entry in sheet["releases"].items()
    }


@cache
def _toolchain(name: str) -> Toolchain:
    if name in _retired():
        return Toolchain(name=name, flows=("engine",), backend="tensorrtllm", **record(_retired()[name]))
    entry = read_facts(f"toolchains/{name}.yaml")
    sheets = {flow: _merged(names) for flow, names in entry.pop("abilities").items()}
    examples = entry.pop("examples", None)
    tables: dict[str, Any] = {
        key: {flow: sheet[key] for flow, sheet in sheets.items() if key in sheet} for key in _ABILITIES
    }
    models = {
        flow: {
            architecture: (*FLOAT, *sheet["models"][row])
            for architecture, row in sheet["architectures"].items()
            if row is not None
        }
        for flow, sheet in sheets.items()
    }
    converters = sheets["engine"]["converters"] if "engine" in sheets else {}
    return Toolchain(
        flows=tuple(sheets),
        architectures={flow: tuple(sheet["architectures"]) for flow, sheet in sheets.items()},
        model_precisions=models,
        model_columns={flow: sheet.get("model_columns", ()) for flow, sheet in sheets.items()},
        quantize_script=f"{examples}/quantization/quantize.py" if examples and "engine" in sheets else None,
        convert_script={
            architecture: f"{examples}/models/{folder}/convert_checkpoint.py"
            for folder, architectures in converters.items()
            for architecture in architectures
            if examples
        },
        **tables,
        **record(entry),
    )


def _merged(names: list[str]) -> dict[str, Any]:
    """The abilities of one flow, sheets one over the other: architectures and converters add up, others replace."""
    result: dict[str, Any] = {"architectures": {}, "converters": {}}
    for name in names:
        sheet = _abilities(name)
        converters = dict(result["converters"])
        for folder, architectures in sheet.get("converters", {}).items():
            converters[folder] = (*converters.get(folder, ()), *architectures)
        result = {
            **result,
            **sheet,
            "architectures": {**result["architectures"], **sheet.get("architectures", {})},
            "converters": converters,
        }
    return result


@cache
def _abilities(name: str) -> dict[str, Any]:
    return record(read_facts(f"abilities/{name}.yaml"))

"""`engine-builder catalog`: the facts that plans are made with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click

from builder import catalog
from builder.cli.options import format_option, print_json


@click.group()
def command() -> None:
    """Show the facts that plans are made with: GPUs, toolchains, precisions, registries, and the rules."""


@command.command("gpus")
@format_option
def gpus(form: str) -> None:
    """GPU products: compute capability, memory as the driver reports it, platform."""
    known = list(catalog.gpus().values())
    if form == "json":
        print_json({"schema": 1, "gpus": [_record(gpu) for gpu in known]})
        return
    rows = [
        (
            gpu.name,
            gpu.compute_capability or "",
            f"{gpu.memory_mib:,} MiB" if gpu.memory_mib else "",
            f"{gpu.bandwidth_gb_s:,g} GB/s" if gpu.bandwidth_gb_s else "",
            gpu.platform,
            gpu.product,
        )
        for gpu in known
    ]
    _table(("SKU", "SM", "memory", "bandwidth", "platform", "product"), rows)


@command.command("toolchains")
@format_option
def toolchains(form: str) -> None:
    """TensorRT-LLM releases: flows, TensorRT, CUDA, driver; retired ones with the reason."""
    known = list(catalog.toolchains().values())
    if form == "json":
        print_json({"schema": 1, "toolchains": [_record(toolchain) for toolchain in known]})
        return
    rows = [
        (
            toolchain.name,
            ", ".join(toolchain.flows) if not toolchain.retired else "retired",
            toolchain.tensorrt or "",
            toolchain.cuda or "",
            toolchain.driver or "",
            toolchain.retired or toolchain.serving_image or "",
        )
        for toolchain in known
    ]
    _table(("toolchain", "flows", "TensorRT", "CUDA", "driver", "serving image"), rows)


@command.command("precisions")
@format_option
def precisions(form: str) -> None:
    """Number formats of weights and KV caches, and the words that others use for them."""
    if form == "json":
        print_json(
            {
                "schema": 1,
                "weights": [_record(known) for known in catalog.precisions().values()],
                "kv_cache": [_record(known) for known in catalog.kv_precisions().values()],
            }
        )
        return
    rows = [
        (known.name, f"{known.bits:g}", known.scheme, known.quant_algo or "", known.modelopt or "", known.nim)
        for known in catalog.precisions().values()
    ]
    _table(("precision", "bits", "scheme", "TensorRT-LLM", "ModelOpt", "NIM"), rows)
    click.echo(f"\nKV cache: auto, {', '.join(catalog.kv_precisions())}")


@command.command("registries")
@format_option
def registries(form: str) -> None:
    """Limits of registries that a plan checks before anything is built."""
    known = list(catalog.registries().values())
    if form == "json":
        print_json({"schema": 1, "registries": [_record(registry) for registry in known]})
        return
    rows = [
        (
            registry.name,
            ", ".join(registry.hosts),
            f"{registry.max_layer_bytes:,}" if registry.max_layer_bytes else "",
            f"{registry.upload_seconds} s" if registry.upload_seconds else "",
        )
        for registry in known
    ]
    _table(("registry", "hosts", "bytes of a layer", "upload"), rows)


@command.command("rules")
@format_option
def rules(form: str) -> None:
    """What a plan checks: code, severity, and the rule in a sentence."""
    from builder.plan import RULES

    known = sorted(RULES, key=lambda rule: rule.code)
    if form == "json":
        listed = [{"code": rule.code, "severity": rule.severity, "summary": rule.summary} for rule in known]
        print_json({"schema": 1, "rules": listed})
        return
    _table(("code", "severity", "rule"), [(rule.code, rule.severity, rule.summary) for rule in known])


def _record(value: Any) -> dict[str, Any]:
    return {name: inner for name, inner in asdict(value).items() if inner not in (None, (), {})}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    for line in lines:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]))

"""The stages: each a function of a unit that writes into its workspace, and joins rooms that don't know each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from builder.build.chat_template import read_chat_template
from builder.build.checkpoint import make_checkpoint
from builder.build.context import Context, check_lock
from builder.build.qualify import qualify_checkpoint
from builder.errors import ToolchainError, VerificationError
from builder.image.config import ContainerSettings
from builder.image.image import Image, build_image
from builder.image.layer import BUNDLE_ROOT, Layer
from builder.image.wheels import install_runtime, runtime_digest
from builder.lock import recipe_reference
from builder.oci.base import read_base
from builder.oci.descriptor import Platform
from builder.oci.reference import Reference
from builder.oci.repository import open_repository
from builder.plan import Unit
from builder.plan.build_config import build_config
from builder.plan.serving import serving_settings
from builder.reference.engine import write_engine
from builder.reference.errors import ReferenceModelError
from builder.store import Artifact, FileDigest, LocalStore
from builder.triton.lint import lint_repository
from builder.triton.repository import write_repository

RUNTIME = "runtime"
"""Not a stage of a unit: the packages of the runtime layer, shared by all units with the same Python."""


def engine(unit: Unit, context: Context) -> None:
    """The engine of the toolchain `reference`."""
    source = context.inputs["checkpoint"]
    try:
        written = write_engine(source.files, context.workspace.path, build_config(unit), context.progress(source.size))
    except ReferenceModelError as error:
        raise ToolchainError(f"the reference model refuses the checkpoint of {unit.id}", why=str(error)) from error
    for name, (sha256, size) in written.items():
        context.workspace.record(name, FileDigest(sha256, size))


def repository(unit: Unit, context: Context) -> None:
    source = context.fetch(("tokenizer", "config"))
    check_lock(unit, source)
    files = [file.path for file in unit.lock.snapshot.of_kind("tokenizer", "config")]
    served = [path for path in files if path not in ("config.json", "hf_quant_config.json", "quantize_config.json")]
    template = read_chat_template(unit)
    write_repository(serving_settings(unit), source, served, context.workspace.path, template)
    for finding in lint_repository(context.workspace.path / "models", unit.limits.max_batch_size):
        raise VerificationError(finding.message, where=f"models/{finding.where} of {unit.id}", code=finding.code)


def image(unit: Unit, context: Context) -> None:
    made, engine_artifact = context.inputs["repository"], context.inputs["engine"]
    advance = context.progress(made.size + engine_artifact.size)
    layers = [
        Layer.from_artifact("repository", made, advance=advance),
        Layer.from_artifact("engine", engine_artifact, f"{BUNDLE_ROOT}/engine", advance=advance),
    ]
    content = unit.recipe.content
    labels = {"org.opencontainers.image.licenses": content.model.license} if content.model.license else {}
    base, settings = None, ContainerSettings(labels=labels)
    if reference := pinned_base(unit):
        python = unit.lock.images[unit.package.base].python or ""
        base = read_base(open_repository(reference), str(reference.digest), Platform.parse(unit.gpu.platform))
        layers.insert(0, _runtime_layer(python, context))
        settings = _container(python, labels)
    build_image(
        unit=unit.id,
        sku=unit.gpu.name,
        platform=unit.gpu.platform,
        title=content.name,
        version=content.version,
        layers=layers,
        settings=settings,
        base=base,
        annotations=labels,
    ).save(context.workspace.path, context.store)


STAGES: Mapping[str, Callable[[Unit, Context], None]] = {
    "checkpoint": make_checkpoint,
    "qualify": qualify_checkpoint,
    "engine": engine,
    "repository": repository,
    "image": image,
}


def pinned_base(unit: Unit) -> Reference | None:
    """The unit's base image by digest, where the recipe says that it lies; None for an image without a base."""
    pinned = unit.lock.image(unit.package.base, unit.gpu.platform)
    return recipe_reference(unit.package.base, unit.recipe.folder).with_digest(pinned.digest) if pinned else None


def image_of(unit: Unit, artifact: Artifact, store: LocalStore) -> Image:
    """The image in a unit's image artifact. Its base is looked for where the recipe says, not where it was then."""
    return Image.load(artifact.files, store, pinned_base(unit))


def _container(python: str, labels: Mapping[str, str]) -> ContainerSettings:
    return ContainerSettings(
        entrypoint=(f"python{python}", "-m", "builder.runtime", "--root", f"/{BUNDLE_ROOT}"),
        environment={
            "NIM_CACHE_PATH": "/opt/nim/.cache",
            "NIM_SERVER_PORT": "8000",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"/{BUNDLE_ROOT}/runtime",
            "PYTHONUNBUFFERED": "1",
        },
        user="1000:1000",
        working_dir="/",
        exposed_ports=("8000/tcp",),
        volumes=("/tmp",),  # noqa: S108 (Triton's python backend makes a folder there, also under a read-only root)
        stop_signal="SIGTERM",
        labels=labels,
    )


def _runtime_layer(python: str, context: Context) -> Layer:
    """Our own rooms and their wheels; installed once for each set of pins."""
    key = runtime_digest(python)
    artifact = context.store.get(RUNTIME, key)
    if artifact is None:
        with context.store.building(RUNTIME, key) as workspace:
            artifact = context.store.get(RUNTIME, key)  # another process may have been faster
            if artifact is None:
                install_runtime(python, workspace.path)
                files = [path for path in workspace.path.rglob("*") if path.is_file()]
                executable = sorted(
                    path.relative_to(workspace.path).as_posix() for path in files if path.stat().st_mode & 0o100
                )
                artifact = context.store.seal(RUNTIME, key, workspace, {"executable": executable, "python": python})
    return Layer.from_artifact("runtime", artifact, f"{BUNDLE_ROOT}/runtime", executable=artifact.facts["executable"])

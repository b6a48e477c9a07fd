"""`config.pbtxt` of the five models, as protobuf messages.

Batching, instances and tensors follow TensorRT-LLM's 1.x `inflight_batcher_llm` repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput

from builder.plan.serving import ServingSettings
from builder.triton.parameters import ROOT, engine_parameters
from builder.triton.tensors import Tensor, ensemble_steps, model_tensors

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")


def model_configs(settings: ServingSettings) -> dict[str, ModelConfig]:
    """The configuration of every model, by name."""
    configs = {name: _tensors_of(name, settings.max_batch_size) for name in MODELS}

    preprocessing = configs["preprocessing"]
    preprocessing.backend = "python"
    _dynamic_batching(preprocessing, settings)
    _parameters(
        preprocessing,
        {
            "tokenizer_dir": f"{ROOT}/tokenizer",
            "add_special_tokens": "true",
            "eos_token_ids": ",".join(map(str, settings.eos_token_ids)),  # ours: upstream knows one end id only
        },
    )

    engine = configs["tensorrt_llm"]
    engine.backend = "tensorrtllm" if settings.backend == "tensorrtllm" else "python"
    engine.model_transaction_policy.decoupled = settings.streaming
    _dynamic_batching(engine, settings)
    _parameters(engine, engine_parameters(settings))

    postprocessing = configs["postprocessing"]
    postprocessing.backend = "python"
    postprocessing.dynamic_batching.SetInParent()
    _parameters(postprocessing, {"tokenizer_dir": f"{ROOT}/tokenizer", "skip_special_tokens": "true"})

    bls = configs["tensorrt_llm_bls"]
    bls.backend = "python"
    bls.model_transaction_policy.decoupled = settings.streaming
    # Upstream's "true" repeats the whole text in every response; ours decodes all tokens either way, and sends pieces.
    _parameters(
        bls,
        {
            "accumulate_tokens": "false",
            "tensorrt_llm_model_name": "tensorrt_llm",
            "max_beam_width": str(settings.max_beam_width),  # ours: an engine takes no other number of beams
        },
    )

    for name, config in configs.items():
        if name != "ensemble":
            config.instance_group.append(ModelInstanceGroup(count=1, kind=ModelInstanceGroup.KIND_CPU))

    ensemble = configs["ensemble"]
    ensemble.platform = "ensemble"
    for step in ensemble_steps():
        ensemble.ensemble_scheduling.step.add(
            model_name=step.model, model_version=-1, input_map=step.inputs, output_map=step.outputs
        )
    return configs


def to_text(config: ModelConfig) -> str:
    """The message as `config.pbtxt`; the same message always gives the same text."""
    text: str = text_format.MessageToString(config)
    return text


def _tensors_of(name: str, max_batch_size: int) -> ModelConfig:
    tensors = model_tensors(name)
    config = ModelConfig(name=name, max_batch_size=max_batch_size)
    config.input.extend(_inputs(tensors.inputs))
    config.output.extend(
        ModelOutput(name=tensor.name, data_type=f"TYPE_{tensor.type}", dims=tensor.dims) for tensor in tensors.outputs
    )
    return config


def _inputs(tensors: Iterable[Tensor]) -> list[ModelInput]:
    inputs = []
    for tensor in tensors:
        message = ModelInput(
            name=tensor.name,
            data_type=f"TYPE_{tensor.type}",
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        if tensor.reshape is not None:
            message.reshape.SetInParent()
            message.reshape.shape.extend(tensor.reshape)
        inputs.append(message)
    return inputs


def _dynamic_batching(config: ModelConfig, settings: ServingSettings) -> None:
    batching = config.dynamic_batching
    batching.preferred_batch_size.append(settings.max_batch_size)
    batching.max_queue_delay_microseconds = settings.max_queue_delay_microseconds
    batching.default_queue_policy.max_queue_size = settings.max_queue_size


def _parameters(config: ModelConfig, parameters: Mapping[str, str]) -> None:
    for key, value in parameters.items():
        config.parameters[key].string_value = value

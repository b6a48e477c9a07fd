"""The Triton model `tensorrt_llm` on the reference model: TensorRT-LLM's tensors, decoupled or not, without a GPU.

As there, the end token is not part of the answer, a streamed response holds only its new tokens, and a second request
of the same id with `stop` ends the first one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from builder.reference.model import ReferenceModel
from builder.reference.sampling import Sampler, SamplingParams
from builder.runtime.models.batcher import Batcher, Cancelled, Generation
from builder.runtime.models.tensors import (
    error_response,
    optional_input,
    parameter,
    refuse_inputs,
    required_input,
    response,
)
from builder.runtime.models.words import unpack_words

_UNSUPPORTED = (
    "beam_search_diversity_rate",
    "context_phase_params",
    "cross_attention_mask",
    "draft_input_ids",
    "draft_logits",
    "embedding_bias",
    "encoder_input_features",
    "guided_decoding_guide",
    "guided_decoding_guide_type",
    "lora_config",
    "lora_task_id",
    "lora_weights",
    "mrope_rotary_cos_sin",
    "prompt_embedding_table",
    "runtime_top_p_decay",
    "runtime_top_p_min",
    "runtime_top_p_reset_ids",
)
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        engine = Path(parameter(config, "gpt_model_path"))
        self._model = ReferenceModel.load(engine)
        if self._model.limits is None:
            raise ValueError(f"{engine} is a checkpoint, not an engine: its config.json has no build_config")
        self._limits = self._model.limits
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._exclude_input = parameter(config, "exclude_input_in_output") == "true"
        self._answers: dict[str, _Answer] = {}
        self._batcher = Batcher(self._model, self._limits.max_batch_size)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._take(request, sender)
            except Exception as error:
                sender.send(error_response(error), flags=_FINAL)

    def finalize(self) -> None:
        self._batcher.close()

    def _take(self, request: Any, sender: Any) -> None:
        if _scalar(request, "stop", False):
            if answer := self._answers.get(request.request_id()):
                answer.stopped = True
            # Where the model isn't decoupled, even an answer that says nothing is a response.
            sender.send(*([] if self._decoupled else [pb_utils.InferenceResponse([])]), flags=_FINAL)
            return
        prompt, new_tokens = self._lengths(request)
        end_id = _scalar(request, "end_id", -1)
        end_ids = [end_id] if end_id >= 0 else []
        answer = _Answer(request, sender, prompt, self._exclude_input, decoupled=self._decoupled)
        if request_id := request.request_id():
            self._answers[request_id] = answer
            answer.forget = lambda: self._forget(request_id, answer)
        self._batcher.submit(
            Generation(
                prompt=prompt,
                max_new_tokens=new_tokens,
                sampler=Sampler(_sampling(request), prompt, self._model.vocab_size, end_ids),
                listener=answer,
                end_id=end_ids[0] if end_ids else None,
                stop_words=self._words(request, "stop_words_list"),
                bad_words=self._words(request, "bad_words_list"),
                log_probs=answer.wants_log_probs,
            )
        )

    def _forget(self, request_id: str, answer: _Answer) -> None:
        if self._answers.get(request_id) is answer:
            del self._answers[request_id]

    def _words(self, request: Any, name: str) -> Any:
        words = unpack_words(optional_input(request, name, np.empty((1, 2, 0), np.int32)))
        if any(not 0 <= token < self._model.vocab_size for word in words for token in word):
            raise ValueError(f"{name} has a token id outside 0..{self._model.vocab_size - 1}")
        return words

    def _lengths(self, request: Any) -> tuple[list[int], int]:
        """The prompt and how many tokens may follow. Raises ValueError for what the engine wasn't built for."""
        refuse_inputs(request, _UNSUPPORTED)
        for name in ("return_context_logits", "return_generation_logits", "return_perf_metrics"):
            if _scalar(request, name, False):
                raise ValueError(f"{name} is not supported")
        ids = required_input(request, "input_ids")
        if ids.shape[0] != 1:
            raise ValueError("one prompt per request, please; requests are batched by the engine")
        for name in ("beam_width", "num_return_sequences"):
            if _scalar(request, name, 1) != 1:
                raise ValueError(f"{name} must be 1")
        length = _scalar(request, "input_lengths", 0)
        new = _scalar(request, "request_output_len", 0)
        limits = self._limits
        if length < 1:
            raise ValueError("the prompt is empty")
        if length > ids.shape[1]:
            raise ValueError(f"input_lengths is {length}, but input_ids has {ids.shape[1]} tokens")
        if new < 1:
            raise ValueError("request_output_len must be at least 1")
        if length > limits.max_input_len:
            raise ValueError(f"the prompt has {length} tokens, the engine takes {limits.max_input_len} (max_input_len)")
        if length + new > limits.max_seq_len:
            raise ValueError(
                f"prompt ({length}) and answer ({new}) are longer than the engine's max_seq_len of {limits.max_seq_len}"
            )
        return ids[0, :length].tolist(), new


class _Answer:
    """Turns what the batcher says of one request into responses."""

    def __init__(self, request: Any, sender: Any, prompt: list[int], exclude_input: bool, *, decoupled: bool) -> None:
        """Raises ValueError for a streamed answer of a model that isn't decoupled: it has one response."""
        self.stopped = False
        self._decoupled = decoupled
        self.forget: Callable[[], object] = lambda: None
        self.wants_log_probs: bool = _scalar(request, "return_log_probs", False)
        self._counts = [
            name for name in ("num_input_tokens", "num_output_tokens") if _scalar(request, f"return_{name}", False)
        ]
        self._requested = frozenset(request.requested_output_names())
        self._sender = sender
        self._streaming: bool = _scalar(request, "streaming", False)
        if self._streaming and not decoupled:
            raise ValueError("streaming is only supported in decoupled mode")
        self._with_prompt = not (self._streaming or _scalar(request, "exclude_input_in_output", exclude_input))
        self._prompt = prompt
        self._tokens: list[int] = []
        self._log_probs: list[float] = []

    def on_tokens(self, tokens: list[int], log_probs: list[float], *, final: bool) -> None:
        self._tokens += tokens
        self._log_probs += log_probs
        if final:
            self.forget()
        flags = _FINAL if final else 0
        if self._streaming:
            self._sender.send(self._response(tokens, log_probs), flags=flags)
        elif final:
            whole = self._prompt + self._tokens if self._with_prompt else self._tokens
            self._sender.send(self._response(whole, self._log_probs), flags=flags)

    def on_error(self, error: Exception) -> None:
        """A cancelled request just ends. An error and the final flag are sent apart: sent together in the middle of an
        answer, a BLS caller on Triton 2.51 would hear neither and wait for ever. A model that isn't decoupled has one
        response, and no way to end without it.
        """
        self.forget()
        if not self._decoupled:
            self._sender.send(error_response(error), flags=_FINAL)
            return
        if not isinstance(error, Cancelled):
            self._sender.send(error_response(error))
        self._sender.send(flags=_FINAL)

    def is_cancelled(self) -> bool:
        return self.stopped or bool(self._sender.is_cancelled())

    def _response(self, tokens: list[int], log_probs: list[float]) -> Any:
        outputs: dict[str, Any] = {
            "output_ids": np.array([[tokens]], np.int32),
            "sequence_length": np.array([[len(tokens)]], np.int32),
            "batch_index": np.zeros((1, 1), np.int32),
            "sequence_index": np.zeros((1, 1), np.int32),
        }
        if self.wants_log_probs:
            outputs["output_log_probs"] = np.array([[log_probs]], np.float32)
            outputs["cum_log_probs"] = np.array([[sum(self._log_probs)]], np.float32)
        counts = {"num_input_tokens": len(self._prompt), "num_output_tokens": len(self._tokens)}
        outputs |= {name: np.array([[counts[name]]], np.int32) for name in self._counts}
        return response(outputs, self._requested)


_SAMPLING_INPUTS = {
    "temperature": "temperature",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_tokens": "min_tokens",
    "seed": "seed",
}


def _sampling(request: Any) -> SamplingParams:
    given = {name: _scalar(request, tensor, None) for tensor, name in _SAMPLING_INPUTS.items()}
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def _scalar(request: Any, name: str, default: Any) -> Any:
    """An input of one element as a Python value."""
    value = optional_input(request, name, None)
    if value is None:
        return default
    if value.size != 1:
        raise ValueError(f"{name} must be one value")
    return value.item()

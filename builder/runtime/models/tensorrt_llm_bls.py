"""The Triton model `tensorrt_llm_bls`: text to text, by calling the other models in turn.

Every request has a thread: a thread may wait for the engine while others send. Streamed answers are decoded from all
their tokens so far, so that no character or space is lost between two of them. `accumulate_tokens` says what is sent:
`true` the whole text each time, as upstream does, `false` only what is new. With several beams there is no new part of
an answer, as any of them may still take the lead: each response has the whole text of every beam.

An engine that isn't decoupled answers each request with one response, and so does this model then.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from builder.runtime.models.tensors import (
    error_response,
    optional_input,
    parameter,
    refuse_inputs,
    required_input,
    response,
)

_PREPROCESSING_INPUTS = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
_PREPROCESSING_OUTPUTS = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "STOP_WORDS_IDS": "stop_words_list",
    "BAD_WORDS_IDS": "bad_words_list",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
_ENGINE_INPUTS = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "stream": "streaming",
    "length_penalty": "len_penalty",
} | {
    name: name
    for name in (
        "beam_width",
        "exclude_input_in_output",
        "frequency_penalty",
        "guided_decoding_guide",
        "guided_decoding_guide_type",
        "lora_config",
        "lora_task_id",
        "lora_weights",
        "min_tokens",
        "num_return_sequences",
        "presence_penalty",
        "repetition_penalty",
        "return_log_probs",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "seed",
        "temperature",
    )
}
_ENGINE_OUTPUTS = ("cum_log_probs", "output_log_probs", "num_input_tokens", "num_output_tokens")
_UNSUPPORTED = (
    "decoder_text_input",
    "embedding_bias_weights",
    "embedding_bias_words",
    "image_bytes_input",
    "image_input",
    "image_url_input",
    "num_draft_tokens",
    "prompt_embedding_table",
    "prompt_table_extra_id",
    "video_bytes_input",
)
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_CANCELLATION_CHECK_SECONDS = 0.1
_REPLACEMENT = "\ufffd"


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._accumulate = parameter(config, "accumulate_tokens") == "true"
        self._engine = parameter(config, "tensorrt_llm_model_name")
        self._beams = int(parameter(config, "max_beam_width"))
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        # Four batches: one runs, the others are prepared or wait in the engine's own queue.
        self._threads = ThreadPoolExecutor(4 * config["max_batch_size"], thread_name_prefix="bls")
        self._watch = _CancellationWatch(lambda number: _stop(self._engine, number, decoupled=self._decoupled))

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._threads.submit(self._answer, request, request.get_response_sender())

    def finalize(self) -> None:
        self._threads.shutdown()
        self._watch.close()

    def _answer(self, request: Any, sender: Any) -> None:
        """Answer one request; whatever happens, its last response carries the final flag."""
        try:
            if self._decoupled:
                for part in self._responses(request, sender):
                    sender.send(part)
                sender.send(flags=_FINAL)
            else:
                [whole] = self._responses(request, sender)
                sender.send(whole, flags=_FINAL)
        except Exception as error:
            sender.send(error_response(error), flags=_FINAL)

    def _responses(self, request: Any, sender: Any) -> Iterator[Any]:
        refuse_inputs(request, _UNSUPPORTED)
        if required_input(request, "text_input").shape[0] != 1:
            raise ValueError("one text per request, please; send several requests at the same time instead")
        stream = bool(np.all(optional_input(request, "stream", np.array([[False]]))))
        if stream and not self._decoupled:
            raise ValueError("this model doesn't stream: it isn't decoupled (serving.streaming in its recipe)")
        prepared = _call("preprocessing", _renamed(request, _PREPROCESSING_INPUTS), list(_PREPROCESSING_OUTPUTS))
        inputs = [pb_utils.Tensor(name, prepared[key]) for key, name in _PREPROCESSING_OUTPUTS.items()]
        passed_on = _renamed(request, _ENGINE_INPUTS)
        if self._beams > 1 and not any(tensor.name() == "beam_width" for tensor in passed_on):
            passed_on.append(pb_utils.Tensor("beam_width", np.array([[self._beams]], np.int32)))
        text = _Text() if self._beams > 1 else _StreamedText(whole=self._accumulate or not stream)
        requested = frozenset(request.requested_output_names())
        request_id = str(uuid.uuid4())
        call = pb_utils.InferenceRequest(
            model_name=self._engine,
            request_id=request_id,
            inputs=inputs + passed_on,
            requested_output_names=["output_ids", "sequence_length", *_ENGINE_OUTPUTS],
        )
        with self._watch.watching(sender, request_id):
            for answer in _exec(call, decoupled=self._decoupled):
                if answer.has_error():
                    raise RuntimeError(answer.error().message())
                outputs = {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
                if not outputs:  # all that Triton 2.51 lets through of an error after the first response
                    raise RuntimeError("the engine failed in the middle of the answer; its log says why")
                passed = {name: outputs[name] for name in _ENGINE_OUTPUTS if name in outputs}
                yield response({"text_output": _text_output(*text.add(outputs)), **passed}, requested)
        if rest := text.rest():
            yield response({"text_output": _text_output(rest)}, requested)


class _Text:
    """The text of every beam, best first, from a response that has all of their tokens."""

    def add(self, outputs: dict[str, Any]) -> tuple[str, ...]:
        return _decoded(outputs["output_ids"], outputs["sequence_length"])

    def rest(self) -> str:
        return ""


class _StreamedText:
    """The text of an answer from its tokens so far. `whole`: all of it each time, else only what is new."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._tokens = np.empty((1, 1, 0), np.int32)
        self._text = ""
        self._sent = 0

    def add(self, outputs: dict[str, Any]) -> tuple[str]:
        new = outputs["output_ids"][:, :1, : int(outputs["sequence_length"].flat[0])]
        self._tokens = np.concatenate([self._tokens, new], axis=2)
        length = np.array([[self._tokens.shape[2]]], np.int32)
        [self._text] = _decoded(self._tokens, length)
        # A character whose last bytes are still to come is held back.
        return (self._text if self._whole else self._new(self._text.rstrip(_REPLACEMENT)),)

    def rest(self) -> str:
        """What was held back, once no more tokens come."""
        return "" if self._whole else self._new(self._text)

    def _new(self, text: str) -> str:
        new, self._sent = text[self._sent :], max(self._sent, len(text))
        return new


def _decoded(tokens: Any, lengths: Any) -> tuple[str, ...]:
    """Texts of tokens [1, beams, n] of which `lengths` [1, beams] count."""
    tensors = [pb_utils.Tensor("TOKENS_BATCH", tokens), pb_utils.Tensor("SEQUENCE_LENGTH", lengths)]
    return tuple(text.decode() for text in _call("postprocessing", tensors, ["OUTPUT"])["OUTPUT"].flat)


def _text_output(*texts: str) -> Any:
    return np.array([[text.encode() for text in texts]], np.object_)


class _CancellationWatch:
    """Passes a client's cancellation on to the engine; Triton tells only the model that the client called."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        """`stop` ends the engine's request of an id."""
        self._stop = stop
        self._senders: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="cancellation", daemon=True).start()

    @contextmanager
    def watching(self, sender: Any, request_id: str) -> Iterator[None]:
        with self._lock:
            self._senders[request_id] = sender
        try:
            yield
        finally:
            with self._lock:
                self._senders.pop(request_id, None)

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_CANCELLATION_CHECK_SECONDS):
            with self._lock:
                cancelled = [number for number, sender in self._senders.items() if sender.is_cancelled()]
                for number in cancelled:
                    del self._senders[number]
            for number in cancelled:
                self._stop(number)


def _stop(engine: str, request_id: str, *, decoupled: bool) -> None:
    """TensorRT-LLM's own way to end a request: another one of the same id with `stop`."""
    request = pb_utils.InferenceRequest(
        model_name=engine,
        request_id=request_id,
        inputs=[
            pb_utils.Tensor("input_ids", np.zeros((1, 1), np.int32)),
            pb_utils.Tensor("input_lengths", np.zeros((1, 1), np.int32)),
            pb_utils.Tensor("request_output_len", np.zeros((1, 1), np.int32)),
            pb_utils.Tensor("stop", np.ones((1, 1), np.bool_)),
        ],
        requested_output_names=[],
    )
    for _ in _exec(request, decoupled=decoupled):
        pass


def _exec(request: Any, *, decoupled: bool) -> Iterable[Any]:
    """The responses of a model; it has just one where it isn't decoupled."""
    return request.exec(decoupled=True) if decoupled else [request.exec()]


def _call(model: str, inputs: list[Any], outputs: list[str]) -> dict[str, Any]:
    response = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=outputs).exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _renamed(request: Any, names: dict[str, str]) -> list[Any]:
    """The inputs that are present, under the name of the model that is called; what was reshaped is [1, n] again."""
    tensors = []
    for name, target in names.items():
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is not None:
            value = tensor.as_numpy()
            tensors.append(pb_utils.Tensor(target, value if value.ndim > 2 else value.reshape(1, -1)))
    return tensors

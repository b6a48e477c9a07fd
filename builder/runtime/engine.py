"""Token ids in, token ids out: the model `tensorrt_llm` of a running Triton, over one gRPC stream per request."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from grpc import RpcError
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from builder.runtime.models.words import pack_words


class EngineError(Exception):
    """The engine refused a request, failed at it, or is gone. The message is Triton's own."""


@dataclass(frozen=True)
class Guide:
    """What an answer must follow, in TensorRT-LLM's words: json, json_schema, regex or ebnf_grammar, and its text."""

    type: str
    text: str | None = None


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, with OpenAI's meanings and defaults; temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    guide: Guide | None = None


class Engine(Protocol):
    def generate(self, prompt: Sequence[int], max_tokens: int, sampling: Sampling) -> AsyncGenerator[list[int], None]:
        """Yields new token ids as they come; an end token is left out or comes last. Closing it cancels the request.

        Raises EngineError.
        """


class TritonEngine:
    """`Engine` over Triton. TensorRT-LLM takes one end id; the model's other ones are sent as stop words.

    A request is cancelled by TensorRT-LLM's own means, a second request of its id with `stop`. Cancelling the gRPC
    call instead makes Triton 2.51 lose track of the request: the model can't be unloaded any more.
    """

    def __init__(
        self, url: str, end_ids: Sequence[int], pad_id: int | None, *, streaming: bool = True, beam_width: int = 1
    ) -> None:
        """Without `streaming` an answer comes in one piece, and so it does with several beams: until the end, another
        one may take the lead. Of them, the best is the answer; an engine takes requests of its own beam width only.
        """
        self._client = InferenceServerClient(url)
        self._streaming = streaming and beam_width == 1
        self._beam_width = beam_width
        self._end_id, *others = end_ids
        self._pad_id = self._end_id if pad_id is None else pad_id
        self._stop_words = pack_words([[token] for token in others])
        self._calls: set[asyncio.Task[None]] = set()

    async def generate(
        self, prompt: Sequence[int], max_tokens: int, sampling: Sampling
    ) -> AsyncGenerator[list[int], None]:
        call = _Call(self._inputs(prompt, max_tokens, sampling))
        # In a task of its own: the call must go on to its end even if the reader of the tokens is cancelled.
        task = asyncio.create_task(call.run(self._client))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            while (item := await call.received.get()) is not None:
                if isinstance(item, EngineError):
                    raise item
                yield item
        finally:
            call.stop()

    async def close(self) -> None:
        """Cut off what still runs."""
        for task in list(self._calls):
            task.cancel()
        await self._client.close()

    def _inputs(self, prompt: Sequence[int], max_tokens: int, sampling: Sampling) -> list[InferInput]:
        inputs = {
            "input_ids": np.array([prompt], np.int32),
            "input_lengths": np.array([[len(prompt)]], np.int32),
            "request_output_len": np.array([[max_tokens]], np.int32),
            "end_id": np.array([[self._end_id]], np.int32),
            "pad_id": np.array([[self._pad_id]], np.int32),
            "streaming": np.array([[self._streaming]]),
            "exclude_input_in_output": np.array([[True]]),
        }
        if self._beam_width > 1:
            inputs["beam_width"] = np.array([[self._beam_width]], np.int32)
        if self._stop_words.size:
            inputs["stop_words_list"] = self._stop_words
        if sampling.temperature == 0:
            inputs["runtime_top_k"] = np.array([[1]], np.int32)
        else:
            # Without both of these TensorRT-LLM would take the likeliest token.
            inputs["runtime_top_k"] = np.array([[0]], np.int32)
            inputs["runtime_top_p"] = np.array([[max(sampling.top_p, 1e-6)]], np.float32)  # not 0 in 32 bits
            inputs["temperature"] = np.array([[sampling.temperature]], np.float32)
        if sampling.presence_penalty:
            inputs["presence_penalty"] = np.array([[sampling.presence_penalty]], np.float32)
        if sampling.frequency_penalty:
            inputs["frequency_penalty"] = np.array([[sampling.frequency_penalty]], np.float32)
        if guide := sampling.guide:
            inputs["guided_decoding_guide_type"] = np.array([[guide.type.encode()]], np.object_)
            if guide.text is not None:
                inputs["guided_decoding_guide"] = np.array([[guide.text.encode()]], np.object_)
        # TensorRT-LLM's own seed is 0 for every request; OpenAI's answers differ unless a seed is given.
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % 2**64
        inputs["seed"] = np.array([[seed]], np.uint64)
        return [_input(name, value) for name, value in inputs.items()]


class _Call:
    """One request and its responses, on a stream of their own; `received` ends with None or an error."""

    def __init__(self, inputs: list[InferInput]) -> None:
        self.received: asyncio.Queue[list[int] | EngineError | None] = asyncio.Queue()
        self._inputs = inputs
        self._id = uuid.uuid4().hex
        self._finished = False
        self._over = asyncio.Event()

    def stop(self) -> None:
        """No more tokens are wanted."""
        self._over.set()

    async def run(self, client: InferenceServerClient) -> None:
        try:
            async for result, error in client.stream_infer(self._requests()):
                if error is not None:
                    self._finish(EngineError(error.message()))
                    continue
                ids = result.as_numpy("output_ids")
                if ids is not None and not self._finished:
                    self.received.put_nowait(
                        ids.reshape(-1)[: int(result.as_numpy("sequence_length").flat[0])].tolist()
                    )
                if result.get_response().parameters["triton_final_response"].bool_param:
                    self._finish(None)
            self._finish(EngineError("the engine closed the connection"))
        except (InferenceServerException, RpcError) as error:
            self._finish(EngineError(str(error)))

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        yield self._request(self._inputs)
        await self._over.wait()
        if not self._finished:
            yield self._request(_STOP)

    def _request(self, inputs: list[InferInput]) -> dict[str, Any]:
        return {
            "model_name": "tensorrt_llm",
            "request_id": self._id,
            "inputs": inputs,
            "outputs": _OUTPUTS,
            "enable_empty_final_response": True,
        }

    def _finish(self, last: EngineError | None) -> None:
        if not self._finished:
            self._finished = True
            self.received.put_nowait(last)
            self._over.set()


_TYPES = {"int32": "INT32", "float32": "FP32", "uint64": "UINT64", "bool": "BOOL", "object": "BYTES"}


def _input(name: str, value: Any) -> InferInput:
    tensor = InferInput(name, list(value.shape), _TYPES[value.dtype.name])
    tensor.set_data_from_numpy(value)
    return tensor


_OUTPUTS = [InferRequestedOutput("output_ids"), InferRequestedOutput("sequence_length")]
_STOP = [
    _input("input_ids", np.zeros((1, 1), np.int32)),
    _input("input_lengths", np.zeros((1, 1), np.int32)),
    _input("request_output_len", np.zeros((1, 1), np.int32)),
    _input("stop", np.array([[True]])),
]

"""The OpenAI API of one model, with NIM's health, metadata and metrics paths.

It tokenises and detokenises itself and sends token ids to the engine.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence, Sized
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from builder import __version__
from builder.errors import UsageError
from builder.runtime.answer import Piece, answer
from builder.runtime.bundle import Bundle
from builder.runtime.chat import ChatTemplate
from builder.runtime.engine import Engine, EngineError, Sampling
from builder.runtime.health import Health, Phase
from builder.runtime.metrics import Metrics, gpu_cache_usage
from builder.runtime.requests import (
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    RequestError,
    check_length,
    parse_chat,
    parse_completion,
)
from builder.runtime.tokenizer import Tokenizer

MAX_BODY_BYTES = 16 << 20
"""Far more than any context holds; a limit on what one request can make us keep."""


class Service:
    """All that the routes share. `engine` is None until it runs; `in_flight` counts POST requests not yet answered."""

    def __init__(self, bundle: Bundle, model_names: Sequence[str] = ()) -> None:
        self.bundle = bundle
        self.model_names = tuple(model_names) or (bundle.served_model_name,)
        self.tokenizer = Tokenizer(bundle.tokenizer)
        self.chat_template = ChatTemplate.open(bundle.tokenizer, self.tokenizer)
        self.engine: Engine | None = None
        self.engine_metrics: Callable[[], str] = str
        self.health = Health(self._generate_one)
        self.metrics = Metrics(self.model_names[0], bundle.max_batch_size)
        self.in_flight = 0
        self.started = int(time.time())

    async def pieces(
        self, request: CommonRequest, prompt: Sequence[int], max_tokens: int
    ) -> AsyncGenerator[Piece, None]:
        """The answer to a request, followed by metrics and health. Raises EngineError."""
        engine = self._running_engine()
        source = answer(
            engine, self.tokenizer, self.bundle.eos_token_ids, prompt, max_tokens, request.sampling, request.stop
        )
        try:
            with self.metrics.request(len(prompt)) as measured:
                async with aclosing(source):
                    async for piece in source:
                        self.health.token()
                        measured.generated(piece.tokens)
                        measured.finish_reason = piece.finish_reason or measured.finish_reason
                        yield piece
        except EngineError:
            self.health.suspect()
            raise

    def check(self, request: CommonRequest) -> None:
        """Raises RequestError for a model that isn't served here, for what it can't do, or while nothing can be."""
        self.check_name(request.model)
        if request.sampling.guide and self.bundle.guided_decoding == "none":
            raise RequestError(
                "'response_format' is not supported: this model is served without guided decoding",
                field="response_format",
                code="unsupported_parameter",
            )
        self._running_engine()

    def check_name(self, name: str) -> None:
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            raise RequestError(
                f"The model '{name}' does not exist here; served: {served}",
                field="model",
                code="model_not_found",
                status=404,
                kind="NotFoundError",
            )

    def described(self, name: str) -> dict[str, Any]:
        """One entry of OpenAI's list of models."""
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "engine-builder",
            "root": self.model_names[0],
            "max_model_len": self.bundle.max_seq_len,
        }

    def check_size(self, prompt: Sized, field: str) -> None:
        """Raises RequestError for what can't fit, however it is tokenised: that alone would take long."""
        most = self.bundle.max_input_len * self.tokenizer.longest_token
        if len(prompt) > most:
            raise RequestError(
                f"a prompt has at most {self.bundle.max_input_len} tokens, this text is far longer",
                field=field,
                code="context_length_exceeded",
            )

    async def _generate_one(self) -> None:
        token = self.bundle.eos_token_ids[0]
        async with aclosing(self._running_engine().generate([token], 1, Sampling(temperature=0))) as tokens:
            async for _ in tokens:
                return
        raise EngineError("no token came")

    def _running_engine(self) -> Engine:
        if self.engine is None or self.health.phase is Phase.DRAINING:
            state = "starting" if self.engine is None else "shutting down"
            raise RequestError(f"the server is {state}", code="not_ready", status=503)
        return self.engine


def create_app(service: Service) -> Starlette:
    async def chat_completions(http: Request) -> Response:
        request = parse_chat(await _json(http))
        service.check(request)
        service.check_size(str(request.messages), "messages")
        prompt = await asyncio.to_thread(_chat_prompt, service, request)  # a long text must not stall the others
        return await _respond(http, service, request, prompt, _ChatShape(request.model))

    async def completions(http: Request) -> Response:
        request = parse_completion(await _json(http))
        service.check(request)
        service.check_size(request.prompt, "prompt")
        prompt = await asyncio.to_thread(_prompt, service, request)
        return await _respond(http, service, request, prompt, _TextShape(request.model))

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [service.described(name) for name in service.model_names]})

    async def model(http: Request) -> Response:
        name = http.path_params["name"]
        service.check_name(name)
        return JSONResponse(service.described(name))

    async def live(_: Request) -> Response:
        return _health(True, "live", "Service is live.")

    async def ready(_: Request) -> Response:
        if await service.health.is_ready():
            return _health(True, "ready", "Service is ready.")
        return _health(False, service.health.phase.value, "Service is not ready.")

    async def metrics(_: Request) -> Response:
        engine = await asyncio.to_thread(service.engine_metrics)
        return PlainTextResponse(service.metrics.render() + gpu_cache_usage(engine, service.model_names[0]) + engine)

    async def metadata(_: Request) -> Response:
        model = {"shortName": service.bundle.served_model_name, "modelUrl": service.bundle.unit}
        return JSONResponse({"version": __version__, "assetInfo": [], "licenseInfo": {}, "modelInfo": [model]})

    async def version(_: Request) -> Response:
        return JSONResponse({"release": __version__, "api": "1"})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/health/live", live),
            Route("/v1/health/ready", ready),
            Route("/v1/metrics", metrics),
            Route("/metrics", metrics),
            Route("/v1/metadata", metadata),
            Route("/v1/version", version),
        ],
        middleware=[Middleware(_InFlight, service)],
        exception_handlers={
            RequestError: _refusal,
            EngineError: _engine_failure,
            HTTPException: _http_error,
            ClientDisconnect: _nobody_listens,
        },
    )


class _InFlight:
    """Counts requests from their first byte to the last of their answer, so that a shutdown forgets none."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        count = 1 if scope.get("method") == "POST" else 0
        self._service.in_flight += count
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.in_flight -= count


class _ChatShape:
    """How chat answers are written as JSON."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "object": "chat.completion", "choices": [choice]}

    def first(self) -> dict[str, Any] | None:
        return self._chunk({"role": "assistant", "content": ""}, None)

    def piece(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return self._chunk({"content": text} if text else {}, finish_reason)

    def empty(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": []}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self.empty(), "choices": [choice]}


class _TextShape:
    """How plain completions are written as JSON; whole ones and pieces look alike."""

    def __init__(self, model: str) -> None:
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "choices": [choice]}

    def first(self) -> dict[str, Any] | None:
        return None

    def piece(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return self.whole(text, finish_reason)

    def empty(self) -> dict[str, Any]:
        return {**self._head, "choices": []}


_T = TypeVar("_T")
_Shape = _ChatShape | _TextShape


def _chat_prompt(service: Service, request: ChatRequest) -> list[int]:
    if service.chat_template is None:
        raise RequestError(
            "this model has no chat template; use /v1/completions", field="messages", code="no_chat_template"
        )
    try:
        return service.chat_template.encode(request.messages)
    except UsageError as error:
        raise RequestError(f"{error.message}: {error.why}", field="messages", code="chat_template") from None


def _prompt(service: Service, request: CompletionRequest) -> list[int]:
    if isinstance(request.prompt, str):
        return service.tokenizer.encode(request.prompt, add_special_tokens=True)
    if not all(0 <= token < service.bundle.vocab_size for token in request.prompt):
        raise RequestError(f"token ids must lie in 0..{service.bundle.vocab_size - 1}", field="prompt")
    return list(request.prompt)


async def _respond(
    http: Request, service: Service, request: CommonRequest, prompt: list[int], shape: _Shape
) -> Response:
    max_tokens = check_length(prompt, request.max_tokens, service.bundle.max_input_len, service.bundle.max_seq_len)
    pieces = service.pieces(request, prompt, max_tokens)
    if request.stream:
        # The first piece comes before the status line, so that a refusal of the engine has its own status.
        first = await _unless_disconnected(http, _first(pieces))
        events = _events(first, pieces, shape, len(prompt), include_usage=request.include_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    text, tokens, finish_reason = await _unless_disconnected(http, _collect(pieces))
    return JSONResponse(shape.whole(text, finish_reason) | {"usage": _usage(len(prompt), tokens)})


async def _first(pieces: AsyncGenerator[Piece, None]) -> Piece:
    return await anext(pieces)


async def _collect(pieces: AsyncGenerator[Piece, None]) -> tuple[str, int, str | None]:
    """The whole text, its number of tokens, and why it ended."""
    collected = []
    async with aclosing(pieces):
        async for piece in pieces:
            collected.append(piece)
    text = "".join(piece.text for piece in collected)
    return text, sum(piece.tokens for piece in collected), collected[-1].finish_reason


async def _events(
    first: Piece, rest: AsyncGenerator[Piece, None], shape: _Shape, prompt_tokens: int, *, include_usage: bool
) -> AsyncGenerator[str, None]:
    """The answer as server-sent events; an engine that fails midway is reported as an event."""
    extra = {"usage": None} if include_usage else {}
    tokens = 0
    async with aclosing(rest):
        if (head := shape.first()) is not None:
            yield _event(head | extra)
        try:
            async for piece in _chain(first, rest):
                tokens += piece.tokens
                if piece.text or piece.finish_reason:
                    yield _event(shape.piece(piece.text, piece.finish_reason) | extra)
            if include_usage:
                yield _event(shape.empty() | {"usage": _usage(prompt_tokens, tokens)})
        except EngineError as error:
            yield _event(RequestError(str(error), code="engine_error", status=500).body)
    yield "data: [DONE]\n\n"


async def _chain(first: Piece, rest: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    yield first
    async for piece in rest:
        yield piece


async def _unless_disconnected(http: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled if the client goes away first. Raises ClientDisconnect then."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        watching.cancel()


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _health(ok: bool, status: str, message: str) -> Response:
    document = {"object": f"health.{'response' if ok else 'error'}", "status": status, "message": message}
    return JSONResponse(document, status_code=200 if ok else 503)


async def _json(http: Request) -> Any:
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large", status=413)
    try:
        document = json.loads(body)
        if b"\\ud" in body.lower():  # half a surrogate pair is no character, and no tokenizer takes it
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # noqa: S101 (for the type checker)
    return JSONResponse(error.body, status_code=error.status)


async def _engine_failure(http: Request, error: Exception) -> Response:
    return await _refusal(http, RequestError(str(error), code="engine_error", status=500))


async def _http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (for the type checker)
    return await _refusal(
        http, RequestError(f"{error.detail}: {http.method} {http.url.path}", status=error.status_code)
    )


async def _nobody_listens(_: Request, __: Exception) -> Response:
    return Response(status_code=499)

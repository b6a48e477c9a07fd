"""What clients send to the OpenAI API, checked field by field.

Fields that would change the answer and aren't implemented are refused; others that aren't known are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.runtime.engine import Guide, Sampling


class RequestError(Exception):
    """A refusal in OpenAI's shape: HTTP status, message, the field that is wrong, and a stable code."""

    def __init__(
        self, message: str, *, field: str | None = None, code: str | None = None, status: int = 400, kind: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "message": message,
                "type": kind or ("invalid_request_error" if status < 500 else "server_error"),
                "param": field,
                "code": code,
            }
        }


@dataclass(frozen=True)
class CommonRequest:
    """What chat and plain completions share. `max_tokens` is None where the client leaves it open."""

    model: str
    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class ChatRequest(CommonRequest):
    messages: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class CompletionRequest(CommonRequest):
    """`prompt` is text or token ids."""

    prompt: str | tuple[int, ...]


ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_chat(body: Any) -> ChatRequest:
    """Raises RequestError."""
    fields = _Fields(body)
    fields.refuse("tools", "tool_choice", "functions", "function_call", "audio", "top_logprobs")
    messages = fields.value("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("'messages' must be a list of at least one message", field="messages")
    parsed = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    common = _common(fields, fields.integer("max_completion_tokens", 1) or fields.integer("max_tokens", 1))
    return ChatRequest(**common, messages=parsed)


def parse_completion(body: Any) -> CompletionRequest:
    """Raises RequestError."""
    fields = _Fields(body)
    fields.refuse("suffix", "echo")
    if fields.integer("best_of", 1, 1) not in (None, 1):
        raise RequestError("only 'best_of' 1 is supported", field="best_of")
    common = _common(fields, fields.integer("max_tokens", 1) or 16)
    return CompletionRequest(**common, prompt=_prompt(fields.value("prompt")))


def _common(fields: _Fields, max_tokens: int | None) -> dict[str, Any]:
    if fields.integer("n", 1) not in (None, 1):
        raise RequestError("only 'n' 1 is supported: send several requests at the same time instead", field="n")
    fields.refuse("logprobs", "logit_bias")
    model = fields.value("model")
    if not isinstance(model, str):
        raise RequestError("'model' must be a string", field="model")
    stream_options = fields.value("stream_options")
    if not isinstance(stream_options, dict | None):
        raise RequestError("'stream_options' must be an object", field="stream_options")
    return {
        "model": model,
        "max_tokens": max_tokens,
        "sampling": Sampling(
            temperature=fields.number("temperature", 0, 2, 1.0),
            top_p=fields.number("top_p", 0, 1, 1.0, above=True),
            presence_penalty=fields.number("presence_penalty", -2, 2, 0.0),
            frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0),
            seed=fields.integer("seed"),
            guide=_guide(fields.value("response_format")),
        ),
        "stop": _stop(fields.value("stop")),
        "stream": fields.boolean("stream"),
        "include_usage": _Fields(stream_options or {}, "stream_options.").boolean("include_usage"),
    }


class _Fields:
    """Typed access to a JSON object; null counts as absent."""

    def __init__(self, body: Any, path: str = "") -> None:
        if not isinstance(body, dict):
            name = path.removesuffix(".")
            raise RequestError(f"{f'{name!r}' if name else 'the body'} must be a JSON object", field=name or None)
        self._body: dict[str, Any] = body
        self._path = path

    def value(self, name: str) -> Any:
        return self._body.get(name)

    def refuse(self, *names: str) -> None:
        for name in names:
            if self._body.get(name) not in (None, False, 0, "", "auto", "none", [], {}, {"type": "text"}):
                raise RequestError(f"'{name}' is not supported", field=name, code="unsupported_parameter")

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        def accepts(value: Any) -> bool:
            return isinstance(value, int) and (least is None or value >= least) and (most is None or value <= most)

        expected = "an integer" + (f" of at least {least}" if least is not None else "")
        value: int | None = self._checked(name, None, accepts, expected)
        return value

    def number(self, name: str, least: float, most: float, default: float, *, above: bool = False) -> float:
        def accepts(value: Any) -> bool:
            return isinstance(value, int | float) and least <= value <= most and not (above and value == least)

        between = f"a number above {least} and at most {most}" if above else f"a number from {least} to {most}"
        return float(self._checked(name, default, accepts, between))

    def boolean(self, name: str) -> bool:
        value = self._body.get(name)
        if not isinstance(value, bool | None):
            raise RequestError(f"'{self._path}{name}' must be true or false", field=self._path + name)
        return bool(value)

    def _checked(self, name: str, default: Any, accepts: Callable[[Any], bool], expected: str) -> Any:
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not accepts(value):
            raise RequestError(f"'{name}' must be {expected}", field=name)
        return value


def _message(message: Any, where: str) -> Mapping[str, Any]:
    """A message whose content is one string (or null), with OpenAI's newer name of `system` undone."""
    if not isinstance(message, dict):
        raise RequestError(f"'{where}' must be an object", field=where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"'{where}.role' must be one of {', '.join(ROLES)}", field=f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    elif not isinstance(content, str | None):
        raise RequestError(f"'{where}.content' must be a string or a list of parts", field=f"{where}.content")
    return message | {"role": "system" if role == "developer" else role, "content": content}


def _text_part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(f"'{where}' must be a text part: this model takes text only", field=where)


_GUIDES = {"regex": "regex", "ebnf": "ebnf_grammar"}
"""Formats that are text under their own name → TensorRT-LLM's type of guide."""


def _guide(response_format: Any) -> Guide | None:
    """OpenAI's `text`, `json_object` and `json_schema`, and trtllm-serve's `regex` and `ebnf`."""
    if response_format is None:
        return None
    fields = _Fields(response_format, "response_format.")
    kind = fields.value("type")
    if kind in ("text", "json_object"):
        return Guide("json") if kind == "json_object" else None
    if kind == "json_schema":
        outer = fields.value("json_schema")
        schema = outer.get("schema") if isinstance(outer, dict) else None
        if not isinstance(schema, dict):
            name = "response_format.json_schema.schema"
            raise RequestError(f"'{name}' must be a JSON schema, an object", field=name)
        return Guide("json_schema", json.dumps(schema))
    if isinstance(kind, str) and kind in _GUIDES:
        text = fields.value(kind)
        if not isinstance(text, str) or not text:
            raise RequestError(f"'response_format.{kind}' must be a text", field=f"response_format.{kind}")
        return Guide(_GUIDES[kind], text)
    known = ", ".join(("text", "json_object", "json_schema", *_GUIDES))
    raise RequestError(f"'response_format.type' must be one of {known}", field="response_format.type")


def _stop(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise RequestError("'stop' must be a string or a list of strings, none of them empty", field="stop")
    return tuple(stops)


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(_is_token(token) for token in prompt):
        return tuple(prompt)
    raise RequestError(
        "'prompt' must be a string or a list of token ids: one prompt per request, please", field="prompt"
    )


def _is_token(token: Any) -> bool:
    return isinstance(token, int) and not isinstance(token, bool)


def check_length(prompt: Sequence[int], max_tokens: int | None, max_input_len: int, max_seq_len: int) -> int:
    """How many tokens may be generated. Raises RequestError where prompt and answer don't fit the engine."""
    room = max_seq_len - len(prompt)
    wanted = max(1, room) if max_tokens is None else max_tokens
    if not prompt:
        raise RequestError("the prompt is empty", field="prompt")
    if len(prompt) > max_input_len or wanted > room:
        raise RequestError(
            f"This model's maximum context length is {max_seq_len} tokens, of which a prompt may have {max_input_len}. "
            f"You asked for {len(prompt) + wanted} tokens: {len(prompt)} in the prompt and {wanted} in the answer.",
            field="messages",
            code="context_length_exceeded",
        )
    return wanted

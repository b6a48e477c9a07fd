"""A model's chat template: messages to token ids, as `transformers` renders and encodes them.

Templates come with the model and are run in jinja2's sandbox. Text of the messages never becomes a control token:
where a message spells one, as `<|im_end|>`, the spelling is marked before rendering and encoded as plain text after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from builder.errors import UsageError
from builder.runtime.tokenizer import Tokenizer

_MARK_BEGIN, _MARK_END = "\U0010fffc", "\U0010fffd"
"""Private-use characters around a control token that a message spells."""

_A_DAY = datetime(2024, 7, 26)
"""What templates that ask for the date are told where the answer must stay the same."""


class ChatTemplate:
    """Renders and encodes conversations of one model."""

    def __init__(self, source: str, tokenizer: Tokenizer, variables: Mapping[str, str]) -> None:
        """`variables` are the names that templates may use for special tokens: bos_token, eos_token, …"""
        self._tokenizer = tokenizer
        self._variables = dict(variables)
        self._template = _environment().from_string(source)
        tokens = [text for text in tokenizer.added_tokens if text in tokenizer.special_tokens or _used(text, source)]
        control = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)"
        self._control = re.compile(control)
        self._marked = re.compile(f"{_MARK_BEGIN}({control}){_MARK_END}|[{_MARK_BEGIN}{_MARK_END}]")

    @classmethod
    def open(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a tokenizer folder, or None where the model has none."""
        config = _read_json(folder / "tokenizer_config.json")
        source = _template_source(folder, config)
        return None if source is None else cls(source, tokenizer, _special_tokens(folder, config))

    def encode(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation with the header of the answer at its end.

        A `content` of null counts as empty. Raises UsageError with the template's own words where it refuses.
        """
        prepared = [self._mark(_with_content(message)) for message in messages]
        try:
            text = self._template.render(
                messages=prepared, add_generation_prompt=True, tools=None, documents=None, **self._variables
            )
        except TemplateError as error:
            raise UsageError(
                "the model's chat template refuses these messages", why=error.message, code="CHAT_TEMPLATE"
            ) from None
        pieces = self._marked.split(text)
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if piece and index % 2 == 0:
                ids += self._tokenizer.encode(piece, add_special_tokens=False)
            elif piece:
                ids += self._tokenizer.encode_plain(piece)
        return ids

    def _mark(self, value: Any) -> Any:
        if isinstance(value, str):
            clean = value.replace(_MARK_BEGIN, "").replace(_MARK_END, "")
            return self._control.sub(rf"{_MARK_BEGIN}\g<0>{_MARK_END}", clean)
        if isinstance(value, Mapping):
            return {key: self._mark(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._mark(item) for item in value]
        return value


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the answers for training, is just its content here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own spelling)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return str(caller())


def text_renderer(folder: Path, own: str | None = None) -> Callable[[Sequence[Mapping[str, Any]]], str] | None:
    """What makes text of a whole conversation, for calibration: the same text on every day, without the first token
    that the tokenizer adds by itself. `own` replaces the template of the folder; None where there is none.
    """
    config = _read_json(folder / "tokenizer_config.json")
    source = own or _template_source(folder, config)
    if source is None:
        return None
    variables = _special_tokens(folder, config)
    environment = _environment()
    environment.globals["strftime_now"] = _A_DAY.strftime
    template = environment.from_string(source)

    def render(messages: Sequence[Mapping[str, Any]]) -> str:
        try:
            text = template.render(messages=[_with_content(message) for message in messages], **variables)
        except TemplateError as error:
            raise UsageError(
                "the model's chat template refuses these messages", why=error.message, code="CHAT_TEMPLATE"
            ) from None
        return text.removeprefix(variables.get("bos_token", ""))

    return render


def check_template(source: str) -> None:
    """Raises ValueError for what isn't a Jinja template, with the line, and for an empty one."""
    if not source.strip():
        raise ValueError("it is empty")
    try:
        _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _used(token: str, source: str) -> bool:
    return token in source and not token.isspace()


def _with_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without nulls, in which many templates fail, and with a content, which most of them need."""
    given = {key: value for key, value in message.items() if value is not None}
    return given if "content" in given else given | {"content": ""}


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The names that templates may use: bos_token, eos_token, …"""
    special = _read_json(folder / "special_tokens_map.json") | config
    variables = {name: _token_text(value) for name, value in special.items() if name.endswith("_token")}
    return {name: text for name, text in variables.items() if text is not None}


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja`, else `chat_template.json`, else what `tokenizer_config.json` holds."""
    separate = folder / "chat_template.jinja"
    if separate.exists():
        return separate.read_text(encoding="utf-8")
    template = _read_json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document

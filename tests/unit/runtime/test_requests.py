import json
from typing import Any

import pytest

from builder.runtime.engine import Guide
from builder.runtime.requests import RequestError, check_length, parse_chat, parse_completion

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Hi"}


def refusal(parse: Any, body: Any) -> dict[str, Any]:
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert caught.value.status == 400
    error: dict[str, Any] = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error


def test_defaults_are_those_of_openai() -> None:
    request = parse_chat(CHAT)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (1.0, 1.0, None)
    assert (request.max_tokens, request.stop, request.stream, request.include_usage) == (None, (), False, False)
    assert parse_completion(TEXT).max_tokens == 16


def test_all_supported_fields_are_taken() -> None:
    request = parse_chat(
        CHAT
        | {
            "max_completion_tokens": 7,
            "temperature": 0,
            "top_p": 0.5,
            "presence_penalty": -1,
            "frequency_penalty": 2,
            "seed": -3,
            "stop": "END",
            "stream": True,
            "stream_options": {"include_usage": True},
            "n": 1,
            "user": "somebody",
        }
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.0, 0.5, -3)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1.0, 2.0)
    assert (request.max_tokens, request.stop, request.stream, request.include_usage) == (7, ("END",), True, True)


def test_null_counts_as_absent() -> None:
    names = ("max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "n", "logprobs", "tools")
    assert parse_chat(CHAT | dict.fromkeys(names)) == parse_chat(CHAT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 3),
        ("model", None),
        ("messages", []),
        ("messages", "Hi"),
        ("messages", None),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_completion_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("presence_penalty", 3),
        ("frequency_penalty", []),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", [""]),
        ("stop", ["a", 1]),
        ("stream", "yes"),
        ("stream_options", True),
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"5": 1}),
        ("tools", [{"type": "function"}]),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    error = refusal(parse_chat, CHAT | {field: value})
    assert error["param"] == field
    assert f"'{field}'" in error["message"]


def test_a_wrong_field_deep_inside_is_named() -> None:
    assert (
        refusal(parse_chat, CHAT | {"stream_options": {"include_usage": 1}})["param"] == "stream_options.include_usage"
    )
    bad_role = {"messages": [*CHAT["messages"], {"role": "boss", "content": "Hi"}]}
    assert refusal(parse_chat, CHAT | bad_role)["param"] == "messages[1].role"
    image = {"type": "image_url", "image_url": {"url": "http://x"}}
    error = refusal(parse_chat, CHAT | {"messages": [{"role": "user", "content": [image]}]})
    assert error["param"] == "messages[0].content[0]"


@pytest.mark.parametrize("body", [[], "text", None, 3])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    assert "JSON object" in refusal(parse_chat, body)["message"]


def test_text_parts_are_joined_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    request = parse_chat(CHAT | {"messages": [{"role": "developer", "content": parts}]})
    assert request.messages == ({"role": "system", "content": "Hello"},)


@pytest.mark.parametrize(
    ("prompt", "parsed"), [("Hi", "Hi"), (["Hi"], "Hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ("", "")]
)
def test_a_prompt_is_text_or_token_ids(prompt: Any, parsed: Any) -> None:
    assert parse_completion(TEXT | {"prompt": prompt}).prompt == parsed


@pytest.mark.parametrize("prompt", [None, 5, ["a", "b"], [], [True], [[1], [2]], [1, "a"]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert refusal(parse_completion, TEXT | {"prompt": prompt})["param"] == "prompt"


@pytest.mark.parametrize(("field", "value"), [("echo", True), ("suffix", "x"), ("best_of", 2), ("logprobs", 5)])
def test_fields_of_completions_that_are_not_supported_are_named(field: str, value: Any) -> None:
    assert refusal(parse_completion, TEXT | {field: value})["param"] == field


def test_an_open_answer_may_fill_the_sequence() -> None:
    assert check_length([1] * 10, None, 64, 96) == 86
    assert check_length([1] * 10, 86, 64, 96) == 86


@pytest.mark.parametrize(("prompt", "max_tokens"), [(65, 1), (10, 87), (65, None), (97, None)])
def test_what_does_not_fit_the_engine_is_refused_with_its_numbers(prompt: int, max_tokens: int | None) -> None:
    with pytest.raises(RequestError) as caught:
        check_length([1] * prompt, max_tokens, 64, 96)
    error = caught.value.body["error"]
    assert error["code"] == "context_length_exceeded"
    assert "96" in str(error["message"])
    assert str(prompt) in str(error["message"])


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        check_length([], 5, 64, 96)


SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("response_format", "guide"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Guide("json")),
        (
            {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}},
            Guide("json_schema", json.dumps(SCHEMA)),
        ),
        ({"type": "regex", "regex": "[0-9]+"}, Guide("regex", "[0-9]+")),
        ({"type": "ebnf", "ebnf": 'root ::= "yes"'}, Guide("ebnf_grammar", 'root ::= "yes"')),
    ],
)
@pytest.mark.parametrize(("parse", "body"), [(parse_chat, CHAT), (parse_completion, TEXT)])
def test_a_response_format_becomes_tensorrt_llm_s_guide(
    response_format: Any, guide: Guide | None, parse: Any, body: Any
) -> None:
    assert parse(body | {"response_format": response_format}).sampling.guide == guide


@pytest.mark.parametrize(
    ("response_format", "field"),
    [
        ("json_object", "response_format"),
        ({}, "response_format.type"),
        ({"type": "yaml"}, "response_format.type"),
        ({"type": ["json_object"]}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": "{}"}}, "response_format.json_schema.schema"),
        ({"type": "regex"}, "response_format.regex"),
        ({"type": "regex", "regex": ""}, "response_format.regex"),
        ({"type": "ebnf", "ebnf": 3}, "response_format.ebnf"),
    ],
)
def test_a_response_format_that_says_nothing_usable_is_refused(response_format: Any, field: str) -> None:
    assert refusal(parse_chat, CHAT | {"response_format": response_format})["param"] == field

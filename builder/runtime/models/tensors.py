"""Small readers over Triton's Python objects, shared by the models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils


def parameter(config: dict[str, Any], key: str) -> str:
    """A parameter of `config.pbtxt`. Raises KeyError with its name where it is absent."""
    value: str = config["parameters"][key]["string_value"]
    return value


def required_input(request: Any, name: str) -> Any:
    """The array of an input. Raises ValueError where it is absent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        raise ValueError(f"the input {name} is missing")
    return tensor.as_numpy()


def optional_input(request: Any, name: str, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy()


def refuse_inputs(request: Any, names: Iterable[str]) -> None:
    """Raises ValueError if the request has one of these: better than to ignore what a client asked for."""
    for name in names:
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is not None and tensor.as_numpy().size:
            raise ValueError(f"the input {name} is not supported")


def response(outputs: Mapping[str, Any], requested: Collection[str]) -> Any:
    """A response with those of the outputs that were requested, as arrays by name.

    Triton would drop the others itself, but a response sender does so without holding the GIL, and since Python 3.12
    that ends the process.
    """
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, value) for name, value in outputs.items() if name in requested]
    )


def error_response(error: Exception) -> Any:
    """The answer to a request that failed; without one its client would wait for ever."""
    return pb_utils.InferenceResponse([], error=triton_error(error))


def triton_error(error: Exception) -> Any:
    return pb_utils.TritonError(str(error) or type(error).__name__)

"""Prometheus metrics under the names of NIM 1.x for LLMs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """`max_batch_size`: how many requests the engine runs at once."""

    def __init__(self, model: str, max_batch_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model}
        self._clock = clock
        self.running = self._gauge("num_requests_running", "Requests that are generating")
        self.waiting = self._gauge("num_requests_waiting", "Requests that wait for their first token")
        self._gauge("num_request_max", "Requests that can generate at the same time").set(max_batch_size)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens taken in")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self._first = self._histogram("time_to_first_token_seconds", "From the request to its first token", _SECONDS)
        self._between = self._histogram("time_per_output_token_seconds", "Between two tokens", _SECONDS)
        self._whole = self._histogram("e2e_request_latency_seconds", "From the request to its end", _SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens per request", _TOKENS)
        self._generation = self._histogram("request_generation_tokens", "Generated tokens per request", _TOKENS)
        self._finished = Counter(
            "request_finish", "Requests by how they ended", [*self._labels, "finished_reason"], registry=self._registry
        )

    @contextmanager
    def request(self, prompt_tokens: int) -> Iterator[RequestMetrics]:
        """Follow one request; one that leaves without a finish reason counts as `abort`, or `error` by exception."""
        request = RequestMetrics(self)
        self.waiting.inc()
        self._prompt_tokens.inc(prompt_tokens)
        self._prompt.observe(prompt_tokens)
        try:
            yield request
        except Exception:
            request.finish_reason = "error"
            raise
        finally:
            (self.running if request.tokens else self.waiting).dec()
            self._whole.observe(self._clock() - request.started)
            self._generation.observe(request.tokens)
            self._finished.labels(**self._labels, finished_reason=request.finish_reason).inc()

    def render(self) -> str:
        text: str = generate_latest(self._registry).decode()
        return text

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(self._labels), registry=self._registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, list(self._labels), registry=self._registry).labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, list(self._labels), registry=self._registry, buckets=buckets)
        return histogram.labels(**self._labels)


class RequestMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.started = self._last = metrics._clock()
        self.tokens = 0
        self.finish_reason = "abort"

    def generated(self, tokens: int) -> None:
        """`tokens` more came, together."""
        now = self._metrics._clock()
        if self.tokens == 0 and tokens:
            self._metrics.waiting.dec()
            self._metrics.running.inc()
            self._metrics._first.observe(now - self.started)
        elif tokens:
            for _ in range(tokens):
                self._metrics._between.observe((now - self._last) / tokens)
        self._last = now
        self.tokens += tokens
        self._metrics._generation_tokens.inc(tokens)


def gpu_cache_usage(engine_metrics: str, model: str) -> str:
    """NIM's `gpu_cache_usage_perc` from TensorRT-LLM's own metrics; empty where the engine has none."""
    for line in engine_metrics.splitlines():
        if line.startswith("nv_trt_llm_kv_cache_block_metrics{") and 'kv_cache_block_type="fraction"' in line:
            value = line.rpartition(" ")[2]
            return (
                "# HELP gpu_cache_usage_perc Share of the KV cache in use, 0 to 1\n"
                "# TYPE gpu_cache_usage_perc gauge\n"
                f'gpu_cache_usage_perc{{model_name="{model}"}} {value}\n'
            )
    return ""

import pytest

from builder.runtime.metrics import Metrics, gpu_cache_usage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_request_waits_then_runs_then_ends() -> None:
    clock = Clock()
    metrics = Metrics("m", 4, clock)
    with metrics.request(10) as request:
        assert 'num_requests_waiting{model_name="m"} 1.0' in metrics.render()
        clock.now += 0.5
        request.generated(1)
        assert 'num_requests_waiting{model_name="m"} 0.0' in metrics.render()
        assert 'num_requests_running{model_name="m"} 1.0' in metrics.render()
        clock.now += 0.2
        request.generated(2)
        request.finish_reason = "length"
    text = metrics.render()
    assert 'num_requests_running{model_name="m"} 0.0' in text
    assert 'time_to_first_token_seconds_sum{model_name="m"} 0.5' in text
    assert 'time_per_output_token_seconds_count{model_name="m"} 2.0' in text
    assert 'e2e_request_latency_seconds_bucket{le="0.75",model_name="m"} 1.0' in text
    assert 'generation_tokens_total{model_name="m"} 3.0' in text
    assert 'request_finish_total{finished_reason="length",model_name="m"} 1.0' in text


def test_a_request_that_fails_or_is_left_is_counted_as_such() -> None:
    metrics = Metrics("m", 4)
    with pytest.raises(ValueError, match="no"), metrics.request(1):
        raise ValueError("no")
    with metrics.request(1):
        pass
    text = metrics.render()
    assert 'request_finish_total{finished_reason="error",model_name="m"} 1.0' in text
    assert 'request_finish_total{finished_reason="abort",model_name="m"} 1.0' in text
    assert 'num_requests_waiting{model_name="m"} 0.0' in text


def test_the_gpu_s_cache_usage_comes_from_tensorrt_llm() -> None:
    line = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="%s",model="tensorrt_llm",version="1"} %s\n'
    engine = line % ("used", 12) + line % ("fraction", 0.25)
    assert gpu_cache_usage(engine, "m").endswith('gpu_cache_usage_perc{model_name="m"} 0.25\n')
    assert gpu_cache_usage("nv_inference_count 3\n", "m") == ""

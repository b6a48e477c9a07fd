import asyncio

import pytest

from builder.runtime.health import FRESH_SECONDS, Health, Phase


class Engine:
    def __init__(self) -> None:
        self.alive = True
        self.probes = 0

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(0)
        if not self.alive:
            raise RuntimeError("dead")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def serving() -> tuple[Health, Engine, Clock]:
    engine, clock = Engine(), Clock()
    health = Health(engine.probe, clock)
    health.phase = Phase.SERVING
    return health, engine, clock


def test_only_a_serving_phase_is_ready() -> None:
    health, engine, _ = serving()
    for phase in (Phase.STARTING, Phase.DRAINING):
        health.phase = phase
        assert not asyncio.run(health.is_ready())
    assert engine.probes == 0


def test_recent_tokens_spare_the_probe() -> None:
    health, engine, clock = serving()
    health.token()
    assert asyncio.run(health.is_ready())
    assert engine.probes == 0
    clock.now += FRESH_SECONDS
    assert asyncio.run(health.is_ready())
    assert engine.probes == 1


def test_an_engine_that_died_is_noticed() -> None:
    health, engine, clock = serving()
    assert asyncio.run(health.is_ready())
    engine.alive = False
    clock.now += FRESH_SECONDS
    assert not asyncio.run(health.is_ready())
    assert not asyncio.run(health.is_ready())
    assert health.failed_probes == 2
    engine.alive = True
    assert asyncio.run(health.is_ready())
    assert health.failed_probes == 0


def test_a_suspected_engine_is_probed_at_once() -> None:
    health, engine, _ = serving()
    health.token()
    health.suspect()
    assert asyncio.run(health.is_ready())
    assert engine.probes == 1


def test_callers_at_the_same_time_share_one_probe() -> None:
    health, engine, _ = serving()

    async def ask() -> list[bool]:
        return await asyncio.gather(*(health.is_ready() for _ in range(5)))

    assert asyncio.run(ask()) == [True] * 5
    assert engine.probes == 1


def test_a_busy_engine_is_alive_and_an_idle_silent_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.runtime.health.PROBE_SECONDS", 0.01)

    async def silent() -> None:
        await asyncio.sleep(60)

    clock = Clock()
    health = Health(silent, clock)
    health.phase = Phase.SERVING
    health.is_working = lambda: True
    assert asyncio.run(health.is_ready())
    assert health.failed_probes == 0
    health.is_working = lambda: False
    assert asyncio.run(health.is_ready())  # it worked a moment ago
    clock.now += FRESH_SECONDS
    assert not asyncio.run(health.is_ready())
    assert health.failed_probes == 1

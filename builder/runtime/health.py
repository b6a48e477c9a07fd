"""Whether answers can be given right now: by giving one.

An engine may die or hang while its server says that all is well, so readiness is a generated token: any request's, or
that of a probe if none came lately.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum

FRESH_SECONDS = 10.0
PROBE_SECONDS = 10.0


class Phase(Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Health:
    def __init__(self, probe: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.monotonic) -> None:
        """`probe` generates one token, or raises."""
        self.phase = Phase.STARTING
        self.is_working: Callable[[], bool] = lambda: False
        """Whether the engine's processes have computed since this was last asked: a full batch isn't a dead engine."""
        self._probe = probe
        self._clock = clock
        self.failed_probes = 0
        """In a row."""
        self._last_token = float("-inf")
        self._probing = asyncio.Lock()

    def token(self) -> None:
        """The engine just generated something."""
        self._last_token = self._clock()
        self.failed_probes = 0

    def suspect(self) -> None:
        """The engine just failed at something; the next question is answered by a probe."""
        self._last_token = float("-inf")

    async def is_ready(self) -> bool:
        if self.phase is not Phase.SERVING:
            return False
        async with self._probing:  # callers at the same time share one probe
            if self._clock() - self._last_token < FRESH_SECONDS:
                return True
            return await self.probe()

    async def probe(self) -> bool:
        """Generate one token now; True if it came in time."""
        self.is_working()
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._probe()
        except TimeoutError:
            if self.phase is Phase.SERVING and self.is_working():
                self.token()  # as good as one: it works through a full batch
                return True
            self.failed_probes += 1
            return False
        except Exception:
            self.failed_probes += 1
            return False
        self.token()
        return True

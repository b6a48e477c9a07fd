"""Serve one bundle: Triton below, the OpenAI API above, until a signal or the engine's death.

port opens ─→ Triton loads ─→ one token generated ─→ ready ─→ SIGTERM: not ready, answers finish ─→ Triton stops
live: 200 from the start; ready: 503 until a token was generated and again while draining
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from builder.errors import HostError, VerificationError
from builder.runtime.bundle import Bundle
from builder.runtime.engine import TritonEngine
from builder.runtime.health import Phase
from builder.runtime.launcher import Triton, find_triton
from builder.runtime.server import Service, create_app

START_SECONDS = 1800.0
"""How long an engine may load; large ones take minutes."""

GRACE_SECONDS = 30.0

WATCH_SECONDS = 2.0

FAILED_PROBES = 3
"""So many tokens in a row that did not come mean that the engine is dead, and that a new process must be started."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoints:
    """Where a ready server listens: the OpenAI API, and Triton's own ports on loopback."""

    url: str
    model: str
    triton_http: str
    triton_grpc: str
    triton_metrics: str


def serve(
    root: Path,
    *,
    cache: Path,
    host: str = "0.0.0.0",  # noqa: S104 (the API is there to be reached)
    port: int = 8000,
    model_names: Sequence[str] = (),
    grace_seconds: float = GRACE_SECONDS,
    start_seconds: float = START_SECONDS,
    on_ready: Callable[[Endpoints], None] | None = None,
) -> None:
    """Serve the bundle in `root` until SIGTERM or SIGINT; call it in the main thread.

    Then new requests are refused, open answers may take `grace_seconds` to finish, and a second signal cuts them off.
    `cache` is the only folder written to; port 0 takes a free one.
    Raises VerificationError for what isn't a bundle, HostError for the port, the cache or a missing Triton, and
    ToolchainError with the end of its log when Triton dies.
    """
    bundle = Bundle.open(root.resolve())
    installation = find_triton()
    try:
        service = Service(bundle, model_names)
    except Exception as error:  # of whatever library reads it
        raise VerificationError(
            "the tokenizer or chat template of this release can't be read",
            where=bundle.tokenizer,
            why=f"{type(error).__name__}: {error}",
            hint="pull or build the release again",
            code="TOKENIZER_DAMAGED",
        ) from error
    with _listen(host, port) as listener:
        server = _Server(service, grace_seconds, start_seconds, on_ready)
        asyncio.run(server.run(listener, lambda: Triton(bundle, cache, installation)))


class _Server:
    def __init__(
        self,
        service: Service,
        grace_seconds: float,
        start_seconds: float,
        on_ready: Callable[[Endpoints], None] | None,
    ) -> None:
        self._service = service
        self._grace_seconds = grace_seconds
        self._start_seconds = start_seconds
        self._on_ready = on_ready
        self._stopping = asyncio.Event()
        self._cut_off = asyncio.Event()

    async def run(self, listener: socket.socket, launch: Callable[[], Triton]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        http = _Http(
            uvicorn.Config(
                create_app(self._service),
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=2,
            )
        )
        listening = asyncio.create_task(http.serve([listener]))
        try:
            triton = launch()
            if os.getpid() == 1:
                loop.add_signal_handler(signal.SIGCHLD, reap_orphans, triton.pid, triton.poll)
            try:
                await self._until_stopped(listener, triton)
                http.should_exit = True
                await listening
            finally:
                await asyncio.to_thread(triton.stop)
        finally:
            http.should_exit = True
            await listening

    async def _until_stopped(self, listener: socket.socket, triton: Triton) -> None:
        """Start, serve and drain. Raises ToolchainError if Triton dies meanwhile."""
        life = asyncio.create_task(self._live(listener, triton))
        death = asyncio.create_task(self._death(triton))
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({life, death}, return_when=asyncio.FIRST_COMPLETED)
            for task in (death, life):
                if task.done():
                    task.result()
        finally:
            for task in (life, death, watch):
                task.cancel()

    async def _live(self, listener: socket.socket, triton: Triton) -> None:
        started = time.monotonic()
        bundle, health = self._service.bundle, self._service.health
        host, port = listener.getsockname()[:2]
        _log.info("http://%s:%s is open; loading %s", host, port, bundle.unit)
        engine = TritonEngine(
            triton.grpc_url,
            bundle.eos_token_ids,
            bundle.pad_token_id,
            streaming=bundle.streaming,
            beam_width=bundle.max_beam_width,
        )
        try:
            async with asyncio.timeout(self._start_seconds):
                while not self._stopping.is_set() and not await asyncio.to_thread(triton.is_ready):
                    await asyncio.sleep(0.05)
                self._service.engine = engine
                self._service.engine_metrics = triton.metrics
                health.is_working = triton.is_working
                while not self._stopping.is_set() and not await health.probe():
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise triton.failure(f"Triton wasn't ready after {self._start_seconds:.0f} s") from None
        if not self._stopping.is_set():
            health.phase = Phase.SERVING
            _log.info("%s is ready after %.1f s", self._service.model_names[0], time.monotonic() - started)
            if self._on_ready:
                self._on_ready(
                    Endpoints(
                        url=f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}",  # noqa: S104
                        model=self._service.model_names[0],
                        triton_http=triton.http_url,
                        triton_grpc=triton.grpc_url,
                        triton_metrics=triton.metrics_url,
                    )
                )
            await self._stopping.wait()
        await self._drain()
        await engine.close()

    async def _death(self, triton: Triton) -> None:
        """Returns never: raises ToolchainError once Triton is gone, or answers no more while it seems to live."""
        while triton.poll() is None:
            if self._service.health.failed_probes >= FAILED_PROBES:
                raise triton.failure("the engine no longer answers")
            await asyncio.sleep(0.1)
        raise triton.failure("Triton died")

    async def _watch(self) -> None:
        """Look after the engine even if nobody asks for its readiness."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self._service.health.is_ready()

    async def _drain(self) -> None:
        self._service.health.phase = Phase.DRAINING
        if self._service.in_flight:
            _log.info("waiting up to %.0f s for %d open answers", self._grace_seconds, self._service.in_flight)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_seconds):
                while self._service.in_flight and not self._cut_off.is_set():
                    await asyncio.sleep(0.05)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._cut_off.set()
        self._stopping.set()


class _Http(uvicorn.Server):
    """uvicorn without its own signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def reap_orphans(own: int, poll_own: Callable[[], int | None]) -> None:
    """As PID 1, collect processes that others left behind; the child `own` is collected by its own `poll_own`."""
    with suppress(ChildProcessError):
        while (exited := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if exited.si_pid != own:
                os.waitpid(exited.si_pid, 0)
            elif poll_own() is None:
                return


@contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, open before anything else so that probes are answered. Raises HostError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise HostError(
            f"port {port} is in use" if in_use else f"can't listen on {host}, port {port}",
            where=f"{host}:{port}",
            why=str(error),
            hint="take another one with --port or NIM_SERVER_PORT; `ss -ltnp` lists who listens",
            code="PORT_IN_USE" if in_use else "PORT",
        ) from error
    with listener:
        yield listener

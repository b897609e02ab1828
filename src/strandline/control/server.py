"""The driver's server of control commands: one thread for its Unix socket, and one for each command in progress."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from strandline.control.commands import CHECKPOINT, COMMANDS, SAVEPOINT, Command, RunningJob
from strandline.control.wire import (
    MAX_REQUEST_BYTES,
    Hello,
    ProgressMessage,
    Refusal,
    Request,
    Result,
    is_our_user,
    line,
    raw,
    version_error,
)
from strandline.core.errors import ConfigurationError, StrandlineError, UnavailableError, discreet
from strandline.core.failure import format_error, to_failure
from strandline.core.settings import ShowValues
from strandline.core.version import VERSION
from strandline.keeper.paths import Places

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 10.0
"""How long a client may take to send its request."""
_SEND_TIMEOUT_S = 30.0
"""How long a client may take to read the answer."""
_HEARTBEAT_S = 1.0
_SHUTDOWN_S = 2.0
"""How long the server waits for commands in progress when the run has ended."""
_PAUSE_S = 0.1
_CHECK_S = 5.0
"""The interval of checks whether the socket is still there."""
_MAX_CONVERSATIONS = 64
_MAX_AT_WORK = 16

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class ControlServer:
    """Answers commands for one run from `start` until `end`. No client can disturb another, whatever it sends."""

    def __init__(
        self,
        run: RunningJob,
        places: Places,
        since_ms: int,
        commands: Mapping[str, Command[Any, Any]] = COMMANDS,
        show_values: ShowValues = "errors",
    ) -> None:
        self._run = run
        self._show_values = show_values
        self._commands = commands
        self._path = places.run_socket()
        self._places = places
        self._hello = line(
            Hello(engine=VERSION, job=places.job, directory=places.store_url, pid=os.getpid(), since_ms=since_ms)
        )
        self._conversations: dict[_Conversation, asyncio.Task[None]] = {}
        self._workers: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._serve, name="strandline-control", daemon=True)

    def start(self) -> None:
        """Listen on this driver's socket; another driver of the same job, now or earlier, has another path."""
        _close_in_forks()
        clear_stale(self._places)
        self._listener = _listen(self._path)
        self._loop, self._ending = asyncio.new_event_loop(), asyncio.Event()
        try:
            self._thread.start()
        except BaseException:
            if self._thread.ident is None:
                self._loop.close()
                self._listener.close()
                self._path.unlink(missing_ok=True)
            raise

    def end(self) -> None:
        """Remove the socket and stop accepting. Commands in progress are answered if they end within `_SHUTDOWN_S`."""
        if self._thread.ident is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(RuntimeError):  # It has ended already.
            self._loop.call_soon_threadsafe(self._ending.set)

    def join(self) -> None:
        """After `end`, wait until all clients have their answers. A command's own thread returns at once."""
        if self._thread.ident is not None and threading.current_thread() not in self._workers:
            self._thread.join(2 * _SHUTDOWN_S)

    # -- in the thread

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._answer_all())
        except Exception as error:
            self._log_error(f"job '{self._places.job}' goes on, and commands cannot reach it any more", error)
        finally:
            self._listener.close()
            self._path.unlink(missing_ok=True)
            # `_listen_again` may have made the directory after the job removed it.
            with contextlib.suppress(OSError):
                self._path.parent.rmdir()

    async def _answer_all(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _CHECK_S)
            if not self._ending.is_set() and not self._path.exists():
                self._listen_again()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for conversation, task in self._conversations.items():
            if not conversation.is_at_work:
                task.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations.values(), timeout=_SHUTDOWN_S)

    def _listen_again(self) -> None:
        """Create the socket again after another program has removed it, as clean-up of /tmp does."""
        # The next check tries again.
        with contextlib.suppress(OSError, StrandlineError):
            self._places.make()
            listener = _listen(self._path)
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = listener
            self._loop.add_reader(listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return  # The client has disconnected.
        except OSError as error:
            # Perhaps too many files are open: try again later.
            log.warning("job '%s': a command could not be accepted: %s", self._places.job, error)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE_S, self._resume_accepting)
            return
        _sockets.add(sock)
        if not is_our_user(sock):
            sock.close()
            return
        # The program may have set a default timeout for new sockets.
        sock.setblocking(False)
        self._make_room()
        conversation = _Conversation()
        task = self._conversations[conversation] = self._loop.create_task(self._converse(conversation, sock))
        # The callback also runs if the task is cancelled before it starts.
        task.add_done_callback(lambda _: self._disconnect(conversation, sock))

    def _disconnect(self, conversation: _Conversation, sock: socket.socket) -> None:
        del self._conversations[conversation]
        sock.close()

    def _resume_accepting(self) -> None:
        if not self._ending.is_set():
            self._loop.add_reader(self._listener, self._accept)

    async def _converse(self, conversation: _Conversation, sock: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_REQUEST_BYTES)
            try:
                conversation.start(writer)
                writer.write(self._hello)
                await self._answer(conversation, reader)
            finally:
                # `end` has drained the answer, so that there is nothing to wait for.
                writer.transport.abort()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # The client has disconnected, or neither sends nor reads.
        except Exception as error:
            self._log_error("a command was not answered", error)

    def _log_error(self, what: str, error: BaseException) -> None:
        log.error("%s", format_error(what, error, with_values=self._show_values == "logs"))

    def _make_room(self) -> None:
        """At the limit of connections, close the oldest one that has no command in progress."""
        if len(self._conversations) >= _MAX_CONVERSATIONS:
            for conversation, task in self._conversations.items():
                if not conversation.is_at_work and not task.cancelling():
                    task.cancel()
                    return

    async def _answer(self, conversation: _Conversation, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                message = await reader.readuntil(b"\n")
            command, arguments = self._decode_request(message)
            answer: asyncio.Future[bytes] = self._loop.create_future()
            self._execute(conversation, command, arguments, answer)
        except asyncio.LimitOverrunError:
            await conversation.end(_refused(_request_error(f"a request has {MAX_REQUEST_BYTES} bytes at most")))
        except StrandlineError as error:
            await conversation.end(_refused(error))
        else:
            await conversation.wait(answer)

    def _decode_request(self, message: bytes) -> tuple[Command[Any, Any], Any]:
        try:
            request = msgspec.json.decode(message, type=Request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _request_error(f"this is no request: {error}") from None
        if request.engine != VERSION:
            raise version_error(request.engine, VERSION)
        command = self._commands.get(request.command)
        if command is None:
            raise _request_error(f"there is no command '{request.command}', only {', '.join(self._commands)}")
        try:
            return command, msgspec.json.decode(request.arguments, type=command.arguments)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _request_error(f"the arguments of '{command.name}' are wrong: {error}") from None

    def _execute(
        self, conversation: _Conversation, command: Command[Any, Any], arguments: Any, answer: asyncio.Future[bytes]
    ) -> None:
        """Execute a command in a new thread, which sets `answer`, also if the client has disconnected."""

        def execute() -> None:
            try:
                message = line(Result(raw(command.handler(self._run, arguments, conversation.report))))
            except StrandlineError as error:
                message = _refused(error)
            except BaseException as error:
                what = f"'{command.name}' failed"
                self._log_error(what, error)
                reason = discreet(error) if self._show_values == "nowhere" else f"{type(error).__name__}: {error}"
                message = _refused(StrandlineError(f"{what}: {reason}", discreet=f"{what}: {discreet(error)}"))
            finally:
                self._workers.discard(threading.current_thread())
            with contextlib.suppress(RuntimeError):  # The server's thread has ended.
                self._loop.call_soon_threadsafe(_set_result, answer, message)

        # Checkpoints may wait for ever, for example for a sink's function, also when their clients are gone.
        may_wait = command.name in (CHECKPOINT.name, SAVEPOINT.name)
        if len(self._workers) >= (_MAX_AT_WORK // 2 if may_wait else _MAX_AT_WORK):
            raise UnavailableError(
                f"the driver works on {len(self._workers)} requests already", hint="try again when they are done"
            )
        worker = threading.Thread(target=execute, name=f"strandline-{command.name}", daemon=True)
        self._workers.add(worker)
        conversation.is_at_work = True
        try:
            worker.start()
        except RuntimeError as error:
            self._workers.discard(worker)
            raise UnavailableError(f"the driver has no thread for it: {error}", hint="try again later") from None


class _Conversation:
    """The connection of one client."""

    def __init__(self) -> None:
        self.is_at_work = False
        self._progress = ProgressMessage()

    def start(self, writer: asyncio.StreamWriter) -> None:
        """Write to `writer` from now on. `drain` waits until the operating system has all bytes."""
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=0)

    def report(self, progress: ProgressMessage) -> None:
        """Set the progress, from any thread. Only the newest is sent, when the client is ready to read."""
        self._progress = progress

    async def wait(self, answer: asyncio.Future[bytes]) -> None:
        """Send progress until there is an answer, and then the answer."""
        while True:
            done, _ = await asyncio.wait([answer], timeout=_HEARTBEAT_S)
            if done:
                await self.end(answer.result())
                return
            if self._writer.transport.get_write_buffer_size() == 0:
                self._writer.write(line(self._progress))
            if self._writer.transport.is_closing():
                return

    async def end(self, answer: bytes) -> None:
        """Send the last line."""
        async with asyncio.timeout(_SEND_TIMEOUT_S):
            self._writer.write(answer)
            await self._writer.drain()


def clear_stale(places: Places) -> None:
    """Remove the sockets of killed drivers, which refuse connections."""
    for path in places.run_sockets():
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.setblocking(False)
            try:
                sock.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # The socket is gone, or its driver lives and is too busy to answer.


def _listen(path: Path) -> socket.socket:
    """Listen at a path, for our user only. The socket is bound under a hidden name first: it appears when ready."""
    listener = socket.socket(socket.AF_UNIX)
    _sockets.add(listener)
    hidden = path.with_suffix(".tmp")
    try:
        listener.setblocking(False)
        listener.bind(str(hidden))
        hidden.chmod(0o600)
        listener.listen(_MAX_CONVERSATIONS)
        hidden.rename(path)
    except BaseException:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener


def _set_result(answer: asyncio.Future[bytes], message: bytes) -> None:
    # The client may have disconnected, which cancels the future.
    if not answer.done():
        answer.set_result(message)


def _refused(error: StrandlineError) -> bytes:
    return line(Refusal(to_failure(error)))


def _request_error(what: str) -> ConfigurationError:
    return ConfigurationError(what, hint="use the `strandline` command of the same version")


@functools.cache
def _close_in_forks() -> None:
    """Close our sockets in processes that the program forks: they would listen there after the driver's death."""

    def close_sockets() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for sock in list(_sockets):
            if sock.fileno() >= 0:
                # Replace it by /dev/null instead: the socket object in this process may also close the descriptor.
                os.dup2(nothing, sock.fileno(), inheritable=False)
        os.close(nothing)

    os.register_at_fork(after_in_child=close_sockets)

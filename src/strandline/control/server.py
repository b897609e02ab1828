"""The driver's end of the socket: a thread that hears requests, and one for each that is being worked on."""

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

from strandline.control.commands import COMMANDS, Command, RunningJob
from strandline.control.wire import (
    MOST_REQUEST_BYTES,
    Hello,
    ProgressMessage,
    Refused,
    Request,
    Result,
    is_our_user,
    line,
    raw,
    version_error,
)
from strandline.core.errors import ConfigurationError, StrandlineError, UnavailableError, discreet
from strandline.core.failure import to_failure, whole
from strandline.core.settings import ShowValues
from strandline.core.version import VERSION
from strandline.keeper.paths import Places

log = logging.getLogger(__name__)

_REQUEST_S = 10.0
"""How long somebody may take to say what he wants."""
_STALLED_S = 30.0
"""How long he may take to hear the answer."""
_HEARTBEAT_S = 1.0
_FAREWELL_S = 2.0
"""How long answers under way are waited for when the run has ended."""
_PAUSE_S = 0.1
_MOST_CONVERSATIONS = 64
_MOST_AT_WORK = 16

_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class ControlServer:
    """Answers for one run from `start` until `end`. What somebody sends, or fails to, disturbs nobody else."""

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
        """Listen, in a place of our own: a driver of the same job beside us, or before us, has another."""
        _keep_from_forks()
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
        """Be found no more. Requests under way are still answered, for moments, unless they take longer."""
        if self._thread.ident is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(RuntimeError):  # It has ended already.
            self._loop.call_soon_threadsafe(self._ending.set)

    def join(self) -> None:
        """Wait until everybody has his answer, after `end`; a request that waits for its own is not waited for."""
        if self._thread.ident is not None and threading.current_thread() not in self._workers:
            self._thread.join(2 * _FAREWELL_S)

    # -- in the thread

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._answer_all())
        except Exception as error:
            self._log_whole(f"job '{self._places.job}' goes on, and commands cannot reach it any more", error)
        finally:
            self._listener.close()
            self._path.unlink(missing_ok=True)

    async def _answer_all(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
        await self._ending.wait()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for conversation, task in self._conversations.items():
            if not conversation.is_at_work:
                task.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations.values(), timeout=_FAREWELL_S)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return  # He has gone already.
        except OSError as error:
            # Out of files, perhaps, which passes.
            log.warning("job '%s': a command could not be heard: %s", self._places.job, error)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE_S, self._go_on)
            return
        _ours.add(sock)
        if not is_our_user(sock):
            sock.close()
            return
        # The program may have set a time-out for every new one.
        sock.setblocking(False)
        self._make_room()
        conversation = _Conversation()
        task = self._conversations[conversation] = self._loop.create_task(self._converse(conversation, sock))
        # Also of one that is cancelled before it has begun.
        task.add_done_callback(lambda _: self._part_from(conversation, sock))

    def _part_from(self, conversation: _Conversation, sock: socket.socket) -> None:
        del self._conversations[conversation]
        sock.close()

    def _go_on(self) -> None:
        if not self._ending.is_set():
            self._loop.add_reader(self._listener, self._accept)

    async def _converse(self, conversation: _Conversation, sock: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MOST_REQUEST_BYTES)
            try:
                conversation.speak_to(writer)
                writer.write(self._hello)
                await self._answer(conversation, reader)
            finally:
                # What could be sent has been: nothing is waited for.
                writer.transport.abort()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # He has gone, or says nothing, or does not listen.
        except Exception as error:
            self._log_whole("a command was not answered", error)

    def _log_whole(self, what: str, error: BaseException) -> None:
        log.error("%s", whole(what, error, with_values=self._show_values == "logs"))

    def _make_room(self) -> None:
        """Part from who has been silent for the longest, where many have connected."""
        if len(self._conversations) >= _MOST_CONVERSATIONS:
            for conversation, task in self._conversations.items():
                if not conversation.is_at_work and not task.cancelling():
                    task.cancel()
                    return

    async def _answer(self, conversation: _Conversation, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                asked = await reader.readuntil(b"\n")
            command, arguments = self._understand(asked)
            answered: asyncio.Future[bytes] = self._loop.create_future()
            self._work(conversation, command, arguments, answered)
        except asyncio.LimitOverrunError:
            await conversation.end(_refused(_wrong(f"a request has {MOST_REQUEST_BYTES} bytes at most")))
        except StrandlineError as error:
            await conversation.end(_refused(error))
        else:
            await conversation.wait(answered)

    def _understand(self, asked: bytes) -> tuple[Command[Any, Any], Any]:
        try:
            request = msgspec.json.decode(asked, type=Request)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _wrong(f"this is no request: {error}") from None
        if request.engine != VERSION:
            raise version_error(request.engine, VERSION)
        command = self._commands.get(request.command)
        if command is None:
            raise _wrong(f"there is no command '{request.command}', only {', '.join(self._commands)}")
        try:
            return command, msgspec.json.decode(request.arguments, type=command.arguments)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _wrong(f"the arguments of '{command.name}' are wrong: {error}") from None

    def _work(
        self, conversation: _Conversation, command: Command[Any, Any], arguments: Any, answered: asyncio.Future[bytes]
    ) -> None:
        """Have a thread work on a request; what came of it is `answered` even if nobody waits any more."""

        def work() -> None:
            try:
                answer = line(Result(raw(command.handler(self._run, arguments, conversation.report))))
            except StrandlineError as error:
                answer = _refused(error)
            except BaseException as error:
                what = f"'{command.name}' failed"
                self._log_whole(what, error)
                said = discreet(error) if self._show_values == "nowhere" else f"{type(error).__name__}: {error}"
                answer = _refused(StrandlineError(f"{what}: {said}", discreet=f"{what}: {discreet(error)}"))
            finally:
                self._workers.discard(threading.current_thread())
            with contextlib.suppress(RuntimeError):  # The thread that sends answers has ended.
                self._loop.call_soon_threadsafe(_settle, answered, answer)

        if len(self._workers) >= _MOST_AT_WORK:
            raise UnavailableError(
                f"the driver works on {len(self._workers)} requests already", hint="try again when they are done"
            )
        worker = threading.Thread(target=work, name=f"strandline-{command.name}", daemon=True)
        self._workers.add(worker)
        conversation.is_at_work = True
        try:
            worker.start()
        except RuntimeError as error:
            self._workers.discard(worker)
            raise UnavailableError(f"the driver has no thread for it: {error}", hint="try again later") from None


class _Conversation:
    """One who has connected."""

    def __init__(self) -> None:
        self.is_at_work = False
        self._progress = ProgressMessage()

    def speak_to(self, writer: asyncio.StreamWriter) -> None:
        """Begin. What is drained has then reached the system."""
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=0)

    def report(self, progress: ProgressMessage) -> None:
        """Say how far it is, from any thread; he hears the newest when he listens."""
        self._progress = progress

    async def wait(self, answered: asyncio.Future[bytes]) -> None:
        """Tell of progress until there is an answer, then that."""
        while True:
            done, _ = await asyncio.wait([answered], timeout=_HEARTBEAT_S)
            if done:
                await self.end(answered.result())
                return
            if self._writer.transport.get_write_buffer_size() == 0:
                self._writer.write(line(self._progress))
            if self._writer.transport.is_closing():
                return

    async def end(self, answer: bytes) -> None:
        """Send the last line."""
        async with asyncio.timeout(_STALLED_S):
            self._writer.write(answer)
            await self._writer.drain()


def clear_stale(places: Places) -> None:
    """Remove the sockets of drivers that were killed: nobody listens there."""
    for path in places.run_sockets():
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.setblocking(False)
            try:
                sock.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # Gone, or too busy to answer, and then alive.


def _listen(path: Path) -> socket.socket:
    """Listen at a path, for our own user alone. Bound under another name first: whoever finds it can connect to it."""
    listener = socket.socket(socket.AF_UNIX)
    _ours.add(listener)
    hidden = path.with_suffix(".tmp")
    try:
        listener.setblocking(False)
        listener.bind(str(hidden))
        hidden.chmod(0o600)
        listener.listen(_MOST_CONVERSATIONS)
        hidden.rename(path)
    except BaseException:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener


def _settle(answered: asyncio.Future[bytes], answer: bytes) -> None:
    # Who asked may have gone.
    if not answered.done():
        answered.set_result(answer)


def _refused(error: StrandlineError) -> bytes:
    return line(Refused(to_failure(error)))


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(what, hint="use the `strandline` command of the same version")


@functools.cache
def _keep_from_forks() -> None:
    """Have processes that the program forks close our sockets: they would listen there after the driver's death."""

    def let_go() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for sock in list(_ours):
            if sock.fileno() >= 0:
                # In its place, since whoever owns it in this process may close it, too.
                os.dup2(nothing, sock.fileno(), inheritable=False)
        os.close(nothing)

    os.register_at_fork(after_in_child=let_go)

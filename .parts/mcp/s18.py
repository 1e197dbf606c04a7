# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 18  stdio      uses §1, §14–§16 · processes, pipes, threads
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# This section knows pipes, not methods. Both sides speak bytes: UTF-8, one message per line, LF.
# The serving side keeps the two pipes for itself: descriptor 1 then leads to stderr, number 0 to
# nowhere, so no print, logger or child process of a tool can write into the stream or eat from it.

LINE_LIMIT = 10 * 2**20  # bytes; the buffer of the TypeScript SDK ends there too
PATIENCE_SECONDS = 0.01  # for one request, before another thread goes on reading
SLICE_SECONDS = 0.2  # after end of input, how long to wait for the next answer at a time
QUIET_SLICES = 7  # without one: 1.4 s, for clients send SIGTERM after 2 s
WORKING_SECONDS = 0.001  # of processor time in a slice; less means that a tool only waits
LAST_LINE_SECONDS = 0.1  # and at last for a line that is being written


# ── Serving ──


class Wire:
    """The pipe to the client: whole lines only, from any thread."""

    def __init__(self, descriptor: int):
        self._descriptor, self.lock = descriptor, threading.Lock()

    def send(self, message: object) -> None:
        """Write one message. A client that has closed its end has no more use for this process."""
        try:
            line = encode(message)
        except (ValueError, TypeError, RecursionError) as error:  # such as NaN in a tool's schema
            reason = RpcError(INTERNAL_ERROR, f"答复不能写成 JSON：{error_text(error)}")
            line = encode(error_reply(readable_id(message), reason))
        with self.lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line):]
            except OSError:
                os._exit(0)


def _private_pipes() -> tuple[object, Wire]:
    """Standard input and output for us alone: (binary file to read, Wire)."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # a host may start us with one of them closed
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(nowhere, descriptor)
    source, wire = open(os.dup(0), "rb"), Wire(os.dup(1))
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", errors="replace")
    sys.stdout = sys.stderr
    return source, wire


def read_lines(source) -> Iterator[bytes | None]:
    """The lines of a binary file as they come; None stands for one longer than LINE_LIMIT."""
    while line := source.readline(LINE_LIMIT + 1):
        if len(line) <= LINE_LIMIT or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = source.readline(LINE_LIMIT)
        yield None


class Relay:
    """Reads and answers; the reading is handed on when a request keeps its thread too long.

    The thread that reads a request also runs it: no queue and no switch between threads, so quick
    calls cost nothing extra and are answered in order. If it takes longer than PATIENCE_SECONDS, a
    new thread goes on reading: pings, cancellations and other calls do not wait for a slow tool.
    """

    def __init__(self, source, wire: Wire, server: McpServer):
        import queue

        self._lines, self._wire, self._server = read_lines(source), wire, server
        self._lock = threading.Lock()  # around the two fields below
        self._current: Request | Batch | None = None  # what the reading thread runs
        self._late: set[Request | Batch] = set()  # what runs on threads that no longer read
        self._begun = threading.Event()
        self._ended, self._nothing = queue.SimpleQueue(), queue.Empty

    def run(self) -> typing.NoReturn:
        """Keep one thread reading. Threads are daemons: a tool may never return."""
        while True:
            threading.Thread(target=self._read, daemon=True).start()
            self._watch()

    def _watch(self) -> None:
        """Return when the reading thread is stuck in a request; it will not read again."""
        while True:
            if self._current is None:
                self._begun.wait()
                self._begun.clear()
            request = self._current
            time.sleep(PATIENCE_SECONDS)
            with self._lock:
                # Stuck because the client does not read? Then nobody should read its requests.
                if request and request is self._current and not self._wire.lock.locked():
                    self._late.add(request)
                    self._current = None
                    return

    def _read(self) -> None:
        for line in self._lines:
            if not self._answer(line):
                return
        self._finish()

    def _answer(self, line: bytes | None) -> bool:
        """Answer one line; False if another thread reads by now."""
        if line is None:
            text = f"一行最多 {LINE_LIMIT} 字节，这一行已跳过"
            started = [error_reply(None, RpcError(INVALID_REQUEST, text))]
        elif line.isspace():
            return True
        else:
            started = self._begin(line)
        if not isinstance(started, list):
            return self._run(started)
        for message in started:
            self._wire.send(message)
        return True

    def _begin(self, line: bytes) -> list[dict] | Request | Batch:
        try:
            return self._server.begin(decode(line))
        except RpcError as error:
            return [error_reply(None, error)]
        except Exception as error:  # a fault of ours, or no memory: the reading must go on
            return [error_reply(None, RpcError(INTERNAL_ERROR, error_text(error)))]

    def _run(self, request: Request | Batch) -> bool:
        self._current = request
        if not self._begun.is_set():
            self._begun.set()
        request.run(self._wire.send)
        with self._lock:
            if self._current is request:
                self._current = None
                return True
            self._late.discard(request)
        self._ended.put(request)
        return False

    def _finish(self) -> typing.NoReturn:
        """End of input: wait for late calls as long as they get on, then end the process.

        A tool that only waits is given up after one slice, one that computes after a few. The end
        is hard, for such tools are still running.
        """
        quiet = 0
        while any(not request.cancelled for request in self._late.copy()) and quiet < QUIET_SLICES:
            used = time.process_time()
            try:
                self._ended.get(timeout=SLICE_SECONDS)
                quiet = 0
            except self._nothing:
                quiet += 1 if time.process_time() - used > WORKING_SECONDS else QUIET_SLICES
        self._wire.lock.acquire(timeout=LAST_LINE_SECONDS)
        sys.stderr.flush()
        os._exit(0)


def _end_at_once_on_ctrl_c() -> None:
    """Let SIGINT end the process as SIGTERM does, without Python's help.

    A handler in Python runs only when the main thread gets to it. A signal that comes just before
    `read` blocks would wait for the next line: seen in 1 of 100 ends by SDK 1.13.3, which sends
    SIGTERM and leaves our input open.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else: the parent ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def mcp_serve(make_server: Callable[[], McpServer]) -> typing.NoReturn:
    """Serve on standard input and output until the client closes its end; never returns.

    The pipes are taken first and the server is made after that, so that user tools which print
    while they are loaded do no harm.
    """
    source, wire = _private_pipes()
    _end_at_once_on_ctrl_c()
    Relay(source, wire, make_server()).run()


# ── Starting somebody else's server ──

# What a server may see of our environment; keys and tokens in it are none of its business.
PASSED_VARIABLES = (
    "PATH HOME USER LOGNAME SHELL TERM LANG LC_ALL LC_CTYPE TMPDIR TMP TEMP SYSTEMROOT SYSTEMDRIVE"
    " WINDIR COMSPEC PATHEXT APPDATA LOCALAPPDATA PROGRAMFILES USERPROFILE HOMEDRIVE HOMEPATH"
).split()
CLOSE_SECONDS = 2.0  # after closing its input, and again after SIGTERM; both SDKs wait as long
LOG_LINES = 20  # of its stderr, kept for error messages


class StdioServer:
    """A server as a child process; `send` is what McpClient needs.

    `trace(direction, item)` sees every message: "→" sent, "←" received, "!" a line that is none.
    It survives banners on standard output, floods on stderr, silence and sudden death.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None,
        trace: Callable[[str, object], None] = lambda direction, item: None,
    ):
        self.command, self.trace = list(command), trace
        self._env = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        self._env.update(env or {})
        self._lock = threading.Lock()  # around the table of waiting requests, and around writing
        self.start()

    def start(self) -> None:
        """Start the child. Raises McpError if there is no such program."""
        import collections
        import shutil
        import subprocess

        program = shutil.which(self.command[0]) or self.command[0]  # finds npx.cmd on Windows
        try:
            self.process = subprocess.Popen(
                [program, *self.command[1:]], env=self._env, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=os.name == "posix",  # so that its children can be ended with it
            )
        except FileNotFoundError:
            raise McpError(f"没有找到程序 {self.command[0]}，请检查命令和 PATH") from None
        except OSError as error:
            raise McpError(f"无法启动 {self.command[0]}：{error.strerror or error}") from error
        self._waiting: dict[str, Any] = {}  # id → queue for its reply; None: child gone
        self.log = collections.deque(maxlen=LOG_LINES)
        arguments = (self.process, self._waiting, self.log)
        threading.Thread(target=self._read, args=arguments[:2], daemon=True).start()
        threading.Thread(target=self._read_log, args=arguments[::2], daemon=True).start()

    def restart(self) -> None:
        """End the child, however it is, and start a new one."""
        self.close()
        self.start()

    def __enter__(self) -> StdioServer:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def send(self, message: dict, seconds: float) -> dict | None:
        """The reply to a request; None at once for a notification.

        Raises ServerSilent after so many seconds, ServerGone when the child has ended.
        """
        import queue

        if "id" not in message:
            self._write(message)
            return None
        key, box = str(message["id"]), queue.SimpleQueue()  # str: some servers answer "1" for 1
        with self._lock:
            self._waiting[key] = box
        try:
            self._write(message)
            reply = box.get(timeout=seconds)
        except queue.Empty:
            raise ServerSilent(f"服务器 {seconds:g} 秒没有回答 {message['method']}") from None
        finally:
            with self._lock:
                self._waiting.pop(key, None)
        if reply is None:
            raise self._gone()
        return reply

    def _gone(self) -> ServerGone:
        last = "".join(f"\n  {line}" for line in list(self.log)[-3:])
        return ServerGone("服务器已经退出" + (f"，它最后的日志：{last}" if last else ""))

    def _write(self, message: dict) -> None:
        self.trace("→", message)
        line = encode(message)
        try:
            with self._lock:
                while line:
                    line = line[self.process.stdin.write(line):]
        except (OSError, ValueError):  # ValueError: closed by us
            raise self._gone() from None

    def _read(self, process, waiting: dict) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in read_lines(io.BufferedReader(process.stdout)):
                if line is None or not line.isspace():
                    self._receive(line, waiting)
        with self._lock:
            with contextlib.suppress(OSError):
                process.stdin.close()  # whoever writes from now on learns at once
            for box in waiting.values():
                box.put(None)

    def _receive(self, line: bytes | None, waiting: dict) -> None:
        try:
            message = decode(line or b"")
            kind = kind_of(message)
        except RpcError:
            self.trace("!", "（超长的一行）" if line is None else line.decode("utf-8", "replace").rstrip())
            return
        self.trace("←", message)
        if kind == "request":
            with contextlib.suppress(McpError):
                self._write(answer_server(message))
        elif kind == "response" and (box := waiting.get(str(message.get("id")))):
            box.put(message)

    def _read_log(self, process, log) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in read_lines(io.BufferedReader(process.stderr)):
                log.append((line or b"").decode("utf-8", "replace").rstrip()[:500])

    def close(self) -> None:
        """End the child as the specification asks: close its input, then SIGTERM, then SIGKILL."""
        import subprocess

        with contextlib.suppress(OSError):
            self.process.stdin.close()
        for end in (self._terminate, self._kill):
            try:
                self.process.wait(CLOSE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                end()
        self.process.wait()

    def _terminate(self) -> None:
        import signal

        if os.name == "posix":
            os.killpg(self.process.pid, signal.SIGTERM)
        else:
            self.process.terminate()

    def _kill(self) -> None:
        import signal

        if os.name == "posix":
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()

"""§18: real pipes and child processes. Rows are numbered as in the notes on hostile input."""

import io
import json
import os
import pathlib
import queue
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

import w4d3_tools_mcp as m

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE.parent / "w4d3_tools_mcp.py"
SERVER = [sys.executable, str(SCRIPT), "--mcp-server"]
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
KV = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4}
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX signals and descriptors")

TOOLS = '''
import os, subprocess, sys, threading, time
print("noise while loading")
os.system("echo noise of a child while loading")
HELD = threading.Event()

def wait(seconds: float) -> str:
    """等待。

    Args:
        seconds: 秒数，例如 1。
    """
    time.sleep(seconds)
    return "waited"

def noisy(text: str) -> str:
    """在标准输出上乱写。

    Args:
        text: 任意文字，例如 "x"。
    """
    print("print", text)
    sys.stdout.write("write" + text + chr(10))
    os.write(1, b"descriptor 1" + bytes([10]))
    subprocess.run([sys.executable, "-c", "print('child of a tool')"])
    subprocess.run([sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"])
    return text

def echo(text: str) -> str:
    """原样返回。

    Args:
        text: 任意文字，例如 "x"。
    """
    return text

def leave() -> str:
    """调用 sys.exit。"""
    sys.exit(3)

def interrupt() -> str:
    """抛出 KeyboardInterrupt。"""
    raise KeyboardInterrupt

def fork() -> str:
    """派生一个进程，两个都返回。"""
    return "parent" if os.fork() else "child"

def fork_exit() -> str:
    """派生一个进程，它调用 sys.exit。"""
    if os.fork():
        return "parent"
    sys.exit(0)

def close_streams() -> str:
    """关掉两个标准流。"""
    sys.stdout.close()
    sys.stderr.close()
    return "closed"

def steps(count: int) -> str:
    """逐步报告进度。

    Args:
        count: 步数，例如 3。
    """
    from w4d3_tools_mcp import report_progress
    for i in range(count):
        report_progress(i, count, "step")
    return "done"
'''


def request(id, method, params=None, *, modern=False):
    params = dict(params or {})
    if modern:
        params["_meta"] = {**params.get("_meta", {}), **ENVELOPE}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def call(id, name="kv_cache_gib", arguments=KV, **options):
    return request(id, "tools/call", {"name": name, "arguments": arguments}, **options)


def cancel(id):
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


def initialize(version="2025-11-25"):
    return request(
        0,
        "initialize",
        {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"},
        },
    )


def as_line(message) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"


class Pipe:
    """A running server; every line it writes must be one JSON message."""

    def __init__(self, command=SERVER, **options):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=SCRIPT.parent,
            bufsize=0,
            **options,
        )
        self.lines, self.noise = queue.Queue(), b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.drain = threading.Thread(target=self._read_stderr, daemon=True)
        self.drain.start()

    def _read(self):
        with os.fdopen(os.dup(self.process.stdout.fileno()), "rb") as out:
            for line in out:
                self.lines.put(line)
        self.lines.put(None)

    def _read_stderr(self):
        self.noise = self.process.stderr.read()

    def send(self, *messages):
        data = memoryview(b"".join(map(as_line, messages)))
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]
        return self

    def next(self, seconds=10):
        line = self.lines.get(timeout=seconds)
        assert line is None or (line.endswith(b"\n") and not line.endswith(b"\r\n"))
        return None if line is None else json.loads(line.decode("utf-8"))

    def until(self, id):
        """Messages up to the reply with that id."""
        messages = []
        while True:
            message = self.next()
            messages.append(message)
            if message is None or message.get("id") == id:
                return messages

    def end(self, seconds=5):
        """Close input; (exit code, seconds it took, messages that still came)."""
        begin = time.monotonic()
        self.process.stdin.close()
        code = self.process.wait(seconds)
        took = time.monotonic() - begin
        return code, took, self.rest()

    def rest(self):
        messages = []
        while (message := self.next()) is not None:
            messages.append(message)
        self.drain.join(5)
        return messages

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


@pytest.fixture(scope="module")
def tools_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("tools") / "user_tools.py"
    path.write_text(TOOLS, encoding="utf-8")
    return [*SERVER, "--tools", str(path)]


@pytest.fixture(scope="module")
def shared(tools_file):
    """One server for all rows that must leave it usable."""
    with Pipe(tools_file) as pipe:
        pipe.send(initialize()).until(0)
        yield pipe


NO_ID = object()


def code_of(message):
    return message.get("id", NO_ID), message["error"]["code"]


DEEP = (
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
)
BATCH = [call(1), call(2)]

REFUSED = {
    "not JSON": (b"{not json\n", NO_ID, -32700),
    "cut off": (b'{"jsonrpc":"2.0","id":1\n', NO_ID, -32700),
    "bytes that are no UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}\n', NO_ID, -32700),
    "UTF-16": (json.dumps(call(1)).encode("utf-16-le").replace(b"\n", b"") + b"\n", NO_ID, -32700),
    "NUL": (b"\x00\n", NO_ID, -32700),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}\n', NO_ID, -32700),
    "Infinity": (
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":-Infinity}}\n',
        NO_ID,
        -32700,
    ),
    "deep nesting": (DEEP, NO_ID, -32700),
    "5,000 digits": (
        b'{"jsonrpc":"2.0","id":' + b"7" * 5000 + b',"method":"ping"}\n',
        NO_ID,
        -32700,
    ),
    "two messages on one line": (as_line(call(1))[:-1] + as_line(call(2)), NO_ID, -32700),
    "number": (b"42\n", NO_ID, -32600),
    "string": (b'"x"\n', NO_ID, -32600),
    "null": (b"null\n", NO_ID, -32600),
    "true": (b"true\n", NO_ID, -32600),
    "empty object": (b"{}\n", NO_ID, -32600),
    "empty array": (b"[]\n", NO_ID, -32600),
    "batch where there are none": (BATCH, NO_ID, -32600),
    "batch of enveloped requests": ([call(1, modern=True)], NO_ID, -32600),
    "null id": (call(None), NO_ID, -32600),
    "true id": (call(True), NO_ID, -32600),
    "fractional id": (call(1.5), NO_ID, -32600),
    "list id": (call([1]), NO_ID, -32600),
    "id with half a character": (call("a\ud800"), NO_ID, -32600),
    "progress token with half a character": (
        request(1, "tools/list", {"_meta": {"progressToken": "\udfff"}}),
        1,
        -32602,
    ),
    "infinite id": (b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}\n', NO_ID, -32600),
    "no jsonrpc": ({"id": 1, "method": "ping"}, 1, -32600),
    "jsonrpc 1.0": ({"jsonrpc": "1.0", "id": "a", "method": "ping"}, "a", -32600),
    "method is a number": ({"jsonrpc": "2.0", "id": 1, "method": 7}, 1, -32600),
    "no method": ({"jsonrpc": "2.0", "id": 1}, 1, -32600),
    "params is a string": ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": "x"}, 1, -32602),
    "params is an array": (
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": [1]},
        1,
        -32602,
    ),
    "_meta is a string": (request(1, "tools/list", {"_meta": "x"}), 1, -32602),
    "unknown method": (request(1, "no/such"), 1, -32601),
    "unknown tool": (call(1, "no_such_tool"), 1, -32602),
    "cursor of nobody": (request(1, "tools/list", {"cursor": "bogus"}), 1, -32602),
    "removed method in an envelope": (request(1, "ping", modern=True), 1, -32601),
    "unserved version": (
        request(1, "tools/list", {"_meta": {**ENVELOPE, next(iter(ENVELOPE)): "1900-01-01"}}),
        1,
        -32022,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_line_gets_exactly_one_error_and_the_stream_goes_on(shared, name):
    line, id, code = REFUSED[name]
    shared.send(line, call(9))
    refused, served = sorted(
        (shared.next(), shared.next()), key=lambda message: "result" in message
    )
    assert code_of(refused) == (id, code)
    assert served["result"]["structuredContent"]["GiB"] == 4.0


IGNORED = {
    "blank line": b"\n",
    "line of spaces": b"   \t \r\n",
    "stray response": {"jsonrpc": "2.0", "id": 77, "result": {}},
    "stray error": {"jsonrpc": "2.0", "id": 77, "error": {"code": 1, "message": "x"}},
    "unknown notification": {"jsonrpc": "2.0", "method": "notifications/whatever", "params": {}},
    "initialized again": {"jsonrpc": "2.0", "method": "notifications/initialized"},
    "cancellation of nothing": cancel(12345),
    "malformed cancellation": {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": 3},
    "cancellation with odd id": cancel([{}]),
    "call as a notification": {
        "jsonrpc": "2.0",
        "method": "tools/call",
        "params": {"name": "leave", "arguments": {}},
    },
}


@pytest.mark.parametrize("name", IGNORED)
def test_line_that_wants_no_answer_gets_none(shared, name):
    assert len(shared.send(IGNORED[name], call(9)).until(9)) == 1


ACCEPTED = {
    "byte-order mark": b"\xef\xbb\xbf" + as_line(request(1, "ping")),
    "CRLF": as_line(request(1, "ping")).replace(b"\n", b"\r\n"),
    "blanks around": b"  " + as_line(request(1, "ping")),
    "escaped text": as_line(call(1, "echo", {"text": "KV 缓存 \u2028 \x85 \U0001f600"})),
    "raw text": json.dumps(call(1, "echo", {"text": "缓存 \u2028"}), ensure_ascii=False).encode()
    + b"\n",
    "params null": as_line({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None}),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_unusual_but_valid_line_is_answered(shared, name):
    assert "result" in shared.send(ACCEPTED[name]).until(1)[-1]


@pytest.mark.parametrize("id", ["7", "", 0, -3, 10**30, "缓存", "x" * 1000])
def test_id_comes_back_with_its_type_and_all_its_digits(shared, id):
    reply = shared.send(request(id, "ping")).next()
    assert reply["id"] == id and type(reply["id"]) is type(id)


def test_lone_surrogate_is_answered_and_never_sent(shared):
    shared.send(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":'
        b'{"text":"a\\ud800b"}}}\n'
    )
    text = json.dumps(shared.until(1)[-1], ensure_ascii=False)
    assert not any("\ud800" <= char <= "\udfff" for char in text)


def test_infinite_argument_is_a_result_the_model_can_read(shared):
    shared.send(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":'
        b'{"seconds":1e999}}}\n'
    )
    assert shared.until(1)[-1]["result"]["isError"] is True


def test_tool_that_exits_or_interrupts_does_not_end_the_server(shared):
    assert shared.send(call(1, "leave", {})).until(1)[-1]["result"]["isError"] is True
    assert "error" in shared.send(call(2, "interrupt", {})).until(2)[-1]
    assert "result" in shared.send(call(9)).until(9)[-1]


def test_long_line_is_answered_and_a_longer_one_is_skipped(shared):
    text = "长" * 2_700_000  # 8.1 MB
    raw = json.dumps(call(1, "echo", {"text": text}), ensure_ascii=False).encode() + b"\n"
    result = shared.send(raw).until(1)[-1]["result"]
    assert len(json.dumps(result)) < 200_000
    shared.send(b'{"x":"' + b"y" * (11 * 2**20) + b'"}\n', call(9))
    assert code_of(shared.next()) == (NO_ID, -32600)
    assert "result" in shared.until(9)[-1]


def test_all_eras_are_answered_on_one_pipe(shared):
    shared.send(
        request(1, "server/discover", modern=True),
        initialize("2025-06-18"),
        call(2),
        call(3, modern=True),
    )
    replies = {}
    while len(replies) < 4:
        message = shared.next()
        replies[message["id"]] = message["result"]
    assert replies[1]["resultType"] == "complete"
    assert replies[0]["protocolVersion"] == "2025-06-18"
    assert "resultType" not in replies[2] and replies[3]["resultType"] == "complete"


def test_ping_and_fast_call_overtake_slow_call(shared):
    shared.send(call(1, "wait", {"seconds": 0.5}), request(2, "ping"), call(3))
    assert [shared.next()["id"] for _ in range(3)] == [2, 3, 1]


def test_ping_does_not_wait_for_hundreds_of_slow_calls(tools_file):
    with Pipe(tools_file) as pipe:
        pipe.send(initialize()).until(0)
        pipe.send(*(call(id, "wait", {"seconds": 30}) for id in range(100, 500)))
        assert pipe.send(request(2, "ping")).until(2) == [{"jsonrpc": "2.0", "id": 2, "result": {}}]
        pipe.send(*(cancel(id) for id in range(100, 500)), call(9))
        assert pipe.until(9) == [pipe_result(9)]
        assert pipe.end()[::2] == (0, [])


@posix
def test_server_outlives_a_limit_on_threads(tools_file):
    import resource

    def few():
        resource.setrlimit(resource.RLIMIT_AS, (700_000_000, 700_000_000))

    with Pipe(tools_file, preexec_fn=few) as pipe:
        pipe.send(initialize()).until(0)
        pipe.send(*(call(id, "wait", {"seconds": 0.3}) for id in range(100, 150)), call(9))
        answered = {pipe.next()["id"] for _ in range(51)}
        assert answered == {9, *range(100, 150)}
        assert b"Traceback" not in pipe.noise


def test_cancelled_call_sends_no_reply_and_frees_its_place(tools_file):
    with Pipe(tools_file) as pipe:
        pipe.send(initialize()).until(0)
        for round in range(2):
            ids = range(100 * round + 100, 100 * round + 120)
            pipe.send(*(call(id, "wait", {"seconds": 30}) for id in ids))
            pipe.send(*(cancel(id) for id in ids))
        assert pipe.send(call(9)).until(9) == [pipe_result(9)]
        assert pipe.end()[2] == []


def pipe_result(id):
    value = {"bytes": 4294967296, "GiB": 4.0, "per_token_KiB": 128.0}
    return {
        "jsonrpc": "2.0",
        "id": id,
        "result": {
            "content": [{"type": "text", "text": json.dumps(value)}],
            "isError": False,
            "structuredContent": value,
        },
    }


@pytest.mark.parametrize("token", [0, "0", "标记"])
def test_progress_grows_keeps_its_token_and_ends_before_the_reply(shared, token):
    message = call(1, "steps", {"count": 4})
    message["params"]["_meta"] = {"progressToken": token}
    *progress, reply = shared.send(message, call(9)).until(1)
    progress = [m for m in progress if "id" not in m]
    values = [m["params"]["progress"] for m in progress]
    assert values == sorted(set(values)) and len(values) >= 3
    assert all(m["params"]["progressToken"] == token for m in progress)
    assert all(type(m["params"]["progressToken"]) is type(token) for m in progress)
    assert reply["result"]["content"][0]["text"] == "done"
    if not any(m.get("id") == 9 for m in progress):
        shared.send(call(10)).until(10)


def test_prints_and_child_processes_of_tools_stay_off_the_wire(tools_file):
    with Pipe(tools_file) as pipe:
        pipe.send(initialize(), call(1, "noisy", {"text": "T"}))
        assert pipe.until(1)[-1]["result"]["content"][0]["text"] == "T"
        pipe.end()
        for noise in (
            b"noise while loading",
            b"noise of a child",
            b"print T",
            b"writeT",
            b"descriptor 1",
            b"child of a tool",
        ):
            assert noise in pipe.noise


@posix
@pytest.mark.parametrize("name", ["fork", "fork_exit"])
def test_child_that_a_tool_forks_answers_nothing(tools_file, name):
    with Pipe(tools_file) as pipe:
        pipe.send(call(1, name, {}), *(request(id, "ping") for id in range(2, 9)))
        code, _, rest = pipe.end()
        assert code == 0 and sorted(m["id"] for m in rest) == list(range(1, 9))
        assert next(m for m in rest if m["id"] == 1)["result"]["content"][0]["text"] == "parent"


def test_tool_that_closes_standard_error_does_not_keep_the_server_alive(tools_file):
    with Pipe(tools_file) as pipe:
        pipe.send(call(1, "close_streams", {}), request(2, "ping")).until(2)
        assert pipe.end()[0] == 0


def test_answer_whose_thread_stops_reading_while_it_is_encoded_is_not_held(monkeypatch):
    """No further line comes to flush it: the other thread already waits for one."""
    encode = m.encode

    def slow(message):
        while not relay._late:  # another thread reads by now
            time.sleep(0.001)
        time.sleep(0.1)  # and has flushed what was held
        return encode(message)

    monkeypatch.setattr(m, "encode", slow)
    (read, write), (out, into) = os.pipe(), os.pipe()
    wire = m.Wire(into)
    source = io.BufferedReader(m._Input(read, wire))
    relay = m.Relay(source, wire, m.McpServer(m.ToolRegistry()))
    threading.Thread(target=relay.run, daemon=True).start()
    os.write(write, as_line(call(1)))
    assert select.select([out], [], [], 5)[0]
    assert json.loads(os.read(out, 2**16))["id"] == 1


@pytest.mark.parametrize("version", ["2025-11-25", "2025-03-26"])
def test_answer_that_is_being_written_at_the_end_of_input_is_not_lost(monkeypatch, version):
    """The reply is owed no more, but encoding it takes a while: the process must not end yet."""
    entered, go, ended, written = (threading.Event() for _ in range(4))

    class SlowWire(m.Wire):
        def send(self, message, **options):
            until = time.monotonic() + 3 * m.SLICE_SECONDS
            while time.monotonic() < until:  # computes: to sleep would be to wait
                if ended.is_set():
                    return
            written.set()

    def hold() -> str:
        """等待。"""
        entered.set()
        assert go.wait(5)
        return "done"

    server = m.McpServer(m.ToolRegistry([hold]))
    server.negotiated = m.REVISIONS[version]
    asked = call(1, "hold", {})
    line = as_line([asked] if server.negotiated.batches else asked)
    read, write = os.pipe()
    out, into = os.pipe()
    monkeypatch.setattr(m.os, "_exit", lambda code: ended.set())
    with open(read, "rb") as source, open(out, "rb"), open(into, "wb"):
        relay = m.Relay(source, SlowWire(into), server)
        threading.Thread(target=relay.run, daemon=True).start()
        os.write(write, line)
        assert entered.wait(5)
        while not relay._late:  # another thread reads by now
            time.sleep(0.001)
        go.set()
        os.close(write)
        assert ended.wait(10) and written.is_set()


def test_last_request_without_line_end_is_answered():
    with Pipe() as pipe:
        pipe.send(initialize(), as_line(call(1))[:-1])
        code, _, rest = pipe.end()
        assert code == 0 and [m["id"] for m in rest] == [0, 1]


def test_input_that_ends_at_once_gives_nothing():
    with Pipe() as pipe:
        assert pipe.end()[::2] == (0, []) and pipe.noise == b""


def test_everything_that_was_asked_before_the_end_is_answered():
    with Pipe() as pipe:
        pipe.send(*(call(id) for id in range(300)))
        code, _, rest = pipe.end()
        assert code == 0 and sorted(m["id"] for m in rest) == list(range(300))


def test_end_of_input_during_a_call_ends_the_process(tools_file):
    with Pipe(tools_file) as pipe:
        pipe.send(initialize(), call(1, "wait", {"seconds": 30})).until(0)
        code, took, rest = pipe.end()
        assert code == 0 and took < 1.5 and rest == [] and b"Traceback" not in pipe.noise


@posix
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_process_quietly(tools_file, busy, number):
    with Pipe(tools_file) as pipe:
        pipe.send(initialize()).until(0)
        if busy:
            pipe.send(call(1, "wait", {"seconds": 30}), request(2, "ping")).until(2)
        begin = time.monotonic()
        pipe.process.send_signal(number)
        assert pipe.process.wait(5) == -number
        assert time.monotonic() - begin < 1.5  # 0.3 s on an idle machine
        assert pipe.rest() == [] and b"Traceback" not in pipe.noise


@posix
def test_reader_that_goes_away_ends_the_process():
    read, write = os.pipe()
    process = subprocess.Popen(
        SERVER,
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=SCRIPT.parent,
    )
    os.close(write)
    os.close(read)
    process.stdin.write(as_line(initialize()))
    process.stdin.flush()
    assert process.wait(10) == 0 and process.stderr.read() == b""
    process.stdin.close()
    process.stderr.close()


@posix
@posix
@pytest.mark.parametrize("number", [0, 1])
def test_descriptors_that_do_not_wait_are_made_to(number):
    """Some hosts hand out their own, non-blocking end of a pipe."""
    ends = [os.pipe(), os.pipe()]
    os.set_blocking(ends[0][0] if number == 0 else ends[1][1], False)
    server = subprocess.Popen(SERVER, stdin=ends[0][0], stdout=ends[1][1])
    os.close(ends[0][0])
    os.close(ends[1][1])
    asked = b"".join(as_line(request(id, "tools/list")) for id in range(60))
    with open(ends[0][1], "wb", 0) as into, open(ends[1][0], "rb") as out:
        assert select.select([out], [], [], 1)[0] == []  # it waits
        into.write(asked)
        time.sleep(0.5)  # more answers than a pipe holds
        into.close()
        assert len(out.readlines()) == 60
    assert server.wait(5) == 0


@pytest.mark.parametrize("closed", ["<&-", "2>&-", ">&-"])
def test_missing_descriptors_do_no_harm(closed):
    done = subprocess.run(
        f'exec "{sys.executable}" "{SCRIPT}" --mcp-server {closed}',
        shell=True,
        timeout=20,
        input=as_line(initialize()),
        capture_output=True,
    )
    assert b"Traceback" not in done.stderr
    if closed != ">&-":  # without an output there is nobody to serve: it may say so and end
        assert done.returncode == 0
    if closed == "2>&-":
        assert json.loads(done.stdout)["id"] == 0


LOCALES = {
    "nothing": {},
    "C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "GBK": {"PYTHONIOENCODING": "gbk"},
    "cp1252": {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict", "LANG": "C"},
}


@pytest.mark.parametrize("name", LOCALES)
def test_bytes_are_the_same_in_every_locale(name):
    messages = [initialize(), request(1, "tools/list"), call(2, "search_notes", {"query": "显存"})]
    done = subprocess.run(
        SERVER,
        input=b"".join(map(as_line, messages)),
        env=LOCALES[name],
        timeout=20,
        capture_output=True,
        cwd="/",
    )
    found = {m["id"]: m for m in map(json.loads, done.stdout.decode("utf-8").splitlines())}
    assert "计算" in found[1]["result"]["tools"][0]["description"]
    assert "显存" in found[2]["result"]["content"][0]["text"]


def test_two_servers_at_once_do_not_know_of_each_other():
    with Pipe() as one, Pipe() as other:
        one.send(request("server-discover-probe-1", "server/discover", modern=True)).next()
        one.process.kill()
        assert "tools" in other.send(request(0, "tools/list", modern=True)).next()["result"]

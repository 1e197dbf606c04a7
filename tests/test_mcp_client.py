"""§16 in memory, and the client side of §18 against servers that misbehave."""

import json
import math
import sys
import textwrap

import pytest

import w4d3_tools_mcp as m

MODERN = "2026-07-28"
LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


def in_memory(server, log=None):
    """A `send` that hands messages to an McpServer."""

    def send(message, seconds):
        if log is not None:
            log.append(message)
        replies = server.handle(json.loads(m.encode(message)))
        return next((json.loads(m.encode(r)) for r in replies if "method" not in r), None)

    return send


@pytest.fixture
def server():
    notes = m.NotesIndex(m.NOTES_FOLDER)
    return m.McpServer(m.built_in_tools(notes), notes)


class Scripted:
    """A `send` that answers methods from a table; a value may be an exception or a function."""

    def __init__(self, **answers):
        self.answers, self.log = answers, []

    def __call__(self, message, seconds):
        self.log.append(message)
        if "id" not in message:
            return None
        answer = self.answers[message["method"].replace("/", "_")]
        answer = answer(message) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return {"jsonrpc": "2.0", "id": message["id"], **answer}

    @property
    def methods(self):
        return [message["method"] for message in self.log]


def failed(code, data=None):
    body = {"code": code, "message": "no"} | ({"data": data} if data is not None else {})
    return {"error": body}


WELCOME = {
    "result": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "x", "version": "1"},
    }
}
DISCOVERED = {
    "result": {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "y", "version": "2"}},
    }
}


# ── Opening ──


def test_modern_server_is_met_without_a_handshake(server):
    log = []
    client = m.McpClient(in_memory(server, log)).connect()
    assert client.revision == MODERN and client.server["name"] == "cme295-notes"
    client.request("tools/list")
    assert [message["method"] for message in log] == ["server/discover", "tools/list"]
    for message in log:
        meta = message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == MODERN
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {}


@pytest.mark.parametrize("revision", LEGACY)
def test_legacy_revision_can_be_asked_for(server, revision):
    log = []
    client = m.McpClient(in_memory(server, log), revision=revision).connect()
    assert client.revision == revision
    assert [message["method"] for message in log] == ["initialize", "notifications/initialized"]
    client.request("tools/list")
    assert "params" not in log[-1]


FALLS_BACK = {
    "method not found": failed(-32601),
    "bad params": failed(-32602),
    "own code": failed(-32000),
    "code 0": failed(0),
    "silence": m.ServerSilentError("3"),
    "nonsense": {"result": {"x": 1}},
    "no modern version": {"result": {"supportedVersions": ["2025-11-25"]}},
    "legacy list": failed(-32022, {"supported": ["2025-11-25"], "requested": MODERN}),
    "no list": failed(-32022),
    "list of nonsense": failed(-32022, {"supported": None}),
    "versions null": {"result": {"supportedVersions": None}},
    "not even an error": {"result": 7},
}


@pytest.mark.parametrize("name", FALLS_BACK)
def test_whatever_else_a_probe_meets_means_a_legacy_server(name):
    send = Scripted(server_discover=FALLS_BACK[name], initialize=WELCOME)
    assert m.McpClient(send).connect().revision == "2025-11-25"
    assert send.methods == ["server/discover", "initialize", "notifications/initialized"]
    assert send.log[1]["params"]["capabilities"] == {}


def test_unsupported_version_with_a_shared_modern_one_stays_modern():
    send = Scripted(server_discover=failed(-32022, {"supported": [MODERN, "2027-01-01"]}))
    assert m.McpClient(send).connect().revision == MODERN


def test_server_that_dies_of_the_probe_is_restarted_once():
    restarted = []
    send = Scripted(server_discover=m.ServerGoneError("dead"), initialize=WELCOME)
    m.McpClient(send, restart=lambda: restarted.append(1)).connect()
    assert restarted == [1] and send.methods[1] == "initialize"
    with pytest.raises(m.ServerGoneError):
        m.McpClient(send).connect()


def test_pinned_modern_revision_does_not_fall_back():
    with pytest.raises(m.McpError):
        m.McpClient(Scripted(server_discover=failed(-32601)), revision=MODERN).connect()


@pytest.mark.parametrize("version", ["1999-01-01", MODERN, None, 7])
def test_answer_with_an_unknown_revision_is_an_error(version):
    answer = {"result": {**WELCOME["result"], "protocolVersion": version}}
    with pytest.raises(m.McpError):
        m.McpClient(Scripted(server_discover=failed(-32601), initialize=answer)).connect()


# ── Asking ──


def connected(**answers):
    send = Scripted(server_discover=DISCOVERED, **answers)
    return m.McpClient(send).connect(), send


def test_given_up_request_is_cancelled():
    client, send = connected(tools_call=m.ServerSilentError("too long"))
    with pytest.raises(m.ServerSilentError):
        client.call_tool("x", {})
    assert send.log[-1]["method"] == "notifications/cancelled"
    assert send.log[-1]["params"]["requestId"] == send.log[-2]["id"]


def test_pages_are_followed_and_a_repeated_cursor_ends_them():
    pages = {None: ("a", "1"), "1": ("b", ""), "": ("c", "1")}

    def page(message):
        name, cursor = pages[message.get("params", {}).get("cursor")]
        return {
            "result": {"resultType": "complete", "tools": [{"name": name}], "nextCursor": cursor}
        }

    client, send = connected(tools_list=page)
    assert [t["name"] for t in client.pages("tools/list", "tools")] == ["a", "b", "c"]


@pytest.mark.parametrize("cursor", [None, 3, {}])
def test_odd_next_cursor_is_the_end(cursor):
    client, send = connected(tools_list={"result": {"tools": [], "nextCursor": cursor}})
    assert client.pages("tools/list", "tools") == []


@pytest.mark.parametrize("found", [None, 3, "x", [3, None]])
def test_list_that_is_no_list_is_empty(found):
    client, send = connected(tools_list={"result": {"tools": found}})
    assert client.pages("tools/list", "tools") == []


@pytest.mark.parametrize(
    "reply",
    [
        {"result": None},
        {"result": []},
        {},
        {"error": None},
        {"error": {"message": "x"}},
        {"result": {"resultType": "input_required", "inputRequests": {}}},
        {"result": {"resultType": "odd"}},
    ],
)
def test_reply_out_of_protocol_is_an_error(reply):
    client, send = connected(tools_call=reply)
    with pytest.raises(m.McpError):
        client.call_tool("x", {})


def test_requests_of_the_server_are_answered():
    assert m.answer_server({"id": 1, "method": "ping"}) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    for method in ("roots/list", "sampling/createMessage", "elicitation/create", "no/such"):
        assert m.answer_server({"id": "a", "method": method})["error"]["code"] == -32601


# ── Remote tools ──


def remote(*tools, **answers):
    client, send = connected(tools_list={"result": {"tools": list(tools)}}, **answers)
    return client, client.tools()


def test_remote_tools_are_the_local_ones(server):
    client = m.McpClient(in_memory(server)).connect()
    for local, tool in zip(server.tools, client.tools()):
        for field in (
            "name",
            "description",
            "parameters",
            "title",
            "labels",
            "characters",
            "output",
        ):
            assert getattr(local, field) == getattr(tool, field), field


@pytest.mark.parametrize("revision", [None, "2025-06-18"])
def test_loop_gives_the_same_events_on_local_and_remote_tools(server, revision):
    client = m.McpClient(in_memory(server), revision=revision).connect()
    local, far = server.tools, client.tools()
    for scenario in m.SCENARIOS:
        assert m.play(scenario, local)[:2] == m.play(scenario, far)[:2]
    for name, arguments in (
        ("calculator", '{"expression": "17*23+4"}'),
        ("calculator", {"expression": "1/0"}),
        ("calculator", {"expression": "2.5**3 > 1"}),
        ("calculator", "not json"),
        ("kv_cache_gib", {}),
        ("read_note", {"section": "week1-day4"}),
        ("read_note", {"section": "no such"}),
        ("search_notes", {"query": "显存", "top_k": 9}),
        ("no_such", {}),
    ):
        call = m.ToolCall("c", name, arguments)
        assert local.call(call) == far.call(call)


def test_names_that_models_refuse_are_changed_and_mapped_back():
    called = []

    def answer(message):
        called.append(message["params"]["name"])
        return {"result": {"content": []}}

    names = ["a.b", "a_b", "工具 1", "x" * 100, "x" * 99, "", 7]
    client, tools = remote(
        *({"name": n, "inputSchema": {"type": "object"}} for n in names), tools_call=answer
    )
    assert len(tools) == 7 and all(m.TOOL_NAME.fullmatch(name) for name in tools.names)
    for name in tools.names:
        tools.call(m.ToolCall("1", name, {}))
    assert called == names


SCHEMAS = [
    None,
    3,
    {},
    {"type": "array"},
    {"type": "object", "properties": None},
    {"type": "object", "properties": {"a": True, "b": {"type": "no-such-type"}}, "required": ["a"]},
    {"type": "object", "unevaluatedProperties": False, "properties": {"a": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.com/x.json"}}},
    {"type": "object", "properties": {"a": {"pattern": "(?<x>["}}},
    {"anyOf": [{"type": "object"}]},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {}},
    {"type": "object", "required": "a"},
    {"type": ["object", "null"], "properties": {"a": {"type": "string", "nullable": True}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_odd_schema_does_not_refuse_the_tool(schema):
    client, tools = remote(
        {"name": "t", "inputSchema": schema},
        tools_call={"result": {"content": [{"type": "text", "text": "ok"}]}},
    )
    assert tools.call(m.ToolCall("1", "t", {"a": "x"})).text == "ok"


CONTENTS = [
    ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ([{"type": "resource", "resource": {"uri": "x:y", "text": "inner"}}], "inner"),
    ("plain", "plain"),
    (None, ""),
    ([], ""),
    ([None, {"type": "text", "text": "a"}], "a"),
]


@pytest.mark.parametrize(("content", "text"), CONTENTS, ids=str)
def test_content_becomes_text(content, text):
    assert m.result_text({"content": content}) == text


def test_content_that_is_no_text_is_named():
    blocks = [{"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"type": "hologram"}, 3]
    text = m.result_text({"content": blocks})
    assert "image/png" in text and "hologram" in text and "AAAA" not in text


def test_structured_content_alone_is_its_json():
    assert m.result_text({"structuredContent": {"a": [1]}}) == '{"a": [1]}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("395", 395),
        ("1.50", "1.50"),
        ('{"a": 1}', {"a": 1}),
        ('{"a":1}', '{"a":1}'),
        ("true", True),
        ("NaN", "NaN"),
        ("", ""),
        ("[" * 5000, "[" * 5000),
        ("1e999", "1e999"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_value_is_read_from_the_text_only_if_the_text_stays_the_same(text, value):
    client, tools = remote(
        {"name": "t", "inputSchema": {"type": "object"}},
        tools_call={"result": {"content": [{"type": "text", "text": text}]}},
    )
    result = tools.call(m.ToolCall("1", "t", {}), characters=10_000)
    assert (
        (result.text, result.value) == (text, value)
        and not isinstance(result.value, float)
        or math.isfinite(result.value)
    )


@pytest.mark.parametrize(
    "answer",
    [failed(-32603), m.ServerSilentError("时间到"), m.ServerGoneError("退出了"), {"result": 3}],
)
def test_call_that_fails_on_the_way_is_a_result_for_the_model(answer):
    client, tools = remote({"name": "t", "inputSchema": {"type": "object"}}, tools_call=answer)
    assert tools.call(m.ToolCall("1", "t", {})).status == "failed"


@pytest.mark.parametrize(
    ("hints", "labels"),
    [
        ({"readOnlyHint": True}, {"read_only", "untrusted"}),
        ({}, {"irreversible", "untrusted"}),
        ({"readOnlyHint": True, "destructiveHint": True, "openWorldHint": False}, {"read_only"}),
        ({"destructiveHint": False, "openWorldHint": False}, set()),
        (None, {"irreversible", "untrusted"}),
    ],
)
def test_hints_become_labels_with_the_defaults_of_the_specification(hints, labels):
    client, tools = remote({"name": "t", "inputSchema": {"type": "object"}, "annotations": hints})
    assert tools["t"].labels == labels


@pytest.mark.parametrize(
    "labels",
    [
        set(),
        {"live"},
        {"live", "read_only"},
        {"private", "read_only"},
        {"sends", "live"},
        set(m.LABELS),
    ],
)
def test_our_own_server_tells_labels_that_no_hint_has_and_a_live_tool_runs_each_time(labels):
    polls = []
    server = m.McpServer(m.ToolRegistry())

    def poll() -> str:
        """返回进度。"""
        polls.append(1)
        return f"{len(polls)}0%"

    server.tools.register(poll, labels=labels)
    tools = m.McpClient(in_memory(server)).connect().tools()
    assert tools["poll"].labels == labels
    asked = [m.Turn(calls=(m.ToolCall(f"c{i}", "poll", "{}"),)) for i in range(2)]
    list(m.run_tool_loop(m.MockLLM([*asked, m.Turn("完")]), tools, []))
    assert len(polls) == (2 if "live" in labels else 1)


@pytest.mark.parametrize("told", [None, 3, "live", {"live": 1}, [["live"]], ["no such label", 7]])
def test_odd_labels_of_a_server_do_no_harm(told):
    listed = {"name": "t", "_meta": {m.LABELS_KEY: told, m.LIMIT_KEY: "many"}}
    client, tools = remote(listed)
    assert tools["t"].labels <= m.LABELS.keys() and tools["t"].characters is None


@pytest.mark.parametrize(
    ("schema", "arguments", "status"),
    [
        ({"properties": {"n": {"type": "integer"}, "o": {"type": "odd"}}}, {"n": "x"}, "bad"),
        ({"properties": {"n": {"type": "integer"}, "o": {"type": "odd"}}}, {"n": 1, "o": 2}, "ok"),
        ({"properties": {"o": {"type": "odd"}}, "required": ["o"]}, {}, "bad"),
        ({"properties": {"o": {"type": "odd"}}, "required": 3}, {}, "ok"),
    ],
)
def test_what_can_be_checked_of_an_odd_schema_is_checked(schema, arguments, status):
    client, tools = remote(
        {"name": "t", "inputSchema": {"type": "object", **schema}},
        tools_call={"result": {"content": []}},
    )
    assert set(tools["t"].parameters["properties"]) == set(schema["properties"])
    assert tools.call(m.ToolCall("1", "t", arguments)).status.startswith(status)


# ── Child processes that misbehave ──

FAKE = """
import json, os, sys, time
def send(**message):
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
    sys.stdout.buffer.flush()
welcome = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"}}
tools = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
results = {"initialize": welcome, "tools/list": tools, "tools/call": {"content": [{"type": "text", "text": "ok"}]}}
%s
for line in sys.stdin.buffer:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    before(message)
    if method in results and id is not None:
        send(id=answer_id(id), result=results[method])
    elif id is not None and method:
        send(id=id, error={"code": -32601, "message": "no"})
"""
PLAIN = "def before(message): pass\ndef answer_id(id): return id\n"


def fake(tmp_path, body=""):
    path = tmp_path / "fake.py"
    path.write_text(FAKE % (PLAIN + textwrap.dedent(body)), encoding="utf-8")
    return [sys.executable, str(path)]


SURVIVED = {
    "banners": "print('Welcome!', flush=True)\ndef before(message): print('working...', flush=True)",
    "flood on stderr": "sys.stderr.write('x' * 2_000_000 + chr(10)); sys.stderr.flush()",
    "byte-order mark": "sys.stdout.buffer.write(b'\\xef\\xbb\\xbf')",
    "bad bytes": "def before(message): sys.stdout.buffer.write(b'\\xff\\xfe\\n{\"a\": NaN}\\n[]\\n42\\n\\n')",
    "ids as strings": "def answer_id(id): return str(id)",
    "notifications and pings": """
        def before(message):
            send(method="notifications/message", params={"level": "info", "data": "x"})
            if message.get("method"): send(id=message.get("id", 99), method="ping")
    """,
    "asks for roots": """
        def before(message):
            if message.get("method") == "tools/list":
                send(id="r", method="roots/list")
                assert json.loads(sys.stdin.buffer.readline())["error"]["code"] == -32601
    """,
    "answers twice": "def before(message): message.get('method') == 'tools/list' and send(id=message['id'], result=tools)",
    "null next cursor": "tools['nextCursor'] = None",
    "answers to nobody": "def before(message): send(id=12345, result={}); send(id=None, result={})",
    "big answer": "results['tools/call']['content'][0]['text'] = 'ok' + ' ' * 5_000_000",
}


@pytest.mark.parametrize("name", SURVIVED)
def test_client_survives(tmp_path, name):
    with m.StdioServer(fake(tmp_path, SURVIVED[name])) as server:
        client = m.McpClient(server.send, restart=server.restart, seconds=10).connect()
        assert client.revision == "2025-06-18"
        assert client.tools().call(m.ToolCall("1", "t", {})).text.startswith("ok")


def test_server_that_reads_nothing_is_silent_too(tmp_path):
    """A request larger than the pipe: the time limit holds for writing as well."""
    body = "def before(message):\n    while message['method'] == 'tools/call': time.sleep(60)"
    with m.StdioServer(fake(tmp_path, body)) as server:
        client = m.McpClient(server.send, seconds=20).connect()
        client.seconds = 0.3
        for _ in range(2):
            with pytest.raises(m.ServerSilentError):
                client.call_tool("t", {"text": "x" * 3_000_000})


def test_silent_server_costs_the_probe_time_only(tmp_path):
    body = "def before(message):\n    while message['method'] == 'server/discover': time.sleep(60)"
    with m.StdioServer(fake(tmp_path, body)) as server:
        client = m.McpClient(server.send, probe_seconds=0.2, seconds=0.2)
        with pytest.raises(m.ServerSilentError):
            client.connect()


def test_ignored_probe_leads_to_a_handshake(tmp_path):
    body = "results['server/discover'] = None\nold = send\ndef send(**m): m.get('result', 1) is None or old(**m)"
    with m.StdioServer(fake(tmp_path, body)) as server:
        client = m.McpClient(server.send, probe_seconds=0.3, seconds=10).connect()
        assert client.revision == "2025-06-18"


def test_server_that_dies_of_the_unknown_is_started_again(tmp_path):
    body = "def before(message): message['method'] == 'server/discover' and os._exit(3)"
    with m.StdioServer(fake(tmp_path, body)) as server:
        client = m.McpClient(server.send, restart=server.restart, seconds=10).connect()
        assert client.revision == "2025-06-18" and client.tools().names == ["t"]


@pytest.mark.parametrize(
    "how", ["os._exit(3)", "os.close(1); time.sleep(30)", "os.kill(os.getpid(), 9)"]
)
def test_server_that_dies_in_a_call_is_a_result_with_its_last_words(tmp_path, how):
    body = f"""
        def before(message):
            if message.get("method") == "tools/call":
                sys.stderr.write("last words" + chr(10)); sys.stderr.flush()
                {how}
    """
    with m.StdioServer(fake(tmp_path, body)) as server:
        tools = m.McpClient(server.send, seconds=20).connect().tools()
        for _ in range(2):
            result = tools.call(m.ToolCall("1", "t", {}))
            assert result.status == "failed" and "退出" in result.text


def test_program_that_does_not_exist_is_named():
    with pytest.raises(m.McpError, match="no-such-program"):
        m.StdioServer(["no-such-program"])


def test_child_sees_only_what_it_may(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_API_KEY", "x")
    body = "results['tools/call'] = {'content': [{'type': 'text', 'text': json.dumps(dict(os.environ))}]}"
    with m.StdioServer(fake(tmp_path, body), env={"GIVEN": "1"}) as server:
        seen = m.McpClient(server.send).connect().call_tool("t", {})
        names = set(json.loads(m.result_text(seen)))
        assert "SECRET_API_KEY" not in names and {"GIVEN", "PATH"} <= names


def test_child_that_ignores_the_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(m, "CLOSE_SECONDS", 0.2)
    body = """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        def before(message): pass
        send(method="notifications/ready")
        while True: time.sleep(1)
    """
    ready = []
    server = m.StdioServer(fake(tmp_path, body), trace=lambda *item: ready.append(item))
    while not ready:
        pass
    server.close()
    assert server.process.returncode == -9


def test_own_server_in_a_child_process_serves_the_loop():
    command = [sys.executable, m.__file__, "--mcp-server"]
    with m.StdioServer(command) as server:
        client = m.McpClient(server.send, restart=server.restart).connect()
        messages, events, _ = m.play(m.SCENARIOS[0], client.tools())
        assert "4.0 GiB" in messages[-1]["content"] and events[-1].reason == "answered"
    assert server.process.returncode == 0

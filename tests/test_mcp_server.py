"""§15 through `handle`: both eras, all five revisions, checked against the official types."""

import dataclasses
import json
import math
import re
import threading

import mcp_types as official  # from mcp==2.3.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import methods as wire
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

import w4d3_tools_mcp as m

LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = "2026-07-28"
ALL = [*LEGACY, MODERN]
VERSION = "io.modelcontextprotocol/protocolVersion"
ABILITIES = "io.modelcontextprotocol/clientCapabilities"
ENVELOPE = {VERSION: MODERN, ABILITIES: {}}
KV = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4}

NOTES = {
    "week1-day4.md": "# Week 1 Day 4 · 推理的账\n\n开头。\n\n## §1 预填充\n\n甲\n\n"
    "### §1.4 KV Cache\n\n显存公式。\n\n## §2 量化\n\n乙\n",
    "week2-day3.md": "# Week 2 Day 3 · 解码\n\n解码。\n\n## §2 截断采样\n\n丙\n",
    "free text/读我.md": "# 自由\n\n正文。\n\n## 一节\n\n丁\n\n## 一节\n\n戊\n",
}


@dataclasses.dataclass
class Size:
    """A size."""

    gib: float


def broken_size() -> Size:
    """返回不符合格式的结果。"""
    return {"gib": "nan"}


def endless_size() -> Size:
    """返回不是数的结果。"""
    return Size(math.nan)


def big() -> str:
    """返回很长的文字。"""
    return "长" * 100_000


def fail() -> str:
    """总是失败。"""
    raise RuntimeError("坏了 /home/me/secret.txt")


def surrogate() -> str:
    """返回半个字符。"""
    return "a\ud800b"


def steps(values: list[float]) -> str:
    """按给定的数报告进度。

    Args:
        values: 进度，例如 [1, 2]。
    """
    for value in values:
        m.report_progress(value, 10, "步")
    return "完"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("notes")
    for name, text in NOTES.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root.parent / "secret.md").write_text("# secret\n\nsecret", encoding="utf-8")
    return root


@pytest.fixture
def server(folder):
    notes = m.NotesIndex(str(folder))
    tools = m.built_in_tools(notes)
    for fn in (broken_size, endless_size, big, fail, surrogate, steps):
        tools.register(fn)
    return m.McpServer(tools, notes)


def message(method, params=None, *, id=1, version=None, **meta):
    """A request; with version=MODERN it is enveloped."""
    params = dict(params or {})
    if version == MODERN:
        meta = {**ENVELOPE, **meta}
    if meta:
        params["_meta"] = meta
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def opened(server, version):
    """The server after that revision's opening."""
    if version != MODERN:
        server.handle(initialize(version))
        server.handle({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return server


def initialize(version):
    info = {"name": "test", "version": "0"}
    return message(
        "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
    )


def only(messages):
    assert len(messages) == 1
    assert messages[0]["jsonrpc"] == "2.0"
    return messages[0]


def ask(server, method, params=None, version=None, **more):
    return only(server.handle(message(method, params, version=version, **more)))


def result(server, method, params=None, version=None, **more):
    """The result, valid by the official types of that revision and free of nulls."""
    reply = ask(server, method, params, version, **more)
    assert "error" not in reply, reply
    version = version or server.negotiated.name
    wire.validate_server_result(method, version, reply["result"])
    assert not list(nulls(reply))
    json.loads(m.encode(reply))
    return reply["result"]


def nulls(value, path=""):
    match value:
        case None:
            yield path
        case dict():
            for key, item in value.items():
                yield from nulls(item, f"{path}.{key}")
        case list():
            for item in value:
                yield from nulls(item, path)


def error(server, method, params=None, version=None, **more):
    reply = ask(server, method, params, version, **more)
    official.JSONRPCError.model_validate(reply)
    assert reply["id"] == more.get("id", 1)
    return reply["error"]


def call(server, name, arguments=None, version=None, **more):
    return result(
        server, "tools/call", {"name": name, "arguments": arguments or {}}, version, **more
    )


# ── Opening and eras ──


def test_revisions_are_those_of_the_official_registry():
    assert sorted(m.REVISIONS) == sorted(KNOWN_PROTOCOL_VERSIONS)
    assert list(m.REVISIONS) == sorted(m.REVISIONS, reverse=True)


@pytest.mark.parametrize("asked", LEGACY)
def test_initialize_agrees_to_every_legacy_revision(server, asked):
    params = initialize(asked)["params"]
    answer = result(server, "initialize", params, asked)
    assert answer["protocolVersion"] == asked and answer["serverInfo"]["name"] == "cme295-notes"
    assert ("title" in answer["serverInfo"]) == (asked >= "2025-06-18")
    assert ("completions" in answer["capabilities"]) == (asked >= "2025-03-26")


@pytest.mark.parametrize("asked", ["1999-01-01", MODERN, "", "nonsense"])
def test_initialize_offers_the_newest_legacy_revision_otherwise(server, asked):
    assert server.handle(initialize(asked))[0]["result"]["protocolVersion"] == "2025-11-25"


def test_initialize_may_come_twice_and_before_nothing(server):
    assert "tools" in result(server, "tools/list")
    opened(server, "2024-11-05")
    assert "outputSchema" not in json.dumps(result(server, "tools/list"))
    opened(server, "2025-11-25")
    assert "outputSchema" in json.dumps(result(server, "tools/list"))


@pytest.mark.parametrize("params", [{}, {"protocolVersion": 3}, {"protocolVersion": None}])
def test_initialize_without_a_revision_is_refused(server, params):
    assert error(server, "initialize", params)["code"] == -32602


def test_discover_says_everything(server):
    answer = result(server, "server/discover", version=MODERN)
    assert answer["supportedVersions"] == sorted(ALL, reverse=True)
    assert answer["resultType"] == "complete" and answer["ttlMs"] >= 0
    assert answer["cacheScope"] in ("public", "private") and "tools" in answer["capabilities"]
    assert answer["_meta"]["io.modelcontextprotocol/serverInfo"]["version"]
    assert "serverInfo" not in answer


def test_era_is_decided_by_each_message_alone(server):
    for _ in range(2):
        assert "resultType" in result(server, "server/discover", version=MODERN)
        assert "resultType" not in server.handle(initialize("2025-06-18"))[0]["result"]
        assert "resultType" not in call(server, "kv_cache_gib", KV)
        assert call(server, "kv_cache_gib", KV, MODERN)["resultType"] == "complete"


def test_declared_capabilities_are_what_the_methods_answer(server, folder):
    bare = m.McpServer(m.ToolRegistry())
    for each, names in (
        (server, {"tools", "resources", "prompts", "completions"}),
        (bare, {"tools"}),
    ):
        assert set(result(each, "server/discover", version=MODERN)["capabilities"]) == names
    for method, key in LISTS:
        assert result(bare, method)[key] == []  # hosts ask for lists that were not declared


def test_notes_that_are_missing_are_no_resources(tmp_path):
    server = m.McpServer(m.ToolRegistry(), m.NotesIndex(str(tmp_path / "nowhere")))
    assert result(server, "resources/list")["resources"] == []
    assert error(server, "resources/read", {"uri": "notes://week1-day4"})["code"] == -32002
    assert error(server, "prompts/get", {"name": "explain_section", "arguments": {"section": "x"}})


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({VERSION: MODERN}, -32602),
        ({ABILITIES: {}}, -32602),
        ({VERSION: 20260728, ABILITIES: {}}, -32602),
        ({VERSION: MODERN, ABILITIES: []}, -32602),
        ({VERSION: None, ABILITIES: {}}, -32602),
        ({VERSION: "1900-01-01", ABILITIES: {}}, -32022),
        ({VERSION: "2025-11-25", ABILITIES: {}}, -32022),
        ({VERSION: "", ABILITIES: {}}, -32022),
        ({VERSION: "1900-01-01"}, -32602),
        ({**ENVELOPE, "io.modelcontextprotocol/logLevel": "loud"}, -32602),
        ({"io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"}}, -32602),
        ({**ENVELOPE, "progressToken": 1.5}, -32602),
        ({"progressToken": 1.5}, -32602),
        ({"progressToken": None}, -32602),
        ({"progressToken": True}, -32602),
        ({"progressToken": "a\ud800"}, -32602),
    ],
)
def test_bad_envelope_is_refused(server, meta, code):
    refused = error(server, "tools/list", **meta)
    assert refused["code"] == code
    if code == -32022:
        assert refused["data"]["requested"] == meta[VERSION]
        assert set(refused["data"]["supported"]) <= set(
            result(server, "server/discover", version=MODERN)["supportedVersions"],
        )


def test_client_info_and_log_level_are_optional(server):
    meta = {"io.modelcontextprotocol/logLevel": "debug"}
    assert result(server, "tools/list", version=MODERN)
    assert result(server, "tools/list", version=MODERN, **meta)


REMOVED = ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]


@pytest.mark.parametrize("method", REMOVED)
def test_removed_method_in_an_envelope_is_unknown(server, method):
    assert error(server, method, version=MODERN)["code"] == -32601


@pytest.mark.parametrize("method", ["server/discover", "subscriptions/listen"])
def test_modern_method_without_envelope_is_unknown(server, method):
    assert error(server, method)["code"] == -32601


def test_envelope_is_checked_before_the_method(server):
    assert error(server, "no/such", **{VERSION: MODERN})["code"] == -32602
    assert error(server, "no/such", **{VERSION: "1900-01-01", ABILITIES: {}})["code"] == -32022


@pytest.mark.parametrize("version", LEGACY)
def test_ping_and_log_level_are_answered_before_the_handshake_ends(server, version):
    server.handle(initialize(version))
    assert result(server, "ping", version=version) == {}
    assert result(server, "logging/setLevel", {"level": "info"}, version) == {}
    assert error(server, "logging/setLevel", {"level": "loud"})["code"] == -32602


def test_modern_results_carry_what_their_kind_needs(server):
    cacheable = {
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "prompts/list",
    }
    for method in cacheable:
        answer = result(server, method, version=MODERN)
        assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private")
    assert "ttlMs" in result(server, "resources/read", {"uri": "notes://week1-day4"}, MODERN)
    for answer in (
        call(server, "kv_cache_gib", KV, MODERN),
        result(server, "prompts/get", {"name": "quiz_me", "arguments": {"topic": "x"}}, MODERN),
    ):
        assert "ttlMs" not in answer and answer["resultType"] == "complete"


@pytest.mark.parametrize("version", ALL)
def test_whole_session_is_valid_in_every_revision(server, version):
    opened(server, version)
    for tool in result(server, "tools/list", version=version)["tools"]:
        assert tool["inputSchema"]["type"] == "object" and tool["description"]
    call(server, "kv_cache_gib", KV, version)
    call(server, "search_notes", {"query": "显存"}, version)
    call(server, "fail", {}, version)
    resources = result(server, "resources/list", version=version)["resources"]
    for resource in resources:
        result(server, "resources/read", {"uri": resource["uri"]}, version)
    result(server, "resources/templates/list", version=version)
    for prompt in result(server, "prompts/list", version=version)["prompts"]:
        arguments = {"section": "Week 1 Day 4 §1.4", "topic": "KV"}
        known = {a["name"]: arguments[a["name"]] for a in prompt["arguments"] if a["required"]}
        result(server, "prompts/get", {"name": prompt["name"], "arguments": known}, version)
    reference = {"type": "ref/prompt", "name": "quiz_me"}
    params = {"ref": reference, "argument": {"name": "topic", "value": "K"}}
    result(server, "completion/complete", params, version)


# ── Batches ──


def test_batch_is_answered_as_one_array_where_the_revision_has_them(server):
    opened(server, "2025-03-26")
    batch = [
        message("tools/call", {"name": "kv_cache_gib", "arguments": KV}, id=1),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        message("ping", id="2"),
        42,
        message("no/such", id=3),
        initialize("2025-06-18"),
        [],
    ]
    replies = only_batch(server.handle(batch))
    codes = sorted(r["error"]["code"] for r in replies if "error" in r)
    assert codes == [-32601, -32600, -32600, -32600]
    assert {r["id"] for r in replies if "result" in r} == {1, "2"}
    assert server.negotiated.name == "2025-03-26"


def only_batch(messages):
    assert len(messages) == 1 and isinstance(messages[0], list)
    return messages[0]


def test_batch_of_notifications_gets_nothing(server):
    opened(server, "2025-03-26")
    assert server.handle([{"jsonrpc": "2.0", "method": "notifications/initialized"}] * 2) == []


@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-06-18", "2025-11-25"])
def test_batch_is_refused_once_elsewhere_and_nothing_runs(server, version):
    if version:
        opened(server, version)
    ran = []
    server.tools.register(lambda_tool(ran))
    reply = only(server.handle([message("tools/call", {"name": "note_run", "arguments": {}})] * 2))
    assert reply["error"]["code"] == -32600 and "id" not in reply and ran == []


def lambda_tool(ran):
    def note_run() -> str:
        """记下被调用了。"""
        ran.append(1)
        return "ok"

    return note_run


def test_enveloped_batch_and_empty_batch_are_refused(server):
    opened(server, "2025-03-26")
    for batch in ([message("tools/list", version=MODERN)], []):
        reply = only(server.handle(batch))
        assert reply["error"]["code"] == -32600 and "id" not in reply


# ── Tools ──


def test_listed_tools_keep_the_limits_of_hosts(server):
    for tool in result(server, "tools/list", version=MODERN)["tools"]:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,45}", tool["name"])
        assert "$schema" not in json.dumps(tool) and len(tool["description"]) < 1024
        assert tool.get("outputSchema", {"type": "object"})["type"] == "object"
    tools = {t["name"]: t for t in result(server, "tools/list")["tools"]}
    assert tools["kv_cache_gib"]["annotations"]["readOnlyHint"] is True
    assert tools["kv_cache_gib"]["annotations"]["openWorldHint"] is False


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        ("2024-11-05", set(), {"annotations", "title", "outputSchema"}),
        ("2025-03-26", {"annotations"}, {"title", "outputSchema"}),
        ("2025-06-18", {"annotations", "title", "outputSchema"}, set()),
        ("2025-11-25", {"annotations", "title", "outputSchema"}, set()),
    ],
)
def test_fields_appear_from_their_revision_on(server, version, has, lacks):
    opened(server, version)
    tool = next(t for t in result(server, "tools/list")["tools"] if t["name"] == "kv_cache_gib")
    assert has <= tool.keys() and not lacks & tool.keys()
    answer = call(server, "kv_cache_gib", KV)
    assert ("structuredContent" in answer) == ("outputSchema" in has)
    kinds = {block["type"] for block in call(server, "search_notes", {"query": "显存"})["content"]}
    assert ("resource_link" in kinds) == ("outputSchema" in has)


def test_structured_content_is_the_text_and_keeps_its_schema(server):
    jsonschema = pytest.importorskip("jsonschema")
    tools = {t["name"]: t for t in result(server, "tools/list")["tools"]}
    for name, arguments in (("kv_cache_gib", KV), ("search_notes", {"query": "显存"})):
        answer = call(server, name, arguments)
        assert json.loads(answer["content"][0]["text"]) == answer["structuredContent"]
        jsonschema.validate(answer["structuredContent"], tools[name]["outputSchema"])


@pytest.mark.parametrize("name", ["broken_size", "endless_size"])
def test_value_that_breaks_its_own_schema_is_an_error_the_model_can_read(server, name):
    answer = call(server, name)
    assert answer["isError"] and name in answer["content"][0]["text"]
    assert "structuredContent" not in answer


def test_search_results_link_to_readable_resources(server):
    answer = call(server, "search_notes", {"query": "显存公式"}, MODERN)
    links = [block for block in answer["content"] if block["type"] == "resource_link"]
    assert links
    for link in links:
        assert result(server, "resources/read", {"uri": link["uri"]}, MODERN)["contents"][0]["text"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {**KV, "seq_len": "8k"},
        {**KV, "seq_len": True},
        {**KV, "extra": 1},
        {**KV, "seq_len": -1},
        {**KV, "seq_len": math.inf},
        {**KV, "seq_len": None},
        {**KV, "seq_len": 1.5},
    ],
)
@pytest.mark.parametrize("version", ["2024-11-05", MODERN])
def test_bad_arguments_are_a_result_that_names_them(server, arguments, version):
    answer = call(opened(server, version), "kv_cache_gib", arguments, version)
    assert answer["isError"] is True and re.search(
        "seq_len|num_layers|extra", answer["content"][0]["text"]
    )


@pytest.mark.parametrize(
    "params",
    [
        {"name": "no_such"},
        {},
        {"name": 3},
        {"name": None},
        {"name": "kv_cache_gib", "arguments": []},
        {"name": "kv_cache_gib", "arguments": "{}"},
    ],
)
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
def test_call_that_is_wrong_itself_is_a_protocol_error(server, params, version):
    assert error(server, "tools/call", params, version)["code"] == -32602


def test_tools_are_made_when_they_are_first_needed():
    made = []
    server = m.McpServer(lambda: made.append(1) or m.built_in_tools())
    server.handle(initialize("2025-11-25"))
    result(server, "server/discover", version=MODERN)
    assert made == []
    for _ in range(2):
        assert result(server, "tools/list")["tools"] and call(server, "kv_cache_gib", KV)
    assert made == [1]


def test_failure_inside_a_tool_is_a_result_without_private_paths(server):
    answer = call(server, "fail")
    assert answer["isError"] and "坏了" in answer["content"][0]["text"]
    assert "/home/me" not in json.dumps(answer)


def test_long_result_is_cut_and_half_a_character_replaced(server):
    assert len(call(server, "big")["content"][0]["text"]) <= m.MCP_RESULT_CHARACTERS
    assert "\ud800" not in m.encode(call(server, "surrogate")).decode("utf-8")


def test_arguments_may_be_left_out(server):
    assert "content" in result(server, "tools/call", {"name": "fail"})


@pytest.mark.parametrize("id", [0, -1, "", "x", 10**30])
def test_reply_repeats_the_id_with_its_type(server, id):
    reply = ask(server, "ping", id=id)
    assert reply["id"] == id and type(reply["id"]) is type(id)


# ── Progress and cancellation ──


def progress_of(server, values, token, version):
    request = message(
        "tools/call",
        {"name": "steps", "arguments": {"values": values}},
        version=version,
        progressToken=token,
    )
    *sent, reply = server.handle(request)
    assert reply["id"] == 1 and reply["result"]["content"][0]["text"] == "完"
    for note in sent:
        assert note["method"] == "notifications/progress" and "id" not in note
        assert note["params"]["progressToken"] == token
        assert type(note["params"]["progressToken"]) is type(token)
        wire.parse_server_notification(note["method"], version, note["params"])
    return [note["params"] for note in sent]


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("token", [0, "0", "标"])
def test_progress_strictly_increases_and_keeps_its_token(server, version, token):
    sent = progress_of(opened(server, version), [1, 2, 2, 1, 5, 4, 7.5], token, version)
    assert [params["progress"] for params in sent] == [0, 1, 2, 5, 7.5]
    assert all(("message" in params) == (version >= "2025-03-26") for params in sent)


def test_asynchronous_tool_reports_and_hears_of_its_cancellation(server):
    entered, go = threading.Event(), threading.Event()

    async def far(values: list[float]) -> str:
        """异步报告进度。

        Args:
            values: 进度，例如 [1, 2]。
        """
        for value in values:
            m.report_progress(value)
        entered.set()
        go.wait(5)
        m.report_progress(99)
        return "完"

    server.tools.register(far)
    request = message(
        "tools/call", {"name": "far", "arguments": {"values": [1, 2]}}, progressToken=1
    )
    go.set()
    sent = server.handle(request)
    assert [note["params"]["progress"] for note in sent[:-1]] == [0, 1, 2, 99]
    assert sent[-1]["result"]["content"][0]["text"] == "完"
    entered.clear()
    go.clear()
    sent = []
    (begun,) = server.begin(request)
    thread = threading.Thread(target=begun.run, args=(sent.append,))
    thread.start()
    assert entered.wait(5)
    server.handle(cancelled(1))
    go.set()
    thread.join(5)
    assert [note["params"]["progress"] for note in sent] == [0, 1, 2]


def test_no_progress_unless_asked_for(server):
    assert "content" in call(server, "steps", {"values": [1, 2]})


def test_report_outside_a_call_does_nothing():
    assert m.report_progress(1) is None


class Held:
    """A tool that waits until it is let go, on its own thread."""

    def __init__(self, server):
        self.entered, self.go, self.sent = threading.Event(), threading.Event(), []
        self.error = None
        server.tools.register(self.tool())

    def tool(self):
        def hold() -> str:
            """等待。"""
            self.entered.set()
            assert self.go.wait(5)
            try:
                m.report_progress(5)
            except m.ToolError as error:
                self.error = error
                raise
            return "done"

        return hold

    def start(self, started):
        (begun,) = started
        thread = threading.Thread(target=begun.run, args=(self.sent.append,))
        thread.start()
        assert self.entered.wait(5)
        return thread

    def finish(self, thread):
        self.go.set()
        thread.join(5)
        return self.sent


@pytest.mark.parametrize("version", [None, MODERN])
def test_cancelled_call_sends_nothing_more_and_the_tool_hears_of_it(server, version):
    held = Held(server)
    thread = held.start(
        server.begin(
            message("tools/call", {"name": "hold"}, id=7, version=version, progressToken=1),
        )
    )
    assert [sent["params"]["progress"] for sent in held.sent] == [0]
    assert ask(server, "tools/list", id=8)["id"] == 8
    assert server.handle(cancelled(7)) == []
    assert len(held.finish(thread)) == 1 and held.error is not None
    assert call(server, "kv_cache_gib", KV, id=7)


def test_id_that_is_free_again_belongs_to_the_second_request(server):
    """Modern clients may use the id of a cancelled request again while its tool still runs."""
    first = Held(server)
    thread = first.start(server.begin(message("tools/call", {"name": "hold"}, id=7)))
    server.handle(cancelled(7))
    (second,) = server.begin(message("tools/call", {"name": "fail"}, id=7))
    assert first.finish(thread) == []
    sent = []
    second.run(sent.append)
    assert only(sent)["id"] == 7 and server.open == {}


def test_request_cancelled_while_it_waits_in_a_batch_is_not_run(server):
    ran = []
    server.tools.register(lambda_tool(ran))
    held = Held(opened(server, "2025-03-26"))
    batch = [
        message("tools/call", {"name": "hold"}, id=7),
        message("tools/call", {"name": "note_run"}, id=8),
    ]
    thread = held.start(server.begin(batch))
    server.handle(cancelled(8))
    replies = only_batch(held.finish(thread))
    assert [reply["id"] for reply in replies] == [7] and ran == []


@pytest.mark.parametrize("total", [math.nan, math.inf, -math.inf, None])
def test_total_that_is_no_number_is_left_out(server, total):
    def odd_total() -> str:
        """报告没有意义的总数。"""
        m.report_progress(1, total)
        m.report_progress(math.nan, 10)
        m.report_progress(math.inf, 10)
        return "完"

    server.tools.register(odd_total)
    sent = server.handle(message("tools/call", {"name": "odd_total"}, progressToken=1))
    assert [note["params"]["progress"] for note in sent[:-1]] == [0, 1]
    assert all("total" not in note["params"] for note in sent[:-1])
    assert all(m.encode(note) for note in sent)


def cancelled(id):
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


@pytest.mark.parametrize("id", [8, "7", None, True, 7.0, [], {}])
def test_cancellation_of_another_id_is_ignored(server, id):
    held = Held(server)
    thread = held.start(server.begin(message("tools/call", {"name": "hold"}, id=7)))
    assert server.handle(cancelled(id)) == []
    assert held.finish(thread)[-1]["result"]["content"][0]["text"] == "done"


def test_id_in_use_is_refused_and_the_first_request_goes_on(server):
    held = Held(server)
    thread = held.start(server.begin(message("tools/call", {"name": "hold"}, id=7)))
    assert error(server, "ping", id=7)["code"] == -32600
    assert held.finish(thread)[-1]["id"] == 7


def test_tool_that_raises_anything_still_gets_a_reply(server):
    def leave() -> str:
        """离开。"""
        raise KeyboardInterrupt

    server.tools.register(leave)
    assert error(server, "tools/call", {"name": "leave"})["code"] == -32603


# ── Notifications and strays ──


@pytest.mark.parametrize(
    "stray",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "fail"}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": []},
        {"jsonrpc": "2.0", "id": 77, "result": {}},
        {"jsonrpc": "2.0", "id": 77, "error": 3},
    ],
)
def test_what_wants_no_answer_gets_none(server, stray):
    assert server.handle(stray) == []


# ── Subscriptions ──


@pytest.mark.parametrize("id", [1, "1"])
def test_listen_is_acknowledged_first_held_open_and_ended_without_reply(server, id):
    wanted = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["notes://x"]}}
    note = only(server.handle(message("subscriptions/listen", wanted, id=id, version=MODERN)))
    assert note["method"] == "notifications/subscriptions/acknowledged" and "id" not in note
    wire.parse_server_notification(note["method"], MODERN, note["params"])
    subscription = note["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]
    assert subscription == id and type(subscription) is type(id)
    assert note["params"]["notifications"] == {}
    assert result(server, "tools/list", version=MODERN, id=2)
    assert server.handle(cancelled(id)) == []
    assert server.open == {}


def test_listen_without_a_list_of_wishes_is_refused(server):
    assert error(server, "subscriptions/listen", version=MODERN)["code"] == -32602
    assert server.open == {}


# ── Pages ──

LISTS = [
    ("tools/list", "tools"),
    ("resources/list", "resources"),
    ("prompts/list", "prompts"),
    ("resources/templates/list", "resourceTemplates"),
]


@pytest.mark.parametrize(("method", "key"), LISTS)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("version", [None, MODERN])
def test_pages_join_to_the_whole_list(server, method, key, size, version):
    whole = result(server, method, version=version)[key]
    server.page_items = size
    entries, cursor, pages = [], None, 0
    while True:
        page = result(server, method, {"cursor": cursor} if cursor else None, version)
        entries += page[key]
        pages += 1
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert entries == whole and pages == -(-len(whole) // size)


@pytest.mark.parametrize(
    "cursor",
    ["bogus", "", 1, [], "tools@3", "tools@-2", "tools@99", "resources@2", "tools"],
)
def test_cursor_that_we_did_not_give_is_refused(server, cursor):
    server.page_items = 2
    assert error(server, "tools/list", {"cursor": cursor})["code"] == -32602


def test_null_cursor_is_the_first_page(server):
    assert ask(server, "tools/list", {"cursor": None})["result"]["tools"]


# ── Resources ──


def test_files_are_listed_and_read_whole(server):
    listed = result(server, "resources/list")["resources"]
    assert sorted(r["uri"] for r in listed) == [
        "notes://free%20text%2F%E8%AF%BB%E6%88%91",
        "notes://week1-day4",
        "notes://week2-day3",
    ]
    text = result(server, "resources/read", {"uri": "notes://week1-day4"})["contents"][0]["text"]
    assert all(part in text for part in ("开头", "§1.4 KV Cache", "显存公式", "乙"))


def test_every_section_is_readable_by_the_template(server):
    template = result(server, "resources/templates/list")["resourceTemplates"][0]["uriTemplate"]
    named = {note.section: note for note in server.outline} | server.files
    for name, note in named.items():
        uri = template.replace(
            "{note}",
            "".join(
                c
                if c.isascii() and (c.isalnum() or c in "-._~")
                else "".join(f"%{b:02x}" for b in c.encode())
                for c in name
            ),
        )
        content = only_content(result(server, "resources/read", {"uri": uri}))
        assert content["uri"] == uri and note.text in content["text"]


def only_content(answer):
    assert len(answer["contents"]) == 1
    return answer["contents"][0]


@pytest.mark.parametrize(
    "uri",
    [
        "notes://no-such",
        "notes://",
        "notes://../secret",
        "notes://%2e%2e/secret",
        "notes:///etc/passwd",
        "notes://week1-day4/../../secret",
        "notes://../week1-day4",
        "file:///etc/passwd",
        "/etc/passwd",
        "week1-day4",
        "NOTES://week1-day4",
        "notes://week1-day4.md",
        "notes://%00",
        "notes://%ff%fe",
        "notes://free text/../week1-day4",
        "notes://\ud800",
        "http://week1-day4",
        "",
    ],
)
def test_missing_resource_is_an_error_of_the_era(server, uri):
    assert error(server, "resources/read", {"uri": uri})["code"] == -32002
    assert error(server, "resources/read", {"uri": uri}, MODERN)["code"] == -32602


@pytest.mark.parametrize("params", [{}, {"uri": 3}, {"uri": None}])
def test_read_without_uri_is_refused(server, params):
    assert error(server, "resources/read", params)["code"] == -32602


# ── Prompts and completion ──


def test_explained_section_comes_along(server):
    arguments = {"section": "week1-day4 1.4"}
    answer = result(server, "prompts/get", {"name": "explain_section", "arguments": arguments})
    assert [m["content"]["type"] for m in answer["messages"]] == ["text", "resource"]
    assert "显存公式" in answer["messages"][1]["content"]["resource"]["text"]
    assert result(
        server, "resources/read", {"uri": answer["messages"][1]["content"]["resource"]["uri"]}
    )


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": "no_such"},
        {"name": "quiz_me"},
        {"name": "quiz_me", "arguments": {"topic": ""}},
        {"name": "quiz_me", "arguments": {"topic": "x", "count": "many"}},
        {"name": "quiz_me", "arguments": {"topic": "x", "count": 3}},
        {"name": "quiz_me", "arguments": {"topic": "x", "count": "9" * 5000}},
        {"name": "quiz_me", "arguments": {"topic": "x", "count": "21"}},
        {"name": "quiz_me", "arguments": {"topic": "x", "count": "²"}},
        {"name": "quiz_me", "arguments": {"topic": "x", "server": "y"}},
        {"name": "quiz_me", "arguments": {"topic": "x", "other": "y"}},
        {"name": "quiz_me", "arguments": []},
        {"name": "explain_section", "arguments": {"section": "no such section"}},
    ],
)
def test_prompt_asked_for_wrongly_is_refused(server, params):
    assert error(server, "prompts/get", params)["code"] == -32602


def test_argument_of_a_prompt_that_was_left_blank_is_as_if_not_given(server):
    for arguments in ({"topic": "KV"}, {"topic": "KV", "count": ""}):
        answer = result(server, "prompts/get", {"name": "quiz_me", "arguments": arguments})
        assert "考我 5 道题" in answer["messages"][0]["content"]["text"]


def complete(server, ref, name, value):
    params = {"ref": ref, "argument": {"name": name, "value": value}}
    return result(server, "completion/complete", params)["completion"]


def test_completion_comes_from_the_sections(server):
    prompt = {"type": "ref/prompt", "name": "explain_section"}
    found = complete(server, prompt, "section", "week 1")
    assert found["values"] == [
        "Week 1 Day 4",
        "Week 1 Day 4 §1",
        "Week 1 Day 4 §1.4",
        "Week 1 Day 4 §2",
    ]
    assert (found["total"], found["hasMore"]) == (4, False)
    assert (
        "KV Cache"
        in complete(server, {"type": "ref/prompt", "name": "quiz_me"}, "topic", "kv")["values"]
    )
    template = {"type": "ref/resource", "uri": "notes://{note}"}
    assert complete(server, template, "note", "week")["values"][0] == "week1-day4"
    assert complete(server, prompt, "section", "no such")["values"] == []


def test_completion_gives_at_most_a_hundred(server):
    notes = [m.Note("n", f"n > {i}", f"title {i}", i, "t", 2) for i in range(250)]
    server.outline = notes
    found = complete(server, {"type": "ref/prompt", "name": "quiz_me"}, "topic", "title")
    assert (len(found["values"]), found["total"], found["hasMore"]) == (100, 250, True)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ref": {"type": "ref/prompt", "name": "quiz_me"}},
        {"ref": {"type": "ref/prompt", "name": "no"}, "argument": {"name": "topic", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "quiz_me"}, "argument": {"name": "no", "value": ""}},
        {"ref": {"type": "ref/other"}, "argument": {"name": "topic", "value": ""}},
        {
            "ref": {"type": "ref/resource", "uri": "file://{x}"},
            "argument": {"name": "x", "value": ""},
        },
        {
            "ref": {"type": "ref/prompt", "name": "quiz_me"},
            "argument": {"name": "topic", "value": 3},
        },
    ],
)
def test_completion_of_nothing_known_is_refused(server, params):
    assert error(server, "completion/complete", params)["code"] == -32602


# ── A large folder ──


class Counting(m.LargeNotesIndex):
    """Counts how often it is used, and how often all its sections are read."""

    used = reads = 0

    def __getattribute__(self, name):
        if name in ("outline", "sections", "search", "find"):
            self.used += 1
            self.reads += name in ("outline", "sections")
        return super().__getattribute__(name)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """1,000 files of ten sections."""
    root = tmp_path_factory.mktemp("large")
    for number in range(1000):
        parts = [f"## §{k} 主题 {number}-{k}\n\n细节 {number} {k}\n" for k in range(1, 10)]
        (root / f"file{number:04}.md").write_text(
            f"# 第 {number} 篇\n\n" + "\n".join(parts), "utf-8"
        )
    return root, tmp_path_factory.mktemp("cache")


@pytest.fixture
def large_server(large):
    root, cache = large
    notes = Counting(str(root), str(cache), large=1)
    return m.McpServer(m.built_in_tools(notes), notes)


def test_nothing_is_read_before_it_is_needed(large_server):
    for method in ("server/discover", "tools/list", "prompts/list", "resources/templates/list"):
        result(large_server, method, version=MODERN)
    call(large_server, "kv_cache_gib", KV)
    assert large_server.notes.used == 0


def test_large_folder_is_read_once_for_all_lists_links_and_completions(large_server):
    uris, cursor = [], None
    while cursor is not None or not uris:
        page = result(large_server, "resources/list", {"cursor": cursor} if cursor else None)
        uris += [resource["uri"] for resource in page["resources"]]
        cursor = page.get("nextCursor")
    assert len(set(uris)) == 1000
    answer = call(large_server, "search_notes", {"query": "细节 777 7"}, MODERN)
    links = [block["uri"] for block in answer["content"] if block["type"] == "resource_link"]
    for uri in (uris[0], uris[-1], *links):
        read = result(large_server, "resources/read", {"uri": uri}, MODERN)
        assert "细节" in only_content(read)["text"]
    assert (
        "细节 0 9"
        in result(large_server, "resources/read", {"uri": uris[0]})["contents"][0]["text"]
    )
    found = complete(large_server, {"type": "ref/prompt", "name": "quiz_me"}, "topic", "主题 99")
    assert found["total"] == 99 and len(found["values"]) == 99 and not found["hasMore"]
    found = complete(
        large_server, {"type": "ref/prompt", "name": "explain_section"}, "section", "f"
    )
    assert found["total"] == 10_000 and len(found["values"]) == 100 and found["hasMore"]
    assert large_server.notes.reads == 1 and not any(n.text for n in large_server.outline)


# ── Anything at all ──

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "_meta",
                    "name",
                    "arguments",
                    "uri",
                    "cursor",
                    "ref",
                    "argument",
                    "type",
                    "notifications",
                    "progressToken",
                    VERSION,
                    ABILITIES,
                    "level",
                    "value",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
METHODS = st.sampled_from([*m.METHODS, "notifications/cancelled", "no/such"])


@settings(max_examples=400, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "jsonrpc": st.just("2.0") | SCALARS,
            "id": st.integers(0, 9) | ANYTHING,
            "method": METHODS | ANYTHING,
            "params": ANYTHING,
            "result": ANYTHING,
        },
    )
    | ANYTHING
)
def test_whatever_comes_a_request_gets_one_reply_and_nothing_raises(anything):
    server = m.McpServer(m.built_in_tools(m.NotesIndex("nowhere")), m.NotesIndex("nowhere"))
    replies = [reply for reply in server.handle(anything) if "method" not in reply]
    assert len(replies) <= 1
    for reply in replies:
        m.encode(reply)
        assert reply.get("error", {}).get("code") != -32603, reply

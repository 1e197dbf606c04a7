"""§20: the doctor finds every planted fault, once and nothing else, and none in our own server."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import w4d3_tools_mcp as m

# A tidy little server of both eras; a row changes one thing of it.
TIDY = """
import json, sys, time
def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
def send(**message):
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
def fail(id, code):
    send(**({} if id is None else {"id": id}), error={"code": code, "message": "no"})
N = {"type": "integer", "minimum": 3}
SCHEMA = {"type": "object", "properties": {"n": N}, "required": ["n"]}
READS = {"readOnlyHint": True}
TOOL = {"name": "look", "description": "Look.", "inputSchema": SCHEMA, "annotations": READS}
INFO, CAN = {"name": "s", "version": "1"}, {"tools": {}}
ABOUT = {"protocolVersion": "2025-11-25", "capabilities": CAN, "serverInfo": INFO}
CALLED = {"content": [{"type": "text", "text": "ok"}]}
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
DISCOVERED = {**MODERN, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
RESULTS = {
    "initialize": ABOUT, "ping": {}, "logging/setLevel": {}, "tools/list": {"tools": [TOOL]},
    "resources/list": {"resources": []}, "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": []}, "tools/call": CALLED, "server/discover": DISCOVERED,
}
def answer(method, id, params):
    if method not in RESULTS or method == "tools/call" and params["name"] == "no_such_tool":
        return fail(id, -32601)
    modern = MODERN if "_meta" in params else {}
    send(id=id, result={**RESULTS[method], **modern})
def broken(line): fail(None, -32700)
def noted(message): pass
def finish(): pass
#HERE
for line in sys.stdin.buffer:
    try:
        message = json.loads(line, parse_constant=int)
        id, method, params = message["id"], message["method"], message.get("params") or {}
        if id is None or not isinstance(params, dict): raise ValueError
        message["jsonrpc"]
    except KeyError as error:
        if error.args == ("id",): noted(message)
        else: broken(line)
        continue
    except (ValueError, TypeError, RecursionError):
        broken(line)
        continue
    answer(method, id, params)
finish()
"""


def server(tmp_path, body=""):
    path = tmp_path / "server.py"
    path.write_text(TIDY.replace("#HERE", textwrap.dedent(body)), encoding="utf-8")
    return [sys.executable, str(path)]


def around(method, before="", after="pass"):
    """A server that does something when that method is asked."""
    return f"""
old = answer
def answer(method, id, params):
    if method == {method!r}:
        {before or "pass"}
    old(method, id, params)
    if method == {method!r}:
        {after}
"""


def silent(*methods):
    return f"old = answer\ndef answer(method, *rest): method in {methods!r} or old(method, *rest)"


OUTPUT = "TOOL['outputSchema'] = {'type': 'object', 'required': ['a']}; "
DRAFT = "http://json-schema.org/draft-07/schema#"
LEGACY = "del RESULTS['server/discover']\n"
PLANTED = {
    "BOM": around("ping", r"write(b'\xef\xbb\xbf')"),
    "bytes": "CALLED['content'][0]['text'] = 'x'\n"
    + around("ping", r"write(b'{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}\n')"),
    "NaN": "CALLED['structuredContent'] = {'x': float('nan')}",
    "half": "CALLED['content'][0]['text'] = chr(0xd800)",
    "noise": "print('Server started', flush=True)",
    "split": "dumps = json.dumps; json.dumps = lambda value: dumps(value, indent=1)",
    "no object": around("tools/list", r"write(b'[]\n')"),
    "jsonrpc": around("ping", r"write(b'{\"method\":\"notifications/x\"}\n')"),
    "error": around("no/such/method", "send(id=id, error='no'); return"),
    "null id": around(
        "tools/list",
        r"write(b'{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":1,\"message\":\"\"}}\n')",
    ),
    "text id": "old = send\ndef send(**message):\n"
    "    old(**{**message, 'id': str(message['id'])} if 'id' in message else message)",
    "long": "CALLED['content'][0] = {'type': 'image', 'data': 'x' * 11_000_000, 'mimeType': 'x/y'}",
    "twice": around("tools/list", after="send(id=id, result=RESULTS[method])"),
    "start": "sys.exit('no key')",
    "buffered": "def write(data): sys.stdout.buffer.write(data)",
    "slow": around("initialize", "time.sleep(0.2)"),
    "window": around("initialize", "global ready; ready = False")
    + silent("logging/setLevel").replace("old", "older"),
    "list": "del RESULTS['tools/list']\nRESULTS['server/discover'] = {'x': 1}",
    "undeclared": "del RESULTS['prompts/list']",
    "about": "ABOUT['protocolVersion'] = '1.0'",
    "shape": "TOOL['title'] = None",
    "content": "del CALLED['content']",
    "names": "RESULTS['tools/list'] = {'tools': [TOOL, TOOL]}",
    "cursor": "RESULTS['tools/list'] = {'tools': [], 'nextCursor': 'x'}",
    "name": "TOOL['name'] = 'a.b'",
    "combined": "TOOL['name'] = 'x' * 61",
    "no text": "del TOOL['description']",
    "text": "TOOL['description'] = 'x' * 1025",
    "$schema": f"SCHEMA['$schema'] = {DRAFT!r}",
    "union": "SCHEMA['anyOf'] = [{}]",
    "schema": "N['type'] = 'int'",
    "stray": "SCHEMA['required'] = ['n', 'k']",
    "big": "SCHEMA['properties']['n']['description'] = 'x' * 9000",
    "output": OUTPUT + "CALLED['structuredContent'] = {'b': 1}",
    "too much": "CALLED['content'][0]['text'] = 'x' * 1_100_000",
    "silent": silent("tools/call"),
    "useless": "CALLED['isError'] = True",
    "unknown": silent("no/such/method"),
    "again": "first = []\n" + "old = answer\ndef answer(method, *rest):\n"
    "    if method == 'initialize' and first: return\n"
    "    first.append(method); old(method, *rest)\n" + LEGACY,
    "fragile": "def broken(line): sys.exit(1)",
    "too deep": "def broken(line): line[:2] == b'[[' and sys.exit(1); fail(None, -32700)",
    "wrong lines": "def broken(line): pass",
    "notified": "def noted(message): message['method'][-7:] == 'no_such' and fail(None, -32601)",
    "end": "def finish(): time.sleep(30)",
    "died": around("tools/list", "sys.exit(1)"),
    "probe": silent("server/discover"),
    "probe kills": around("server/discover", "sys.exit(1)"),
    "locked": "seen = []\nold = answer\ndef answer(method, id, params):\n"
    "    if seen and method == 'initialize': return fail(id, -32022)\n"
    "    if method == 'server/discover': seen.append(1)\n    old(method, id, params)",
    "stateless": "seen = []\nold = answer\ndef answer(method, id, params):\n"
    "    if '_meta' in params and not seen and method[:6] == 'tools/': return fail(id, -32602)\n"
    "    seen.append(1); old(method, id, params)",
    "modern": "del MODERN['ttlMs']",
}
# a fault that has another as its consequence
ALSO = {
    "long": {"silent"},
    "died": {"stateless"},
    "split": {"start"},
    "again": {"locked"},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(m, "DOCTOR_SECONDS", 1.0)
    monkeypatch.setattr(m, "CLOSE_SECONDS", 0.3)


def test_tidy_server_and_our_own_have_nothing(tmp_path):
    own = [sys.executable, m.__file__, "--mcp-server"]
    for command in (server(tmp_path), own):
        assert m.mcp_examine(command) == {}
        assert list(m.mcp_doctor_text(command)) == [m.SOUND]


@pytest.mark.parametrize("fault", m.FAULTS)
def test_planted_fault_is_found(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(m, "SLOWEST_START", {"slow": 0.15, "buffered": 0.5}.get(fault, 10.0))
    found = m.mcp_examine(server(tmp_path, PLANTED[fault]))
    assert fault in found and found.keys() - {fault} <= ALSO.get(fault, set())


SHAPES = [
    ("about", "ABOUT['protocolVersion'] = '1.0'", "protocolVersion"),
    ("about", "del ABOUT['serverInfo']", "缺少 serverInfo"),
    ("about", "INFO['version'] = 1", "serverInfo.version"),
    ("about", "ABOUT['capabilities'] = []", "capabilities"),
    ("about", "ABOUT['instructions'] = None", "instructions"),
    ("shape", "TOOL['title'] = None", "tools[0].title"),
    ("shape", "RESULTS['tools/list'] = {'tools': {}}", "tools"),
    ("shape", "del TOOL['name']", "tools/list 的答复：缺少 tools[0].name，请补上"),
    ("shape", "RESULTS['prompts/list'] = {}", "prompts/list 的答复：缺少 prompts，请补上"),
    ("shape", "TOOL['input_schema'] = TOOL.pop('inputSchema')", "是不是写成了 input_schema？"),
    ("about", "ABOUT['server_info'] = ABOUT.pop('serverInfo')", "是不是写成了 server_info？"),
    ("about", "del ABOUT['capabilities']", "initialize 的答复：缺少 capabilities，请补上"),
    ("shape", "TOOL['title'] = 5", "tools[0].title"),
    ("shape", "SCHEMA.clear()", "缺少 tools[0].inputSchema.type"),
    ("shape", "TOOL['inputSchema'] = None", "tools[0].inputSchema"),
    ("shape", "SCHEMA['properties'] = None", "tools[0].inputSchema.properties"),
    ("shape", "TOOL['outputSchema'] = {'type': 'array'}", "tools[0].outputSchema.type"),
    ("shape", "SCHEMA['properties']['n'] = True", "tools[0].inputSchema.properties.n"),
    ("shape", "RESULTS['tools/list']['nextCursor'] = None", "nextCursor"),
    ("shape", "RESULTS['tools/list'] = {'tools': [5]}", "tools[0]"),
    ("shape", "RESULTS['prompts/list'] = {'prompts': [{'name': None}]}", "prompts[0].name"),
    ("shape", "RESULTS['resources/list'] = {'resources': [{'name': 'x'}]}", "resources[0].uri"),
    ("content", "del CALLED['content']", "缺少 content"),
    ("content", "CALLED['content'] = None", "content"),
    ("content", "CALLED['content'] = [{'type': 'hologram'}]", "的结果：content[0].type"),
    ("content", "CALLED['content'] = 'x'", '工具 "look" 的结果：content 应该是 array'),
]


@pytest.mark.parametrize("fault, body, place", SHAPES)
def test_what_official_clients_refuse_is_found(tmp_path, fault, body, place):
    found = m.mcp_examine(server(tmp_path, body))
    (where,) = found[fault]
    assert place in where and "参数" not in where
    assert found.keys() - {fault} <= {"name", "no text", "output", "schema"}


REFUSED = [
    ("schema", "N['type'] = 'int'", 'inputSchema.properties.n.type 是 "int"，应该是 integer'),
    ("schema", "N['type'] = 'Widget'", 'n.type 是 "Widget"'),
    ("schema", "N['type'] = ['integer', 'nil']", 'n.type 是 "nil"'),
    ("schema", "SCHEMA['properties']['l'] = {'items': {'type': 'str'}}", "l.items"),
    ("schema", "SCHEMA['properties']['l'] = {'anyOf': [{'type': 'float'}, {}]}", "l.anyOf.type"),
    ("schema", "SCHEMA['$defs'] = {'d': {'type': 'dict'}}", "$defs.d.type"),
    ("schema", "N['required'] = True", "required 的值 true"),
    ("schema", "SCHEMA['properties']['l'] = {'$ref': '#/$defs/none'}", "$ref"),
    ("stray", "SCHEMA['required'] = ['n', 'k']", 'inputSchema.required 里的 "k"'),
    ("stray", "SCHEMA['properties']['o'] = {'properties': {}, 'required': ['k']}", ".o.req"),
]


@pytest.mark.parametrize("fault, body, place", REFUSED)
def test_what_model_apis_refuse_of_a_schema_is_told(tmp_path, fault, body, place):
    (where,) = m.mcp_examine(server(tmp_path, body)).pop(fault)
    assert where.startswith('工具 "look" 的 inputSchema') and place in where


def test_a_schema_that_is_sound_has_no_finding(tmp_path):
    body = (
        "SCHEMA['properties']['l'] = {'type': ['array', 'null'], 'items': {'$ref': '#/$defs/d'}}\n"
        "SCHEMA['$defs'] = {'d': {'anyOf': [{'required': ['x']}, {'type': 'null'}], 'if': {}}}"
    )
    assert m.mcp_examine(server(tmp_path, body)) == {}


def test_a_request_of_the_server_itself_is_no_second_answer(tmp_path):
    body = "def broken(line): b'result' in line or fail(None, -32700)\n"
    assert m.mcp_examine(server(tmp_path, body + around("ping", "send(id=0, method='ping')"))) == {}


def test_a_server_that_does_not_shake_hands_after_a_probe_is_locked_in_either_era(tmp_path):
    body = (
        LEGACY + "dead = []\nold = answer\ndef answer(method, id, params):\n"
        "    if dead and method == 'initialize': return fail(id, -32601)\n"
        "    if method == 'server/discover': dead.append(1)\n    old(method, id, params)"
    )
    assert m.mcp_examine(server(tmp_path, body)).keys() == {"locked"}


@pytest.mark.parametrize(
    "fault", ["about", "shape", "content", "silent", "fragile", "too deep", "useless", "died"]
)
def test_words_and_what_is_named_in_them_stand_well_together(tmp_path, fault):
    for line in m.mcp_doctor_text(server(tmp_path, PLANTED[fault])):
        assert not re.search(
            '[一-鿿][A-Za-z"]|[A-Za-z"][一-鿿]|(?<!\\d)[一-鿿] [一-鿿]|？。', line
        ), line


def test_a_crash_says_after_which_messages(tmp_path):
    (where,) = m.mcp_examine(server(tmp_path, "def noted(message): sys.exit('no id')"))["died"]
    assert "notifications/initialized 和 tools/list" in where and "no id" in where


@pytest.mark.parametrize("text", ["{'jsonrpc': '2.0'}", "[info] up", '{"a": 1', "} done {"])
def test_a_log_line_is_no_part_of_a_message(tmp_path, text):
    assert m.mcp_examine(server(tmp_path, f"print({text!r}, flush=True)")).keys() == {"noise"}


def test_finding_is_one_line_that_says_what_whom_and_how(tmp_path):
    *lines, verdict = m.mcp_doctor_text(
        server(tmp_path, PLANTED["name"] + "\n" + PLANTED["modern"])
    )
    assert [line.split(" ")[0] for line in lines] == ["[问题]", "[建议]"]
    assert '"a.b"' in lines[0] and "Claude Desktop" in lines[0] and "\n" not in "".join(lines)
    assert verdict.startswith("1 个问题") and "1 条建议" in verdict


NAMES = st.sampled_from(
    "tools prompts resources name description inputSchema outputSchema annotations readOnlyHint"
    " type properties required enum minimum examples content structuredContent isError capabilities"
    " serverInfo version protocolVersion supportedVersions nextCursor".split(),
)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats()
    | st.sampled_from(["", "x", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)


class Odd(m.Patient):
    """Answers whatever it is told to, without a process."""

    def __init__(self, answers):
        self.answers, self.log, self.written = answers, [], []
        self.about, self.tools, self.name, self.modern = None, [], "", False
        self.trace = print

    def ask(self, method, params=None):
        return {"result": self.answers.get(method.split("/")[0])}

    def write(self, line):
        self.written.append(line)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*"initialize tools prompts server".split()]), ODD))
def test_whatever_a_server_answers_the_doctor_only_finds_faults(answers):
    patient = Odd(answers)
    for stage in (m._opening, m._offers, m._calls, m._probe, m._stateless):
        for key, where in (
            stage(patient) if patient.about is not None or stage is m._opening else ()
        ):
            assert m.FAULTS[key][0].format(where)
    for answer in answers.values():
        line = json.dumps(answer).encode()
        for odd in (line, line[1:], None):
            assert all(key in m.FAULTS for key, _ in m._in_line(odd))


def doctor(*command):
    done = subprocess.run(
        [sys.executable, m.__file__, "--mcp-doctor", *command], capture_output=True, timeout=60
    )
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


def test_cursors_without_end_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(m, "MOST_PAGES", 9)
    body = around("tools/list", "RESULTS[method] = {'tools': [], 'nextCursor': str(time.time())}")
    assert m.mcp_examine(server(tmp_path, body))["cursor"] == ["tools/list"]


def test_one_fault_in_many_places_is_told_shortly(tmp_path):
    lines = list(m.mcp_doctor_text(server(tmp_path, "for n in range(99): print('log', n)")))
    assert len(lines) == m.MOST_PLACES + 2 and "94 处" in lines[-2] and lines[-1].startswith("99 ")


def test_exit_code_is_1_only_when_a_host_breaks(tmp_path):
    assert doctor() == (0, m.SOUND + "\n", "")
    code, out, err = doctor("--", *server(tmp_path, PLANTED["no text"]))
    assert (code, err) == (0, "") and "[建议]" in out and "[问题]" not in out
    code, out, err = doctor("--", *server(tmp_path, PLANTED["noise"]))
    assert (code, err) == (1, "") and "[问题]" in out and "Server started" in out
    code, out, err = doctor("--", "no-such-program")
    assert (code, out) == (1, "") and err.count("\n") == 1 and "no-such-program" in err


def test_findings_hang_and_no_word_is_broken(tmp_path):
    _, out, _ = doctor("--", *server(tmp_path, PLANTED["about"] + "\n" + PLANTED["noise"]))
    first, *more = out.splitlines()
    assert all(line[:1] == "[" or line[:7] == " " * 7 for line in (first, *more[:-1]))
    assert all(m.columns(line) <= 80 for line in (first, *more)) and '"2025-03-26"' in out


def test_only_tools_that_say_they_read_are_called(tmp_path):
    called = "write(b'called') if params['name'] == 'look' else 0"
    body = "TOOL['annotations'] = {}\n" + around("tools/call", called)
    assert m.mcp_examine(server(tmp_path, body)) == {}


REFUSES = "TOOL['inputSchema'] = {'type': 'object', 'required': ['q'], 'properties': {'q': Q}}\n"
FAILS = around("tools/call", "if params['name'] == 'look' and %s: return %s")
REASON = "'no key: set API_KEY'"
IS_ERROR = "send(id=id, result={'isError': True, 'content': [{'type': 'text', 'text': %s}]})"


@pytest.mark.parametrize(
    "q, when, answer, told",
    [
        ({"type": "string"}, "1", IS_ERROR % REASON, True),
        ({"type": "integer"}, "1", IS_ERROR % REASON, True),
        ({"enum": ["a", "b"]}, "1", IS_ERROR % REASON, True),
        (
            {"type": "string"},
            "1",
            f"send(id=id, error={{'code': -32603, 'message': {REASON}}})",
            True,
        ),
        ({"type": "string"}, "1", IS_ERROR % "'no file ' + params['arguments']['q']", False),
        ({"type": "string"}, "params['arguments']['q'] == 'test0'", IS_ERROR % REASON, False),
        ({"type": "integer"}, "params['arguments']['q'] < 2", IS_ERROR % REASON, False),
        ({"enum": ["a", "b"]}, "params['arguments']['q'] == 'a'", IS_ERROR % REASON, False),
        (
            {"type": "string", "description": "A city, e.g. `Rome`"},
            "params['arguments']['q'] != 'Rome'",
            IS_ERROR % REASON,
            False,
        ),
        (
            {"type": "string", "description": '城市，例如 "北京"。'},
            "params['arguments']['q'] != '北京'",
            IS_ERROR % REASON,
            False,
        ),
    ],
)
def test_a_tool_that_fails_with_every_argument_is_advice(tmp_path, q, when, answer, told):
    body = f"Q = {q!r}\n" + REFUSES + FAILS % (when, answer)
    found = m.mcp_examine(server(tmp_path, body))
    assert found.keys() == ({"useless"} if told else set())
    assert all("no key: set API_KEY" in where for where in found.get("useless", ()))


def test_our_own_server_without_its_notes_is_told(tmp_path):
    alone = tmp_path / "w4d3_tools_mcp.py"
    alone.write_bytes(Path(m.__file__).read_bytes())
    found = m.mcp_examine([sys.executable, str(alone), "--mcp-server"])
    assert found.keys() == {"useless"} and len(found["useless"]) == 2
    assert all("笔记" in where for where in found["useless"])


def test_a_server_that_writes_without_end_costs_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(m, "MOST_COUNTED", 50)
    kept = []
    monkeypatch.setattr(m.Patient, "close", lambda self: (kept.append(self), CLOSE(self)))
    found = m.mcp_examine(server(tmp_path, "for n in range(9999): print('log', n, flush=n > 9990)"))
    assert {key: len(places) for key, places in found.items()} == {"noise": 50}
    sizes = [len(value) for value in vars(kept[0]).values() if hasattr(value, "__len__")]
    assert max(sizes) < 200


CLOSE = m.Patient.close


def test_what_a_server_names_stays_on_one_line_of_bounded_length(tmp_path):
    body = "TOOL['name'] = 'a\\n' * 9999\nprint('b' * 9999, flush=True)"
    *lines, _ = m.mcp_doctor_text(server(tmp_path, body))
    assert len(lines) == 3 and all("\n" not in line and len(line) < 500 for line in lines)


@pytest.mark.parametrize("line", ["5", "null", '"text"', "[1]", "{}", "true"])
def test_any_json_in_place_of_a_reply_is_only_a_finding(tmp_path, line):
    found = m.mcp_examine(server(tmp_path, f"def broken(line): print({line!r}, flush=True)"))
    assert found and found.keys() <= {"noise", "no object", "jsonrpc", "wrong lines"}


@pytest.mark.parametrize(
    "log, reason",
    [
        (["npm error code E404", "npm error 404 Not Found", "npm error A complete log of"], "E404"),
        (
            ["  throw err;", "Error: Cannot find module 'x'", "    at x", "Node.js v20"],
            "module 'x'",
        ),
        (["Traceback (most recent call last):", "  x", "ImportError: no y"], "：ImportError: no y"),
        (["starting", "set API_KEY first"], "：set API_KEY first"),
        (["server failed to bind", "bye"], "：server failed to bind"),
    ],
)
def test_a_start_that_fails_shows_what_the_log_says_went_wrong(tmp_path, log, reason):
    body = f"print(*{log!r}, sep='\\n', file=sys.stderr); sys.exit(1)"
    (where,) = m.mcp_examine(server(tmp_path, body))["start"]
    assert where.startswith("它的日志：") and reason in where


def test_a_start_that_is_refused_shows_the_reply(tmp_path):
    body = around("initialize", "fail(id, -32000); return")
    assert "-32000" in m.mcp_examine(server(tmp_path, body))["start"][0]

"""§20 and §21: the MCP demo, a visit to somebody else's server, and registering with hosts."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

import w4d3_tools_mcp as m

STYLE = m.Style()
WEAK_TOOLS = os.path.join(os.path.dirname(__file__), "data", "weak_tools.py")


def run(*arguments):
    done = subprocess.run([sys.executable, m.__file__, *arguments], capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


@pytest.fixture(scope="module")
def trace():
    code, out, _ = run("--mcp-demo", "--json")
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def test_trace_is_the_lecture_session_and_then_the_stateless_one(trace):
    sent = [row["message"]["method"] for row in trace if row["direction"] == "→"]
    work = ["tools/list", "tools/call", "tools/call", "tools/call"]
    assert sent == [
        "initialize",
        "notifications/initialized",
        *work,
        "tools/destroy",
        "server/discover",
        *work,
        "ping",
        "tools/call",
    ]
    assert trace[0]["message"]["params"]["protocolVersion"] == "2025-06-18"
    assert all(
        "resultType" in r["message"]["result"] for r in trace[20:] if "result" in r["message"]
    )


def test_ids_of_a_session_have_no_gap(trace):
    sent = [
        row["message"]["id"] for row in trace if row["direction"] == "→" and "id" in row["message"]
    ]
    assert sent == [1, 2, 3, 4, 5, 6, *range(1, 8)]


def test_trace_shows_both_kinds_of_error(trace):
    replies = [row["message"] for row in trace if row["direction"] == "←"]
    assert [r["error"]["code"] for r in replies if "error" in r] == [-32602, -32601] * 2
    assert sum(r.get("result", {}).get("isError") is True for r in replies) == 2
    assert replies[-1]["result"]["structuredContent"]["GiB"] == 4.0


def test_demo_shows_each_message_with_a_remark_and_ends_with_the_answer(trace):
    code, out, err = run("--mcp-demo")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert sum(line.startswith(("→ ", "← ")) for line in lines) == len(trace)
    assert all(m.columns(line) <= 80 for line in lines)
    for text in (
        "2025-06-18",
        "2026-07-28",
        "cme295-notes",
        "KV Cache 约 4.0 GiB",
        "isError",
        "-32602",
        "-32601",
    ):
        assert text in out


def test_visit_tells_what_another_server_offers():
    code, out, _ = run("--mcp-demo", "--", sys.executable, m.__file__, "--mcp-server")
    assert code == 0
    for text in (
        "server/discover",
        "工具 4 个",
        "资源模板 1 个",
        "提示词 3 个",
        "kv_cache_gib",
        "2026-07-28",
    ):
        assert text in out
    code, out, _ = run("--mcp-demo", "--json", "--", sys.executable, m.__file__, "--mcp-server")
    assert code == 0 and all("direction" in json.loads(line) for line in out.splitlines())


def test_visit_to_nobody_is_one_line_and_exit_code_1():
    code, out, err = run("--mcp-demo", "--", "no-such-program")
    assert code == 1 and "no-such-program" in err and "Traceback" not in err
    code, _, err = run(
        "--mcp-demo", "--", sys.executable, "-c", "import sys; sys.exit('bad start')"
    )
    assert code == 1 and "退出" in err and "bad start" in err


REFUSES = """
import json, sys
for line in sys.stdin:
    reply = {"jsonrpc": "2.0", "id": json.loads(line)["id"], "error": {"code": -1, "message": "no"}}
    print(json.dumps(reply), flush=True)
"""


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("print(input()[:0] + 'last words', flush=True)", "last words"),
        ('print(input()[:0] + \'{"jsonrpc":"2.0","id":1,"result":7}\')', '"result": 7'),
        (REFUSES, "error -1  id=2"),
    ],
)
def test_visit_that_fails_shows_what_was_said_and_has_exit_code_1(body, shown):
    code, out, err = run("--mcp-demo", "--", sys.executable, "-c", body)
    assert code == 1 and shown in out and err.startswith("没有完成")
    assert f"--mcp-doctor -- {sys.executable}" in err


WAITS = """
import json, os, sys, time
message = json.loads(input())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -1, "message": "no"}}))
"""


def test_a_request_is_shown_before_it_is_answered(tmp_path):
    asked = tmp_path / "asked"
    visit = m.mcp_visit([sys.executable, "-c", WAITS, str(asked)], STYLE)
    assert next(item for item in visit if item[0] == "→")[1]["method"] == "server/discover"
    asked.touch()
    direction, message, _ = next(visit)
    assert (direction, message["error"]["code"]) == ("←", -1)
    visit.close()


LISTS = """
import json, sys
tools = [{"name": "tool", "description": "very long " * 30, "inputSchema": {"type": "object"}}]
RESULTS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}},
    "tools/list": {"tools": tools},
}
for message in map(json.loads, sys.stdin):
    if "id" in message:
        result = RESULTS.get(message["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_what_a_server_offers_hangs_under_its_first_line():
    _, out, _ = run("--mcp-demo", "--", sys.executable, "-c", LISTS)
    first, *more = out[out.index("  tool  very") :].splitlines()
    assert first.startswith("  tool  very long") and len(more) > 2
    assert all(line.startswith(("    very", "    long")) for line in more)
    assert all(len(line) <= 80 for line in (first, *more))


def test_visit_to_a_server_that_writes_without_end_comes_to_an_end(monkeypatch):
    """It writes faster than anybody can read; the latest lines of each step are shown."""
    for name in ("seconds", "probe_seconds"):
        monkeypatch.setitem(m.McpClient.__init__.__kwdefaults__, name, 0.3)
    monkeypatch.setattr(m, "MCP_TRACED", 99)
    endless = [sys.executable, "-c", "while True: print('y' * 9, flush=True)"]
    shown = []
    with pytest.raises(m.McpError):
        for item in m.mcp_visit(endless, m.Style(80)):
            shown.append(item)
            assert len(shown) <= 200
            time.sleep(0.001)  # a slow screen


@pytest.mark.parametrize(
    "arguments",
    [
        ("--schema", "--", "x"),
        ("--mcp-config", "emacs"),
        ("--mcp-config", "cursor", "--write"),
        ("--mcp-server", "--tools", "no_such.py"),
        ("--mcp-demo", "--mcp-server"),
    ],
)
def test_wrong_command_line_is_exit_code_2(arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1


COMMAND = [r"C:\Program Files\Python\python.exe", r'C:\课程\w4d3 "x".py', "--mcp-server"]


@pytest.mark.parametrize(
    ("host", "key"), [("claude", "mcpServers"), ("cursor", "mcpServers"), ("vscode", "servers")]
)
def test_json_block_survives_windows_paths(host, key):
    entry = json.loads(m.HOSTS[host].block(COMMAND[0], COMMAND[1:]))[key]["cme295-notes"]
    assert [entry["command"], *entry["args"]] == COMMAND


def test_toml_block_survives_windows_paths():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11")
    entry = tomllib.loads(m.HOSTS["codex"].block(COMMAND[0], COMMAND[1:]))["mcp_servers"][
        "cme295-notes"
    ]
    assert [entry["command"], *entry["args"]] == COMMAND


def test_printed_command_is_absolute_and_starts_a_server():
    _, out, err = run("--mcp-config", "claude", "--notes", ".")
    block = json.loads(out)["mcpServers"]["cme295-notes"]  # `> mcp.json` gives a whole file
    assert "写进这个文件" in err
    assert os.path.isabs(block["command"]) and m.__file__ in block["args"]
    assert os.path.isabs(block["args"][block["args"].index("--notes") + 1])
    with m.StdioServer([block["command"], *block["args"]]) as server:
        assert m.McpClient(server.send).connect().server["name"] == "cme295-notes"


@pytest.mark.parametrize("own", [["--notes", "."], ["--tools", WEAK_TOOLS]])
def test_a_server_of_own_notes_or_tools_does_not_say_they_are_the_course(own):
    for options, said in (([], m.INSTRUCTIONS), (own, m.OWN_INSTRUCTIONS)):
        with m.StdioServer([sys.executable, m.__file__, "--mcp-server", *options]) as server:
            assert m.McpClient(server.send).connect().instructions == said


def said_of_itself(*options):
    """Every text of a server that a model or a person reads before anything is called."""
    with m.StdioServer([sys.executable, m.__file__, "--mcp-server", *options]) as server:
        client = m.McpClient(server.send).connect()
        return json.dumps([client.server, client.request("tools/list")], ensure_ascii=False)


@pytest.mark.parametrize("word", ["讲义", "Week 1", "week1"])
def test_tools_that_read_a_users_notes_do_not_say_they_are_the_course(tmp_path, word):
    (tmp_path / "a.md").write_text("# 甲\n\n乙\n", "utf-8")
    assert word in said_of_itself()
    assert said_of_itself("--notes", m.NOTES_FOLDER) == said_of_itself()
    assert word not in said_of_itself("--notes", str(tmp_path))
    assert "笔记" in said_of_itself("--notes", str(tmp_path))


def started(command, folder, **variables):
    """What a server that a host starts in that folder says of itself and its notes."""
    messages = (
        {"id": 1, "method": "ping"},
        {"id": 2, "method": "resources/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "where", "arguments": {}}},
    )
    done = subprocess.run(
        command,
        input=b"".join(
            json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in messages
        ),
        capture_output=True,
        timeout=30,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **variables},
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    return {m["id"]: m for m in map(json.loads, done.stdout.decode("utf-8").splitlines())}


WHERE = '''
import sys
import w4d3_tools_mcp

def where() -> str:
    """在哪里。"""
    copies = {id(module) for module in sys.modules.values() if hasattr(module, "McpServer")}
    return f"{len(copies)} {w4d3_tools_mcp.__file__} {sys.argv[0]}"
'''


@pytest.mark.parametrize("kept", ["cache", "no cache", "read-only", "renamed"])
def test_printed_command_finds_this_file_and_its_notes_from_any_folder(tmp_path, kept):
    home, elsewhere = tmp_path / "课程 1", tmp_path / "elsewhere"
    for folder in (home / "notes", elsewhere):
        folder.mkdir(parents=True)
    script = home / ("renamed.py" if kept == "renamed" else "w4d3_tools_mcp.py")
    shutil.copy(m.__file__, script)
    (home / "notes" / "one.md").write_text("# 一\n\n甲\n", "utf-8")
    for name in ("w4d3_tools_mcp", "json", "os", "typing", "threading"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('shadow')", "utf-8")
    tools = home / "my_tools.py"
    tools.write_text(WHERE, "utf-8")
    printed = subprocess.run(
        [sys.executable, str(script), "--mcp-config", "claude", "--tools", str(tools)],
        capture_output=True,
        cwd=elsewhere,
    ).stdout.decode("utf-8")
    entry = json.loads(printed)["mcpServers"]["cme295-notes"]
    assert entry["args"][:2] == [str(script), "--mcp-server"]
    if kept == "read-only":
        home.chmod(0o500)
    variables = {"PYTHONDONTWRITEBYTECODE": "1"} if kept == "no cache" else {}
    try:
        replies = started([entry["command"], *entry["args"]], elsewhere, **variables)
    finally:
        home.chmod(0o700)
    assert replies[2]["result"]["resources"][0]["name"] == "one"
    found = replies[3]["result"]["content"][0]["text"]
    assert found == f"1 {script} {script}"


def test_write_keeps_everything_else_and_a_copy(tmp_path):
    path = tmp_path / "Claude" / "claude_desktop_config.json"
    assert len(list(m.write_claude_config(str(path), COMMAND))) == 1  # nothing to copy yet
    first = json.loads(path.read_text("utf-8"))
    old = {
        "theme": "暗",
        "mcpServers": {"other": {"command": "x"}, "cme295-notes": {"command": "old"}},
    }
    path.write_text("\ufeff" + json.dumps(old), encoding="utf-8")
    list(m.write_claude_config(str(path), COMMAND))
    new = json.loads(path.read_text("utf-8"))
    assert new["theme"] == "暗" and list(new["mcpServers"]) == ["other", "cme295-notes"]
    assert new["mcpServers"]["cme295-notes"] == first["mcpServers"]["cme295-notes"]
    assert json.loads((path.parent / (path.name + ".bak")).read_text("utf-8-sig")) == old
    assert list(m.write_claude_config(str(path), COMMAND))[0].startswith("已经登记过了")
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, path.name + ".bak"]


@pytest.mark.parametrize("leads_to", ["a file", "nothing"])
def test_write_keeps_a_link_and_writes_what_it_leads_to(tmp_path, leads_to):
    real, path = tmp_path / "dotfiles" / "claude.json", tmp_path / "claude_desktop_config.json"
    real.parent.mkdir()
    if leads_to == "a file":
        real.write_text('{"theme": "暗"}', encoding="utf-8")
    path.symlink_to(real)
    list(m.write_claude_config(str(path), COMMAND))
    assert path.is_symlink() and "cme295-notes" in real.read_text("utf-8")
    assert (real.parent / "claude.json.bak").exists() == (leads_to == "a file")


NO_JSON = [
    "{broken",
    "[]",
    '"x"',
    '{"mcpServers": []}',
    "// comment\n{}",
    '{"x": NaN}',
    "[" * 10**5,
]


@pytest.mark.parametrize("text", NO_JSON, ids=lambda text: text[:20])
def test_write_refuses_what_it_cannot_keep(tmp_path, text):
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(m.McpError, match='JSON|应该是 {"mcpServers": {…}} 这样的对象'):
        list(m.write_claude_config(str(path), COMMAND))
    assert path.read_text("utf-8") == text and len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_write_keeps_the_mode_of_a_file_that_may_hold_keys(tmp_path):
    path = tmp_path / "claude_desktop_config.json"
    path.write_text('{"mcpServers": {}}', encoding="utf-8")
    path.chmod(0o600)
    list(m.write_claude_config(str(path), COMMAND))
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o600}


def test_write_refuses_a_file_that_is_not_utf_8(tmp_path):
    path = tmp_path / "claude_desktop_config.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(m.McpError, match="没有改动"):
        list(m.write_claude_config(str(path), COMMAND))
    assert path.read_bytes() == b'{"a": "\xff"}'


def test_write_says_in_chinese_why_the_system_refused(tmp_path, monkeypatch, capsys):
    path = tmp_path / "config.json"
    path.mkdir()
    monkeypatch.setattr(m, "claude_config_path", lambda: str(path))
    assert m.main(["--mcp-config", "claude", "--write"]) == 1
    assert capsys.readouterr().err == f"没有完成：{path}：这是文件夹\n"

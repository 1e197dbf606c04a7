"""Official clients, in every mode they have, against our server. `make peers` installs them.

mcp 2.3.0 is also a test dependency, so its rows run wherever the tests run.
"""

import importlib.metadata
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

import w4d3_tools_mcp as m

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPT = ROOT / "w4d3_tools_mcp.py"
PEERS = pathlib.Path(os.environ.get("MCP_PEERS", ROOT / ".peers"))
DRIVERS = HERE / "peers"
SERVER = [sys.executable, str(SCRIPT), "--mcp-server"]
TOOLS = ["calculator", "kv_cache_gib", "search_notes", "read_note"]
SECONDS = 60


def python_of(name):
    """The interpreter of a peer's environment; mcp 2.3.0 may be in our own."""
    for found in (PEERS / name / "bin" / "python", PEERS / name / "Scripts" / "python.exe"):
        if found.exists():
            return str(found)
    if name == "v2":
        try:
            if importlib.metadata.version("mcp").startswith("2."):
                return sys.executable
        except importlib.metadata.PackageNotFoundError:
            pass
    pytest.skip(f"{name} is not installed: run `make peers`")


def node_for(folder):
    if not (PEERS / folder / "node_modules").exists():
        pytest.skip(f"{folder} is not installed: run `make peers`")
    if not shutil.which("node"):
        pytest.skip("no node in PATH")
    return "node"


def run(command):
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
    return done.stdout.decode("utf-8")


PYTHON_CLIENTS = [
    ("v2", "py_v2.py", "auto", "2026-07-28"),
    ("v2", "py_v2.py", "legacy", "2025-11-25"),
    ("v2", "py_v2.py", "2026-07-28", "2026-07-28"),
    ("v1", "py_v1.py", "-", "2025-11-25"),
    ("fm", "py_fastmcp.py", "-", "2026-07-28"),
]
NODE_CLIENTS = [
    ("ts1", "ts_v1.mjs", [], "2025-11-25"),
    ("old104", "ts_v1.mjs", [], "2024-11-05"),
    ("old1115", "ts_v1.mjs", [], "2025-03-26"),
    ("old1133", "ts_v1.mjs", [], "2025-06-18"),
    ("ts2", "ts_v2.mjs", ["default"], "legacy"),
    ("ts2", "ts_v2.mjs", ["auto"], "modern"),
    ("ts2", "ts_v2.mjs", ["pin"], "modern"),
]


def check_session(seen, version):
    assert seen["version"] == version
    assert seen["tools"] == TOOLS
    assert seen["GiB"] == 4.0 and seen["refused"] is True and seen["unknown"] == -32602
    assert seen["resources"] >= 10 and seen["text"] > 100
    assert len(seen["prompts"]) == 3 and seen["prompt"] == 1


@pytest.mark.parametrize(("environment", "driver", "mode", "version"), PYTHON_CLIENTS)
def test_python_client_finds_everything(environment, driver, mode, version):
    seen = run([python_of(environment), str(DRIVERS / driver), mode, *SERVER])
    check_session(json.loads(seen.splitlines()[-1]), version)


@pytest.mark.parametrize(("folder", "driver", "mode", "version"), NODE_CLIENTS)
def test_typescript_client_finds_everything(folder, driver, mode, version):
    node = node_for(folder)
    seen = run([node, str(DRIVERS / driver), str(PEERS / folder), *mode, *SERVER])
    check_session(json.loads(seen.splitlines()[-1]), version)


INSPECTOR = PEERS / "insp" / "node_modules" / ".bin" / "mcp-inspector"


@pytest.mark.parametrize(
    "era", [[], ["--protocol-era", "auto"], ["--protocol-era", "modern"]], ids=str
)
def test_inspector_lists_and_calls(era):
    node_for("insp")
    inspect = [str(INSPECTOR), "--cli", *era, "--format", "json", *SERVER, "--method"]
    listed = json.loads(run([*inspect, "tools/list"]))
    assert TOOLS[0] in json.dumps(listed)
    arguments = ["num_layers=32", "num_kv_heads=8", "head_dim=128", "seq_len=8192", "batch_size=4"]
    called = run([*inspect, "tools/call", "--tool-name", "kv_cache_gib", "--tool-arg", *arguments])
    assert "4294967296" in called


def test_inspector_finds_our_schemas_portable():
    node_for("insp")
    run(
        [str(INSPECTOR), "--cli", "--strict", "--format", "json", *SERVER, "--method", "tools/list"]
    )


def test_fastmcp_command_line_lists_our_tools():
    python = pathlib.Path(python_of("fm"))
    listed = run([str(python.with_name("fastmcp")), "list", "--command", shlex.join(SERVER)])
    assert all(name in listed for name in TOOLS)


# ── Our client and doctor against official servers ──

LOCKED = {"locked", "wrong lines"}
SERVERS = {
    "v2": ("2026-07-28", LOCKED),
    "fm": ("2026-07-28", LOCKED),
    "v1": ("2025-11-25", {"wrong lines"}),
    "ts1": ("2025-11-25", {"$schema", "wrong lines"}),
}


def official_server(name):
    if name.startswith("ts"):
        return [node_for(name), str(DRIVERS / "ts_server.mjs"), str(PEERS / name)]
    return [python_of(name), str(DRIVERS / "py_server.py")]


@pytest.mark.parametrize("name", SERVERS)
def test_our_client_uses_an_official_server(name):
    with m.StdioServer(official_server(name)) as server:
        client = m.McpClient(server.send, restart=server.restart, probe_seconds=20).connect()
        assert client.revision == SERVERS[name][0] and client.server["name"] == "peer"
        tools = client.tools()
        assert tools.names == ["add", "fail"] and "read_only" in tools["add"].labels
        assert tools.call(m.ToolCall("1", "add", {"a": 2, "b": 3})).text == "5"
        assert tools.call(m.ToolCall("2", "add", {"a": "x"})).status == "bad_arguments"
        assert tools.call(m.ToolCall("3", "fail", {})).status == "failed"
        assert client.pages("resources/list", "resources")[0]["uri"] == "test://one"
        read = client.request("resources/read", {"uri": "test://one"})
        assert read["contents"][0]["text"] == "text"
        got = client.request("prompts/get", {"name": "ask", "arguments": {"topic": "KV"}})
        assert got["messages"][0]["content"]["text"] == "KV"


@pytest.mark.parametrize("name", SERVERS)
def test_doctor_knows_what_official_servers_do(name):
    found = m.mcp_examine(official_server(name))
    assert found.keys() == SERVERS[name][1], found

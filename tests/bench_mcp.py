"""The MCP server beside a bare loop of 20 lines and, where it is installed, mcp 2.3.0.

    python tests/bench_mcp.py [ROUNDS]

Each round runs them one after the other; the ratios of medians hold on a busy machine, absolute
times do not. "ours" is started as `--mcp-config` prints it; "cached" as a module, so that its
compiled code is kept, which a script never has.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import w4d3_tools_mcp as m  # noqa: E402

BARE = """
import json, sys
def size(a):
    n = 4 * a["num_layers"] * a["num_kv_heads"] * a["head_dim"] * a["seq_len"] * a["batch_size"]
    return {"bytes": n, "GiB": n / 2**30}
for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "bare"}}
    if method == "tools/call":
        value = size(params["arguments"])
        block = {"type": "text", "text": json.dumps(value)}
        result = {"content": [block], "isError": False, "structuredContent": value}
    reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""
OFFICIAL = """
from mcp.server import MCPServer
app = MCPServer("official")
@app.tool()
def kv_cache_gib(
    num_layers: int, num_kv_heads: int, head_dim: int, seq_len: int, batch_size: int
) -> dict:
    n = 4 * num_layers * num_kv_heads * head_dim * seq_len * batch_size
    return {"bytes": n, "GiB": n / 2**30}
app.run("stdio")
"""
KV = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": m.CLIENT_INFO}
CALLS = 2000
GOALS = ("<= 1.6", ">= 0.40", ">= 0.35", "<= 24 MB", "<= 150 ms")


def line(id, method, params):
    return m.encode(m.request_message(id, method, params))


def measured(command):
    """[ms to the first answer, calls/s in turn, calls/s pipelined, peak MB, ms to end]."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT, bufsize=0
    )
    out = open(process.stdout.fileno(), "rb", closefd=False)  # noqa: SIM115

    def ask(data):
        process.stdin.write(data)
        out.readline()

    ask(line(0, "initialize", HELLO))
    first = time.perf_counter() - begin
    process.stdin.write(m.encode(m.notification_message("notifications/initialized")))
    calls = [
        line(id, "tools/call", {"name": "kv_cache_gib", "arguments": KV})
        for id in range(1, CALLS + 1)
    ]
    begin = time.perf_counter()
    for data in calls:
        ask(data)
    alone = CALLS / (time.perf_counter() - begin)
    begin = time.perf_counter()
    threading.Thread(target=send_all, args=(process.stdin, b"".join(calls))).start()
    for _ in calls:
        out.readline()
    piped = CALLS / (time.perf_counter() - begin)
    status = Path(f"/proc/{process.pid}/status")
    peak = next(int(x.split()[1]) for x in status.open() if x.startswith("VmHWM")) / 1024
    begin = time.perf_counter()
    process.stdin.close()
    process.wait()
    return [first * 1e3, alone, piped, peak, (time.perf_counter() - begin) * 1e3]


def send_all(pipe, data):
    while data:
        data = data[pipe.write(data) :]


def official_python():
    """An interpreter that has mcp 2.3.0, or None."""
    for python in (sys.executable, ROOT / ".peers/v2/bin/python"):
        if Path(python).exists():
            code = "import sys; from mcp.server import MCPServer"
            if not subprocess.run([python, "-c", code], capture_output=True).returncode:
                return str(python)
    return None


def main(rounds):
    with tempfile.TemporaryDirectory() as folder:
        bare, official = Path(folder, "bare.py"), Path(folder, "official.py")
        bare.write_text(BARE, "utf-8")
        official.write_text(OFFICIAL, "utf-8")
        commands = {
            "bare": [sys.executable, str(bare)],
            "ours": [sys.executable, m.__file__, "--mcp-server"],
            "cached": [sys.executable, "-m", "w4d3_tools_mcp", "--mcp-server"],
        }
        if python := official_python():
            commands["mcp 2.3.0"] = [python, str(official)]
        else:
            print("mcp 2.3.0 is not installed: its row is left out")
        for command in commands.values():
            measured(command)  # compiled code and disk cache are warm from here on
        runs = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                runs[name].append(measured(command))
    medians = {name: [*map(statistics.median, zip(*rows))] for name, rows in runs.items()}
    table = [("", "first answer ms", "calls/s in turn", "pipelined", "peak MB", "end ms")]
    for name, values in medians.items():
        shown = [f"{value:.0f} ({value / b:.2f})" for value, b in zip(values, medians["bare"])]
        table.append((name, *shown))
    table.append(("goal of ours", *GOALS))
    print(
        f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; in brackets: times the bare loop"
    )
    print("\n".join(m.table(table, right=range(1, 6))))
    print(json.dumps(medians))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)

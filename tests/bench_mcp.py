"""The MCP server beside a bare loop of thirty lines: start, calls a second, memory, end.

Both are real child processes on real pipes, in turn, in one run; the figures to compare are the
ratios. `cached` is our server started as a module, so that Python keeps its bytecode.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, CALLS = 5, 2000
ARGUMENTS = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192, "batch_size": 4}
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "0"},
}

BARE = """
import json, sys
def kv_cache(a):
    per_token = 2 * a["num_layers"] * a["num_kv_heads"] * a["head_dim"] * 2
    size = per_token * a["seq_len"] * a["batch_size"]
    return {"bytes": size, "GiB": size / 2**30, "per_token_KiB": per_token / 1024}
def answer(message):
    if message["method"] == "initialize":
        return {"protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}}, "serverInfo": {"name": "bare", "version": "0"}}
    value = kv_cache(message["params"]["arguments"])
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
for line in sys.stdin:
    message = json.loads(line)
    reply = {"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}
    sys.stdout.write(json.dumps(reply) + "\\n")
    sys.stdout.flush()
"""

SERVERS = {
    "bare": [sys.executable, "-c", BARE],
    "ours": [sys.executable, str(ROOT / "w4d3_tools_mcp.py"), "--mcp-server"],
    "cached": [sys.executable, "-m", "w4d3_tools_mcp", "--mcp-server"],
}


def line(id, method, params):
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n"


def tool_call(id):
    return line(id, "tools/call", {"name": "kv_cache_gib", "arguments": ARGUMENTS}).encode()


def peak_megabytes(pid):
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return float("nan")
    found = [row.split()[1] for row in status.read_text().splitlines() if row.startswith("VmHWM")]
    return int(found[0]) / 1024


def visit(command):
    """One life of one server: {figure: value}."""
    begin = time.perf_counter()
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    server.stdin.write(line(0, "initialize", HELLO).encode())
    server.stdin.flush()
    assert b'"result"' in server.stdout.readline()
    figures = {"start, ms": (time.perf_counter() - begin) * 1e3}

    begin = time.perf_counter()
    for number in range(1, CALLS):
        server.stdin.write(tool_call(number))
        server.stdin.flush()
        assert b"4294967296" in server.stdout.readline()
    figures["calls one by one, per s"] = CALLS / (time.perf_counter() - begin)

    batch = b"".join(map(tool_call, range(CALLS, 2 * CALLS)))
    begin = time.perf_counter()
    feeder = threading.Thread(target=lambda: (server.stdin.write(batch), server.stdin.flush()))
    feeder.start()
    for _ in range(CALLS):
        assert b"4294967296" in server.stdout.readline()
    figures["calls at once, per s"] = CALLS / (time.perf_counter() - begin)
    feeder.join()

    figures["peak memory, MB"] = peak_megabytes(server.pid)
    begin = time.perf_counter()
    server.stdin.close()
    server.wait()
    figures["end after EOF, ms"] = (time.perf_counter() - begin) * 1e3
    server.stdout.close()
    return figures


def main():
    os.chdir(ROOT)
    for command in SERVERS.values():
        visit(command)  # bytecode and disk cache are warm from here on
    lives = {name: [] for name in SERVERS}
    for _ in range(ROUNDS):
        for name, command in SERVERS.items():
            lives[name].append(visit(command))
    print(f"{'':26}" + "".join(f"{name:>22}" for name in SERVERS))
    for figure in lives["bare"][0]:
        medians = {n: statistics.median(life[figure] for life in lives[n]) for n in SERVERS}
        cells = (f"{m:.1f} (x {m / medians['bare']:.2f})" for m in medians.values())
        print(f"{figure:26}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()

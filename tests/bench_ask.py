"""Overhead of --ask beside the openai package, over the same canned conversation on a local socket.

Run by an interpreter that has `openai` (.peers/vendor/bin/python); prints ratios, needs no network.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import w4d3_tools_mcp as w

PROGRAM = Path(w.__file__)
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "17*23+4?"}]
TOOLS = w.ToolRegistry([w.calculator])


def chunk(finish=None, **delta) -> bytes:
    value = {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(value).encode() + b"\n\n"


ENTRY = {
    "index": 0,
    "id": "aB3dE5fG7",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression":"17*23+4"}'},
}
CALLS = (
    chunk(role="assistant", content="")
    + chunk(tool_calls=[ENTRY])
    + chunk("tool_calls")
    + b"data: [DONE]\n\n"
)
TEXT = b"".join(chunk(content=f"word{i} ") for i in range(40)) + chunk("stop") + b"data: [DONE]\n\n"
LONG = (
    b"".join(chunk(content="显存 KV cache " * 5) for _ in range(5000))
    + chunk("stop")
    + b"data: [DONE]\n\n"
)


def serve(port_pipe) -> None:
    """One connection at a time: a call for a question, text after a result, 1 MB for "long"."""
    listener = socket.create_server(("127.0.0.1", 0))
    port_pipe.send(listener.getsockname()[1])
    while True:
        peer, _ = listener.accept()
        while True:
            data = b""
            while b"\r\n\r\n" not in data:
                if not (piece := peer.recv(65536)):
                    break
                data += piece
            if not data:
                break
            head, _, body = data.partition(b"\r\n\r\n")
            size = next(
                (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ),
                0,
            )
            while len(body) < size:
                body += peer.recv(65536)
            reply = LONG if b'"long"' in body else TEXT if b'"tool"' in body else CALLS
            peer.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
                % len(reply)
                + reply
            )
            if b"connection: close" in head.lower():
                break
        peer.close()


def ours(model) -> None:
    for _ in w.run_tool_loop(model, TOOLS, [dict(m) for m in QUESTION]):
        pass


def theirs(client) -> None:
    messages = [dict(m) for m in QUESTION]
    tools = w.tools_in_format(TOOLS, "openai")
    while True:
        text, calls = "", {}
        for event in client.chat.completions.create(
            model="m", messages=messages, tools=tools, stream=True
        ):
            for choice in event.choices:
                text += choice.delta.content or ""
                for entry in choice.delta.tool_calls or ():
                    slot = calls.setdefault(
                        entry.index, {"id": entry.id, "name": entry.function.name, "arguments": ""}
                    )
                    slot["arguments"] += entry.function.arguments or ""
        if not calls:
            return
        messages.append(
            {
                "role": "assistant",
                "content": text,
                "tool_calls": [
                    {
                        "id": c["id"],
                        "type": "function",
                        "function": {"name": c["name"], "arguments": c["arguments"]},
                    }
                    for c in calls.values()
                ],
            }
        )
        for c in calls.values():
            value = w.calculator(**json.loads(c["arguments"]))
            messages.append({"role": "tool", "tool_call_id": c["id"], "content": str(value)})


def median(work, times: int) -> float:
    work()
    samples = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples)


THEIR_SCRIPT = """
import json, sys
import openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="x")
text = ""
history = [{"role": "tool", "content": "x", "tool_call_id": "c"}]
for event in client.chat.completions.create(model="m", messages=history, stream=True):
    for choice in event.choices:
        text += choice.delta.content or ""
print(text)
"""


def main() -> None:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    import openai

    model, client = (
        w.OpenAICompatLLM(url, w.Settings("m")),
        openai.OpenAI(base_url=url, api_key="x"),
    )
    a, b = median(lambda: ours(model), 60), median(lambda: theirs(client), 60)
    print(
        f"two turns and one call, import excluded: ours {a * 1e3:.2f} ms, "
        f"openai {b * 1e3:.2f} ms, ratio {a / b:.2f}"
    )
    long = [{"role": "user", "content": "long"}]
    a = median(lambda: model.chat(long, TOOLS.schemas()), 5)
    b = median(
        lambda: [
            e.choices[0].delta.content
            for e in client.chat.completions.create(model="m", messages=long, stream=True)
        ],
        5,
    )
    print(
        f"a reply of {len(LONG) / 1e6:.1f} MB in 5,000 chunks: ours {a * 1e3:.0f} ms, "
        f"openai {b * 1e3:.0f} ms, ratio {a / b:.2f}"
    )
    environ = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}

    def run(*command) -> None:
        subprocess.run(command, check=True, capture_output=True, env=environ, cwd=PROGRAM.parent)

    bare = median(lambda: run(sys.executable, "-c", "import json"), 9)
    a = median(
        lambda: run(sys.executable, str(PROGRAM), "--ask", "x", "--base-url", url, "--model", "m"),
        9,
    )
    m = median(
        lambda: run(
            sys.executable,
            "-c",
            "import sys, w4d3_tools_mcp as w; sys.exit(w.main())",
            "--ask",
            "x",
            "--base-url",
            url,
            "--model",
            "m",
        ),
        9,
    )
    b = median(lambda: run(sys.executable, "-c", THEIR_SCRIPT, url), 5)
    print(
        f"whole process: bare interpreter {bare * 1e3:.0f} ms, ours {a * 1e3:.0f} ms "
        f"(compiled {m * 1e3:.0f} ms), openai {b * 1e3:.0f} ms, "
        f"ratio {a / b:.2f} ({m / b:.2f})"
    )
    server.terminate()


if __name__ == "__main__":
    main()

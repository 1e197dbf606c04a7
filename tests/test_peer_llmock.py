"""llmock, an independent fake that grades its client: every fault it scripts, on three APIs.

Installed apart by `make ask-peers` (.peers/llmock); skipped when it is not there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

import w4d3_tools_mcp as w

HERE = Path(__file__).resolve().parent
PLACES = [HERE / ".peers/llmock/bin/llmock", HERE.parent / ".peers/llmock/bin/llmock"]
LLMOCK = next((str(place) for place in PLACES if place.exists()), None)
pytestmark = pytest.mark.skipif(
    not LLMOCK, reason="llmock==0.2.2 is not installed in .peers/llmock"
)

BACKENDS = {
    "openai": (w.OpenAICompatLLM, "/v1"),
    "anthropic": (w.AnthropicLLM, "/anthropic"),
    "gemini": (w.GeminiLLM, "/gemini"),
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 17*23+4? Use the calculator."},
]


@pytest.fixture(scope="module")
def origin():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    server = subprocess.Popen(
        [LLMOCK, "serve", "--port", str(port)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                admin(url, "/_llmock/verdict")
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(10)


def admin(origin: str, path: str, body: object = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(origin + path, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as reply:
        return json.loads(reply.read() or b"{}")


FAULTS = {
    "none": [],
    "429 twice": [{"type": "fail", "status": 429, "retry_after": 0.3, "times": 2}],
    **{
        str(code): [{"type": "fail", "status": code}]
        for code in (400, 401, 403, 404, 408, 409, 422, 500, 502, 503, 504, 529)
    },
    "down": [{"type": "fail", "status": 503, "times": None}],
    "disconnect": [{"type": "stream_fault", "kind": "disconnect", "after_chunks": 2}],
    "truncate": [{"type": "stream_fault", "kind": "truncate", "after_chunks": 2}],
    "malformed": [{"type": "stream_fault", "kind": "malformed", "after_chunks": 2}],
    "stall": [{"type": "stream_fault", "kind": "stall", "after_chunks": 0, "stall_seconds": 2}],
    "slow first token": [{"type": "slow_first_token", "seconds": 0.3}],
    "delay": [{"type": "delay", "seconds": 0.3}],
    "unknown tool": [{"type": "tool_fault", "kind": "unknown_tool"}],
    "malformed arguments": [{"type": "tool_fault", "kind": "malformed_arguments"}],
    "a call that breaks off": [
        {
            "type": "reply",
            "tool_calls": [{"name": "calculator", "arguments": {"expression": "17*23+4"}}],
        },
        {"type": "stream_fault", "kind": "disconnect", "after_chunks": 2},
    ],
}
FAILS = {
    "400",
    "401",
    "403",
    "404",
    "422",
    "down",
    "stall",
}  # what no client can get an answer from


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind, path", BACKENDS.values(), ids=BACKENDS)
def test_llmock_finds_nothing_to_complain_about(origin, kind, path, fault):
    admin(origin, "/_llmock/reset", {})
    if FAULTS[fault]:
        admin(origin, "/_llmock/scenario", {"behaviors": FAULTS[fault]})
    told = []
    model = kind(
        origin + path,
        w.Settings("mock-1"),
        key="anything",
        notice=told.append,
        patience=w.Patience(5, 0.5, 20),
    )
    tools = w.ToolRegistry([w.calculator])
    history = [dict(m) for m in MESSAGES]
    failed, end = "", None
    try:
        for event in w.run_tool_loop(model, tools, history):
            end = event
    except w.BackendError as error:
        failed = str(error)
    verdict = admin(origin, "/_llmock/verdict")
    assert verdict["findings"] == [], (verdict["findings"], told, failed)
    assert bool(failed) == (fault in FAILS), (failed, told)
    if not failed:
        assert end.reason == "answered" and end.text
        assert [m["role"] for m in history].count("tool") >= 1


@pytest.mark.parametrize("kind, path", BACKENDS.values(), ids=BACKENDS)
def test_models_are_listed(origin, kind, path):
    try:
        assert kind(origin + path, key="anything").models()
    except w.BackendError as error:
        assert "404" in str(error)

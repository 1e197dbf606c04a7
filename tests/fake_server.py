"""A strict OpenAI-compatible server on a real socket, for tests.

It plays a script, one entry per chat request, and keeps what it was sent. Before every entry it
checks the request as the strictest real servers do; a request that they would refuse gets HTTP 400
and a line in `complaints`, so a test that forgets to look still fails.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KNOWN_FIELDS = {"model", "messages", "tools", "stream", "stream_options"}
KNOWN_KEYS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "reasoning_content", "reasoning"},
    "tool": {"role", "content", "tool_call_id"},
}


def complaint(body: dict, allowed: frozenset[str] = frozenset()) -> str:
    """Why a strict server refuses this request; "" when it does not."""
    if extra := set(body) - KNOWN_FIELDS - allowed:
        return f"Extra inputs are not permitted: {', '.join(sorted(extra))}"
    if body.get("tools") == []:
        return "[] is too short - 'tools'"
    if "stream_options" in body and not body.get("stream"):
        return "stream_options only with stream"
    waiting: list[str] = []
    seen: set[str] = set()
    for place, message in enumerate(body["messages"]):
        role = message.get("role")
        if role not in KNOWN_KEYS or set(message) - KNOWN_KEYS[role]:
            return f"messages.{place}: bad role or key: {role} {sorted(message)}"
        if not isinstance(message.get("content"), str):
            return f"messages.{place}: invalid message content type: {message.get('content')!r}"
        if role == "system" and place:
            return "System message must be at the beginning"
        if waiting and (role != "tool" or message["tool_call_id"] != waiting.pop(0)):
            return "mismatch between tool calls and tool results"
        if role == "tool" and message["tool_call_id"] not in seen:
            return "tool call result does not follow tool call"
        if role == "user" and place and body["messages"][place - 1]["role"] == "user":
            return "roles must alternate"
        for call in message.get("tool_calls", ()):
            if not call.get("id") or call["id"] in seen:
                return f"tool_calls.id: empty or repeated: {call.get('id')!r}"
            arguments = call["function"]["arguments"]
            if not isinstance(arguments, str) or not isinstance(json.loads(arguments), dict):
                return f"arguments must be JSON text of an object: {arguments!r}"
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call["function"]["name"]):
                return f"bad function name {call['function']['name']!r}"
            seen.add(call["id"])
            waiting.append(call["id"])
    return "tool call without a result" if waiting else ""


# --- what a script is made of ---


class Reply:
    """One HTTP reply: status, headers, the body in pieces. A piece None drops the connection."""

    def __init__(
        self,
        *pieces: bytes | None,
        status: int = 200,
        type: str = "application/json",
        **headers: str,
    ):
        self.pieces, self.status = pieces, status
        self.headers = {
            "Content-Type": type,
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }


def whole(value: object, status: int = 200, **headers: str) -> Reply:
    return Reply(json.dumps(value, ensure_ascii=False).encode(), status=status, **headers)


def error(status: int, message: str, **headers: str) -> Reply:
    return whole({"error": {"message": message}}, status, **headers)


def message(
    text: str | None = None, *calls: dict, finish: str = "", usage: dict | None = None, **extra
) -> dict:
    """A whole chat completion."""
    answer = {
        "role": "assistant",
        "content": text,
        **({"tool_calls": list(calls)} if calls else {}),
        **extra,
    }
    finish = finish or ("tool_calls" if calls else "stop")
    return {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "usage": usage,
        "choices": [{"index": 0, "message": answer, "finish_reason": finish}],
    }


def call(
    arguments: object = '{"expression":"17*23+4"}',
    id: str | None = "aB3dE5fG7",
    name: str = "calculator",
    **extra,
) -> dict:
    """One entry of tool_calls; id None leaves the key out."""
    entry = {"type": "function", "function": {"name": name, "arguments": arguments}, **extra}
    return entry if id is None else {"id": id, **entry}


def delta(finish: str | None = None, **fields) -> dict:
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


def events(*chunks: dict | str, done: bool = True) -> Reply:
    """A stream of server-sent events; a str is sent as it is."""
    lines = [
        c if isinstance(c, str) else f"data: {json.dumps(c, ensure_ascii=False)}\n\n"
        for c in chunks
    ]
    return Reply(
        "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode(), type="text/event-stream"
    )


def says(text: str, **rest) -> Reply:
    return whole(message(text, **rest))


CALLS = whole(message(None, call()))
ANSWERS = says("395")


class FakeServer:
    """Context manager; `url` is the base address, `requests` are (path, headers, body) in order."""

    def __init__(
        self,
        *script,
        models: tuple[str, ...] = ("fake-1",),
        strict: bool = True,
        base: str = "/v1",
        allowed: frozenset[str] = frozenset(),
        get=None,
    ):
        self.script, self.models, self.strict, self.base, self.allowed = (
            list(script),
            models,
            strict,
            base,
            allowed,
        )
        self.requests: list[tuple[str, dict, dict]] = []
        self.complaints: list[str] = []
        self.released = threading.Event()  # a piece that is an Event waits for it
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                fake.send(
                    self,
                    get
                    or whole({"object": "list", "data": [{"id": name} for name in fake.models]}),
                )

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.send(self, fake.answer(self.path, dict(self.headers), body))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        self.url = self.origin + base

    def answer(self, path: str, headers: dict, body: dict) -> Reply:
        self.requests.append((path, headers, body))
        if "messages" in body and self.strict and (why := complaint(body, self.allowed)):
            self.complaints.append(why)
            return error(400, why)
        if not self.script:
            return error(400, "the script has ended")
        entry = self.script.pop(0)
        return entry(body) if callable(entry) else entry

    def send(self, handler, reply: Reply) -> None:
        handler.close_connection = True
        if reply.pieces and reply.pieces[0] is None:
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if not any(
            name.lower() in ("content-length", "transfer-encoding") for name in reply.headers
        ):
            handler.send_header("Connection", "close")
        handler.end_headers()
        for piece in reply.pieces:
            if piece is None:
                return
            if isinstance(piece, threading.Event):
                piece.wait(20)
                continue
            try:
                handler.wfile.write(piece)
                handler.wfile.flush()
            except OSError:
                return

    def bodies(self) -> list[dict]:
        return [body for _, _, body in self.requests]

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        if error[0] is None:
            assert not self.complaints, self.complaints

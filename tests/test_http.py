"""§17 over real sockets: each row is one way in which a real server behaves."""

from __future__ import annotations

import base64
import contextlib
import errno
import gzip
import json
import random
import socket
import ssl
import sys
import threading
import time
import types
import zlib
from pathlib import Path

import pytest
from fake_server import (
    ANSWERS,
    CALLS,
    FakeServer,
    Reply,
    call,
    complaint,
    delta,
    error,
    events,
    message,
    says,
    whole,
)

import w4d3_tools_mcp as w

QUESTION = [
    {"role": "system", "content": "答得短。"},
    {"role": "user", "content": "17*23+4 是多少？"},
]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def calculator_only() -> w.ToolRegistry:
    return w.ToolRegistry([w.calculator, w.search_notes])


@contextlib.contextmanager
def raw_server(talk):
    """The port of a server that says whatever talk(peer, head) sends after the head it got."""

    def serve():
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    head = b""  # a CONNECT comes in pieces
                    while b"\r\n\r\n" not in head and (piece := peer.recv(65536)):
                        head += piece
                    talk(peer, head)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


class Client:
    """A backend with a clock that nobody waits for; keeps what was told and how long it slept."""

    def __init__(
        self,
        server,
        kind=w.OpenAICompatLLM,
        url="",
        model="fake-1",
        key="",
        patience=w.Patience(2, 5, 9),
        **settings,
    ):
        self.told, self.slept, self.pieces = [], [], []
        self.model = kind(
            url or server.url,
            w.Settings(model, **settings),
            key=key,
            patience=patience,
            notice=self.told.append,
            sleep=self.slept.append,
            now=lambda: 1_000_000.0,
        )

    def run(self, tools=None, messages=None, **options):
        """(the last event, the history) of a whole run."""
        messages = [dict(m) for m in messages or QUESTION]
        tools = calculator_only() if tools is None else tools
        end = None
        for event in w.run_tool_loop(
            self.model, tools, messages, on_delta=lambda *pair: self.pieces.append(pair), **options
        ):
            end = event
        return end, messages

    def fails(self, **options) -> str:
        with pytest.raises(w.BackendError) as caught:
            self.run(**options)
        return str(caught.value)


def one_call(reply: Reply, *, strict=True, told: int = 0, expression="17*23+4", answer="395"):
    """A reply that calls the calculator, then an answer: the run must end well, and how it went."""
    with FakeServer(reply, ANSWERS, strict=strict) as server:
        client = Client(server)
        end, history = client.run()
        assert (end.text, end.reason) == (answer, "answered")
        assert len(client.told) == told, client.told
        called = history[2]["tool_calls"]
        assert [c["function"]["name"] for c in called] == ["calculator"]
        assert w.parse_arguments(called[0]["function"]["arguments"]) == {"expression": expression}
        assert history[3]["content"] == str(w.safe_eval(expression))
        return client, server, history


# --- A: arguments ---

DOUBLED = json.dumps('{"expression":"17*23+4"}')
ARGUMENTS = {
    "A1 an object instead of text": {"expression": "17*23+4"},
    "A4 JSON in JSON": DOUBLED,
    "A8 one object in a list": '[{"expression":"17*23+4"}]',
    "A10 the sole wrapper key arguments": '{"arguments":{"expression":"17*23+4"}}',
    "A10 the sole wrapper key input": '{"input":"{\\"expression\\":\\"17*23+4\\"}"}',
    "A13 a fence": '```json\n{"expression":"17*23+4"}\n```',
    "A13 Python spelling": "{'expression': '17*23+4',}",
    "plain": '{"expression":"17*23+4"}',
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_read_and_go_back_as_text_of_an_object_A2_A5_A15(arguments, stream):
    reply = (
        events(delta(tool_calls=[call(arguments, index=0)]), delta("tool_calls"))
        if stream
        else whole(message(None, call(arguments)))
    )
    _, server, _ = one_call(reply)
    sent = server.bodies()[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"expression": "17*23+4"}


@pytest.mark.parametrize("arguments", ["", "  ", None, "{}"])
def test_A3_empty_arguments_go_back_as_an_empty_object(arguments):
    tools = w.ToolRegistry()

    def now() -> str:
        """返回现在的时间。"""
        return "12:00"

    tools.register(now)
    with FakeServer(whole(message(None, call(arguments, name="now"))), ANSWERS) as server:
        _, history = Client(server).run(tools)
        assert history[3]["content"] == "12:00"
        assert server.bodies()[1]["messages"][2]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    "value", ["", "{}", '{"input": "x"}', '{"x": 1}', {}, {"input": 1}, {"x": 1}]
)
def test_A10_a_parameter_that_has_the_name_of_a_wrapper_is_none(value):
    schema = {"type": "object", "properties": {"input": {}, "x": {}}}
    question = w.Question([], [{"name": "run", "description": "x", "parameters": schema}])
    written = json.dumps({"name": "run", "arguments": {"input": value}})
    for turn in (
        w.Turn("", (w.ToolCall("a", "run", json.dumps({"input": value})),)),
        w.Turn(f"<tool_call>{written}</tool_call>"),
    ):
        (called,) = w.sorted_text(turn, question).calls
        assert w.parse_arguments(called.arguments) == {"input": value}


@pytest.mark.parametrize("arguments", ['{"arguments": {}}', '{"input": "{}"}', '{"input": ""}'])
def test_A10_a_wrapper_around_nothing_is_taken_off_too(arguments):
    schema = {"type": "object", "properties": {}}
    question = w.Question([], [{"name": "now", "description": "x", "parameters": schema}])
    turn = w.Turn("", (w.ToolCall("a", "now", arguments),))
    assert w.sorted_text(turn, question).calls[0].arguments == {}


def test_A6_an_object_given_as_text_reaches_the_tool_as_an_object():
    tools = w.ToolRegistry(coerce=True)

    def total(numbers: list[int], extra: dict[str, int], half: bool) -> int:
        """求和。"""
        return sum(numbers) + sum(extra.values()) + half

    tools.register(total)
    text = json.dumps({"numbers": "[1, 2]", "extra": '{"a": 3}', "half": "true"})
    with FakeServer(whole(message(None, call(text, name="total"))), ANSWERS) as server:
        assert Client(server).run(tools)[1][3]["content"] == "7"


def test_A7_merged_calls_become_several():
    merged = '{"expression":"1+1"}{"expression":"2+2"}'
    with FakeServer(whole(message(None, call(merged))), ANSWERS) as server:
        _, history = Client(server).run()
        assert [m["content"] for m in history if m["role"] == "tool"] == ["2", "4"]


@pytest.mark.parametrize("status", [500])
def test_A8_a_call_the_server_cannot_parse_is_asked_again_once(status):
    broken = error(status, "error parsing tool call: raw='{\"a\":1]'")
    with FakeServer(broken, ANSWERS) as server:
        client = Client(server)
        assert client.run()[0].text == "395"
        assert len(client.slept) == 1
    with FakeServer(broken, broken, ANSWERS) as server:
        assert "读不懂的工具调用" in Client(server).fails()


def test_A9_an_entry_without_function_is_skipped():
    reply = message("395", {"id": "", "type": "function"}, finish="tool_calls")
    with FakeServer(whole(reply)) as server:
        assert Client(server).run()[0].text == "395"


@pytest.mark.parametrize("reason", ["length", "max_tokens", "model_length", "MAX_TOKENS"])
def test_A11_every_word_for_the_limit_means_that_the_answer_is_not_whole(reason):
    with FakeServer(whole(message("半句", finish=reason))) as server:
        assert Client(server).run()[0].reason == "length"


@pytest.mark.parametrize(
    "reason",
    ["content_filter", "SAFETY", "refusal", "sensitive", "insufficient_system_resource", "error"],
)
def test_an_answer_that_the_server_broke_off_is_called_incomplete(reason):
    with FakeServer(whole(message("半句", finish=reason))) as server:
        client = Client(server)
        assert client.run()[0].text == "半句" and reason in "".join(client.told)


def test_A11_a_call_cut_off_at_the_limit_is_not_run():
    with FakeServer(
        whole(message(None, call('{"expression":"17'), finish="length")), ANSWERS
    ) as server:
        end, history = Client(server).run()
        assert "没有执行" in history[3]["content"] and end.text == "395"


def test_A12_characters_split_between_reads_arrive_whole():
    body = events(delta(content="显存是"), delta(content="４ GiB"), delta("stop")).pieces[0]
    pieces = [body[i : i + 1] for i in range(len(body))]
    with FakeServer(Reply(*pieces, type="text/event-stream")) as server:
        client = Client(server)
        assert client.run()[0].text == "显存是４ GiB"
        assert "".join(p for k, p in client.pieces if k == "text") == "显存是４ GiB"


def test_A12_a_character_whose_halves_come_in_two_deltas_arrives_whole():
    halves = [delta(content="\ud83d"), delta(content="\ude00 ok"), delta("stop")]
    reply = Reply(
        "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in halves).encode(),
        type="text/event-stream",
    )
    with FakeServer(reply) as server:
        assert Client(server).run()[0].text == "\U0001f600 ok"


def test_A14_doubled_braces_in_a_fence_are_a_call():
    text = '```json\n{{"name":"calculator","arguments":{"expression":"17*23+4"}}}\n```'
    client, _, _ = one_call(says(text), told=1)
    assert "文字" in client.told[0]


# --- B: ids, indexes, names ---

IDS = {
    "B1 no id": [call(id=None)],
    "B5 empty id": [call(id="")],
    "B4 the same id twice": [
        call('{"expression":"1+1"}', id="call_0"),
        call('{"expression":"2+2"}', id="call_0"),
    ],
    "B9 indexes from 1": [
        call('{"expression":"1+1"}', id="a", index=1),
        call('{"expression":"2+2"}', id="b", index=2),
    ],
    "B7 all indexes 0": [
        call('{"expression":"1+1"}', id="a", index=0),
        call('{"expression":"2+2"}', id="b", index=0),
    ],
    "B8 no index": [call('{"expression":"1+1"}', id="a"), call('{"expression":"2+2"}', id="b")],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("entries", IDS.values(), ids=IDS)
def test_ids_and_indexes_are_repaired(entries, stream):
    reply = (
        events(*(delta(tool_calls=[entry]) for entry in entries), delta("tool_calls"))
        if stream
        else whole(message(None, *entries))
    )
    again = whole(message(None, *entries))  # B4: the same ids in the next turn
    with FakeServer(reply, again, ANSWERS) as server:  # strict: it refuses empty and repeated ids
        _, history = Client(server).run()
        results = [m for m in history if m["role"] == "tool"]
        assert len(results) == 2 * len(entries)
        assert len({m["tool_call_id"] for m in results}) == len(results)


def test_B2_B3_the_first_id_that_is_not_empty_counts():
    reply = events(
        delta(tool_calls=[{"index": 0, "function": {"name": "calculator", "arguments": ""}}]),
        delta(
            tool_calls=[
                {
                    "index": 0,
                    "id": "real00001",
                    "function": {"name": "", "arguments": '{"expression":'},
                }
            ]
        ),
        delta(tool_calls=[{"index": 0, "id": "", "function": {"arguments": '"17*23+4"}'}}]),
        delta("tool_calls"),
    )
    _, _, history = one_call(reply)
    assert history[3]["tool_call_id"] == "real00001"


def test_B6_ids_are_rewritten_when_the_server_wants_nine_letters():
    refusal = error(400, "Tool call id was call_abc but must be a-z, A-Z, 0-9, with a length of 9.")
    with FakeServer(whole(message(None, call(id="call_abcdef"))), refusal, ANSWERS) as server:
        client = Client(server)
        assert client.run()[0].text == "395"
        messages = server.bodies()[-1]["messages"]
        assert (
            len(messages[2]["tool_calls"][0]["id"]) == 9
            and messages[2]["tool_calls"][0]["id"].isalnum()
        )
        assert messages[3]["tool_call_id"] == messages[2]["tool_calls"][0]["id"]
        assert len(client.told) == 1


NAMES = {
    "B10 several entries in one delta": [[call('{"expression":"17*23+4"}', index=0)]],
    "B11 the name in every delta": [
        [call('{"expression":', index=0)],
        [call('"17*23+4"}', index=0)],
    ],
    "B12 a leaked channel": [[call(index=0, name="functions.calculator<|channel|>commentary")]],
}


@pytest.mark.parametrize("entries", NAMES.values(), ids=NAMES)
def test_names_are_put_together_once(entries):
    one_call(events(*(delta(tool_calls=group) for group in entries), delta("tool_calls")))


@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "查笔记", "a b/c", "n" * 99])
def test_B13_an_unknown_tool_is_answered_and_named_and_strict_servers_take_its_name(name):
    with FakeServer(whole(message(None, call(name=name))), ANSWERS) as server:
        end, history = Client(server).run()
        assert end.text == "395" and "calculator" in history[3]["content"]
        assert history[2]["tool_calls"][0]["function"]["name"] == name


def test_B14_unknown_keys_of_a_call_go_back_unchanged():
    extra = {"google": {"thought_signature": "c2ln"}}
    _, server, _ = one_call(whole(message(None, call(extra_content=extra))))
    assert server.bodies()[1]["messages"][2]["tool_calls"][0]["extra_content"] == extra


# --- C: the message around the calls ---


def test_C1_calls_count_whatever_the_finish_reason():
    one_call(whole(message(None, call(), finish="stop")))


def test_C2_an_empty_answer_is_asked_again_once_then_fails():
    empty = whole(message("", finish="tool_calls"))
    with FakeServer(empty, ANSWERS) as server:
        assert Client(server).run()[0].text == "395"
    with FakeServer(empty, empty, ANSWERS) as server:
        assert "空的回答" in Client(server).fails()
        assert len(server.requests) == 2


def test_C3_text_beside_calls_stays_in_the_history():
    _, server, _ = one_call(whole(message("我来算。", call())))
    assert server.bodies()[1]["messages"][2]["content"] == "我来算。"


def test_C4_reasoning_is_left_out_for_a_template_that_cannot_have_both():
    first = whole(message("我来算。", call(), reasoning_content="先算"))
    refusal = error(
        500, "Cannot pass both content and thinking in an assistant message with tool calls!"
    )
    with FakeServer(first, refusal, ANSWERS) as server:
        assert Client(server).run()[0].text == "395"
        assert "reasoning_content" in server.bodies()[1]["messages"][2]
        assert "reasoning_content" not in server.bodies()[2]["messages"][2]


def test_C5_C6_C7_content_is_always_there_and_null_when_the_server_wants_that():
    refusal = error(400, "messages: text content blocks must be non-empty")
    with FakeServer(CALLS, refusal, ANSWERS, strict=False) as server:
        assert Client(server).run()[0].text == "395"
        contents = [body["messages"][2]["content"] for body in server.bodies()[1:]]
        assert contents == ["", None]


def test_C8_a_list_of_parts_is_text_and_reasoning():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "想"}]},
        {"type": "text", "text": "395"},
    ]
    with FakeServer(whole(message(parts))) as server:
        turn = Client(server).model.chat(QUESTION, [])
        assert (turn.text, turn.reasoning) == ("395", "想")


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_C9_C10_reasoning_goes_back_under_its_own_name_beside_calls(key):
    _, server, _ = one_call(
        events(
            delta(**{key: "先"}),
            delta(**{key: "算"}),
            delta(tool_calls=[call(index=0)]),
            delta("tool_calls"),
        )
    )
    assert server.bodies()[1]["messages"][2][key] == "先算"


def test_C11_what_precedes_a_lone_closing_tag_is_reasoning():
    with FakeServer(says("先算 17*23</think>395")) as server:
        turn = Client(server).model.chat(QUESTION, [])
        assert (turn.text, turn.reasoning) == ("395", "先算 17*23")


def test_C12_a_call_inside_reasoning_is_not_run():
    thought = '<think>可以写 <tool_call>{"name":"calculator","arguments":{"expression":"1"}}</tool_call></think>395'
    with FakeServer(says(thought)) as server:
        end, history = Client(server).run()
        assert end.text == "395" and len(history) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_C13_a_call_written_as_text_is_run_and_the_user_is_told(stream):
    text = '好。\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "17*23+4"}}\n</tool_call>'
    reply = events(*(delta(content=c) for c in text), delta("stop")) if stream else says(text)
    client, _, _ = one_call(reply, told=1)
    assert "写成了文字" in client.told[0]
    assert "tool_call" not in "".join(piece for _, piece in client.pieces)


def test_C14_a_qwen_coder_call_without_its_opening_tag_is_run():
    one_call(
        says(
            "<function=calculator>\n<parameter=expression>\n17*23+4\n</parameter>\n</function>\n</tool_call>"
        ),
        told=1,
    )


def test_C15_history_is_split_when_a_template_takes_one_call_per_turn():
    both = whole(
        message(None, call('{"expression":"1+1"}', id="a"), call('{"expression":"2+2"}', id="b"))
    )
    refusal = error(500, "This model only supports single tool-calls at once!")
    with FakeServer(both, refusal, ANSWERS) as server:
        assert Client(server).run()[0].text == "395"
        roles = [m["role"] for m in server.bodies()[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_C16_every_call_has_its_result_also_when_refused():
    both = whole(
        message(None, call(id="a"), call(id="b", name="nothing_like_it"), call("[1", id="c"))
    )
    with FakeServer(both, ANSWERS) as server:
        Client(server).run(approve=lambda call: call.id != "a")
        assert [
            m["tool_call_id"] for m in server.bodies()[1]["messages"] if m["role"] == "tool"
        ] == ["a", "b", "c"]


def test_C17_a_complete_call_beside_length_runs():
    one_call(whole(message(None, call(), finish="length")))


def test_C18_tool_choice_none_sends_no_tools():
    with FakeServer(ANSWERS) as server:
        Client(server).run(tool_choice="none")
        assert not {"tools", "tool_choice"} & set(server.bodies()[0])


def test_C19_the_same_call_again_gets_the_old_result_and_the_third_ends_the_run():
    same = [whole(message(None, call(id=f"id{n:07}"))) for n in range(5)]
    with FakeServer(*same) as server:
        end, history = Client(server).run()
        assert end.reason == "same_call" and len(server.requests) == 3
        results = [m["content"] for m in history if m["role"] == "tool"]
        assert results[0] == "395" and results[1].startswith("395\n")


# --- D: streams ---

TEXT = [delta(role="assistant", content=""), delta(content="39"), delta(content="5"), delta("stop")]
LAST = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
STREAMS = {
    "D1 comments": events(": OPENROUTER PROCESSING\n\n", *TEXT[:2], ": ping\n", *TEXT[2:]),
    "D2 comments as data": events("data: : keepalive\n\n", *TEXT),
    "D3 empty events": events("data:\n\n", "data: \n\n", *TEXT),
    "D4 usage without choices": events(*TEXT, LAST),
    "D5 filter first": events({"choices": [], "prompt_filter_results": []}, *TEXT),
    "D9 DONE, no finish reason": events(*TEXT[:-1]),
    "D9 finish reason, no DONE": events(*TEXT, done=False),
    "D11 CRLF, ids, several data lines": Reply(
        "".join(
            "id: 1\r\nevent: message\r\nretry: 10\r\n"
            + "".join(f"data:{line}\r\n" for line in json.dumps(chunk, indent=1).split("\n"))
            + "\r\n"
            for chunk in TEXT
        ).encode()
        + b"data: [DONE]\r\n\r\n",
        type="text/event-stream",
    ),
    "D11 bare CR": Reply(events(*TEXT).pieces[0].replace(b"\n", b"\r"), type="text/event-stream"),
    "D12 JSON although a stream was asked for": says("395"),
    "D12 JSON with the wrong type": Reply(ANSWERS.pieces[0], type="text/event-stream"),
    "D12 NDJSON": Reply(
        b"".join(json.dumps(c).encode() + b"\n" for c in TEXT), type="application/x-ndjson"
    ),
    "D12 a stream with the wrong type": Reply(events(*TEXT).pieces[0], type="application/json"),
    "D12 pretty-printed JSON": Reply(json.dumps(message("395"), indent=2).encode()),
    "D13 reasoning first": events(*(delta(reasoning="想", content="") for _ in range(300)), *TEXT),
    "a byte-order mark": Reply(b"\xef\xbb\xbf" + events(*TEXT).pieces[0], type="text/event-stream"),
    "choices missing, delta null": events({"id": "x"}, {"choices": [{"delta": None}]}, *TEXT),
}


@pytest.mark.parametrize("reply", STREAMS.values(), ids=STREAMS)
def test_a_stream_is_read_by_the_book(reply):
    with FakeServer(reply) as server:
        client = Client(server)
        end, _ = client.run()
        assert end.text == "395" and client.told == [] and client.slept == []


ERRORS_UNDER_200 = {
    "D6 first": [{"error": {"message": "overloaded", "code": 502}, "choices": []}],
    "D6 later": [*TEXT[:2], {"error": {"message": "overloaded", "code": 502}, "choices": []}],
    "D6 inside the choice": [
        *TEXT[:2],
        {
            "choices": [
                {
                    "delta": {},
                    "finish_reason": "error",
                    "error": {"message": "overloaded", "code": 502},
                }
            ]
        },
    ],
    "D7 an error event": [
        "event: error\ndata: "
        + json.dumps({"error": {"message": "overloaded", "status_code": 503}})
        + "\n\n"
    ],
}


@pytest.mark.parametrize("chunks", ERRORS_UNDER_200.values(), ids=ERRORS_UNDER_200)
def test_an_error_inside_a_stream_is_an_error(chunks):
    bad = events(*chunks)
    with FakeServer(bad, ANSWERS) as server:
        client = Client(server)
        assert client.run()[0].text == "395" and len(client.slept) == 1
    with FakeServer(bad, bad, bad, bad) as server:
        assert "overloaded" in Client(server).fails()
        assert len(server.requests) == 3


BROKEN = {  # what comes behind the beginning of an answer; what the user is told
    "D6 an error": (
        [{"error": {"message": "overloaded", "code": 502}, "choices": []}],
        "overloaded",
    ),
    "an error nobody retries": ([{"error": {"message": "no good", "code": 400}}], "no good"),
    "D8 an early end": ([], "没有结束标记"),
    "no JSON": (["data: {\n\n"], "不是 JSON"),
    "silence": (None, "没有动静"),
}


@pytest.mark.parametrize("chunks, told", BROKEN.values(), ids=BROKEN)
def test_what_had_arrived_before_a_stream_broke_is_kept(chunks, told):
    begun = events(delta(content="答案"), delta(content="是 39"), *chunks or [], done=False)
    with FakeServer(*[begun] * 3) as server:
        if chunks is None:
            begun.pieces += (server.released,)
        client = Client(server, patience=w.Patience(2, 0.3, 9))
        with pytest.raises(w.BackendError, match=told) as caught:
            client.run()
        assert "（已收到：答案是 39）" in str(caught.value)
        assert caught.value.turn.text == "答案是 39"
        assert client.pieces[-1] == ("text", "答案是 39")


CUT = {
    "D8 cut in text": [events(*TEXT[:2], done=False)],
    "D8 cut in a call": [events(delta(tool_calls=[call('{"expr', index=0)]), done=False)],
    "cut in an event": [Reply(events(*TEXT).pieces[0][:150], type="text/event-stream")],
    "dropped": [
        Reply(
            events(*TEXT[:2], done=False).pieces[0],
            None,
            type="text/event-stream",
            Content_Length="9999",
        )
    ],
    "chunked and cut": [
        Reply(b"5\r\ndata:", None, type="text/event-stream", Transfer_Encoding="chunked")
    ],
    "no reply at all": [Reply(None)],
    "an event that is no JSON": [events('data: {"choices": [{"del\n\n', *TEXT)],
    "empty": [Reply(b"")],
    "half a document": [Reply(b'{"choices": [')],
}


@pytest.mark.parametrize("script", CUT.values(), ids=CUT)
def test_a_reply_that_breaks_is_asked_for_again_once_and_never_used(script):
    with FakeServer(*script, ANSWERS) as server:
        client = Client(server)
        end, history = client.run()
        assert end.text == "395" and len(client.slept) == 1 and len(history) == 3
    with FakeServer(*script * 3) as server:
        assert "重试后还是这样" in Client(server).fails()
        assert len(server.requests) == 2


def test_D10_reading_stops_at_DONE():
    stay = threading.Event()
    with FakeServer(Reply(events(*TEXT).pieces[0], stay, type="text/event-stream")) as server:
        assert Client(server).run()[0].text == "395"
        stay.set()


# --- E: HTTP, errors, configuration ---


def test_E1_an_error_under_200_is_an_error_and_the_path_is_mended():
    wrong = whole({"error": "Unexpected endpoint or method. (POST /chat/completions)"})
    with FakeServer(wrong, ANSWERS) as server:
        client = Client(server, url=server.origin)
        assert client.run()[0].text == "395"
        assert [path for path, _, _ in server.requests] == [
            "/chat/completions",
            "/v1/chat/completions",
        ]
        assert len(client.told) == 1 and "/v1" in client.told[0]


BODIES = {
    "OpenAI": (
        {"error": {"message": "no good", "type": "x", "param": None, "code": None}},
        "no good",
    ),
    "Ollama": ({"error": "no good"}, "no good"),
    "Mistral, old vLLM": ({"object": "error", "message": "no good"}, "no good"),
    "FastAPI": ({"detail": "no good"}, "no good"),
    "Spring": ({"timestamp": "x", "status": 418, "error": "no good", "path": "/v1"}, "no good"),
    "OAuth": ({"error": "invalid", "error_description": "no good"}, "no good"),
    "Cloudflare": ({"errors": [{"code": 7003, "message": "no good"}], "success": False}, "no good"),
    "Baidu": ({"error_code": 110, "error_msg": "no good"}, "no good"),
    "DashScope": ({"code": "InvalidX", "message": "no good", "request_id": "x"}, "no good"),
    "MiniMax": ({"base_resp": {"status_code": 1004, "status_msg": "no good"}}, "no good"),
    "RFC 9457": ({"type": "about:blank", "title": "no good", "status": 418}, "no good"),
    "OpenRouter, without the provider's words": (
        {"error": {"message": "no good", "metadata": {"headers": {"x": "y"}}}},
        "no good",
    ),
    "unknown keys": ({"oops": "no good"}, "no good"),
    "FastAPI, validation": (
        {"detail": [{"loc": ["body", "x"], "msg": "no good", "type": "t"}]},
        "body.x: no good",
    ),
    "Gemini": ([{"error": {"code": 400, "message": "no good", "status": "INVALID"}}], "no good"),
    "OpenRouter": (
        {"error": {"message": "Provider returned error", "metadata": {"raw": "no good"}}},
        "Provider returned error no good",
    ),
    "a message that is a dict": ({"error": {"message": {"text": "no good"}}}, "no good"),
    "HTML": (b"<html><head><title>502 no good</title></head><body>x</body></html>", "502 no good"),
    "HTML without title": (b"<script>var a = 1;</script><h1>no good</h1>", "no good"),
    "text": (b"no good", "no good"),
    "empty": (b"", "（没有说明）"),
    "JSON null": (b"null", "（没有说明）"),
    "not UTF-8": (b"\xff\xfe no good", "no good"),
    "deep nesting": (b"[" * 5000, "["),
}


NO_ANSWERS = {k: v for k, v in BODIES.items() if isinstance(v[0], dict) and "type" not in v[0]}


@pytest.mark.parametrize("body, words", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_E1_the_same_bodies_under_200_are_errors_in_the_server_s_words(body, words):
    with FakeServer(*[whole({**body, "choices": None})] * 2) as server:
        said = Client(server).fails()
        assert words in said or "没有结束" in said and "oops" in body


@pytest.mark.parametrize(
    "value, status",
    [
        ({"error": {"message": "busy", "code": "503"}}, 503),
        ({"error": {"message": "busy", "code": 429}}, 429),
        ({"error": {"message": "busy", "type": "overloaded_error"}}, 529),
        ({"error": {"message": "busy", "code": 1234}}, 200),
        ({"code": 20012, "message": "busy"}, 200),
    ],
)
def test_an_error_under_200_has_the_status_it_names(value, status):
    with pytest.raises(w.HttpError) as caught:
        w.raise_error_object(value)
    assert (caught.value.status, caught.value.text) == (status, "busy")


def test_text_under_200_is_quoted():
    with FakeServer(*[Reply(b"Ollama is running", type="text/plain")] * 2) as server:
        assert "Ollama is running" in Client(server).fails()


@pytest.mark.parametrize("body, words", BODIES.values(), ids=BODIES)
def test_E2_every_shape_of_error_is_read(body, words):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with FakeServer(Reply(body, status=418)) as server:
        said = Client(server).fails()
        assert words in said and "418" in said and len(said) < 900


@pytest.mark.parametrize(
    "given",
    [
        "{0}",
        "{0}/",
        "{0}/v1/",
        "{0}//v1//chat/completions",
        "{0}/v1/models",
        "{0}/api",
        "{0}/api/chat",
    ],
)
def test_E3_addresses_are_repaired(given):
    def only_v1(body):
        path = server.requests[-1][0]
        return (
            ANSWERS
            if path == "/v1/chat/completions"
            else Reply(b"404 page not found", status=404, type="text/plain")
        )

    with FakeServer(only_v1, only_v1) as server:
        client = Client(server, url=given.format(server.origin))
        assert client.run()[0].text == "395"


def test_E3_a_wrong_path_says_what_was_asked_for():
    with FakeServer(Reply(b"404 page not found", status=404)) as server:
        assert (
            f"{server.origin}/v2/chat/completions"
            in Client(server, url=server.origin + "/v2").fails()
        )


@pytest.mark.parametrize(
    "text, url",
    [
        ("localhost:11434", "http://localhost:11434"),
        (" 'http://0.0.0.0:11434/v1' ", "http://127.0.0.1:11434/v1"),
        ("[::]:8080/v1", "http://[::1]:8080/v1"),
        ("api.openai.com/v1", "https://api.openai.com/v1"),
        ("192.168.1.5", "http://192.168.1.5"),
        ("my-box:8000", "http://my-box:8000"),
        ("https://x.example/openai/v1/chat/completions/", "https://x.example/openai/v1"),
        ("HTTP://LOCALHOST:1234/v1", "http://localhost:1234/v1"),
        ("x.example/v1/chat/completions?api-version=1#a", "https://x.example/v1?api-version=1"),
        ("https://x.example./v1", "https://x.example./v1"),
        ("https://openrouter.ai/api/v1/chat/completions", "https://openrouter.ai/api/v1"),
        ("https://x.example/v1/embeddings", "https://x.example/v1"),
        ("http://127.0.0.1:0/v1", "http://127.0.0.1:0/v1"),
    ],
)
def test_addresses_are_read_as_people_write_them(text, url):
    assert w.repair_base_url(text) == url
    assert w.repair_base_url(url) == url


BASES = """
https://api.openai.com/v1 https://openrouter.ai/api/v1 https://api.deepseek.com
https://dashscope.aliyuncs.com/compatible-mode/v1 https://ark.cn-beijing.volces.com/api/v3
https://open.bigmodel.cn/api/paas/v4 https://api.groq.com/openai/v1 https://router.huggingface.co/v1
https://generativelanguage.googleapis.com/v1beta/openai https://qianfan.baidubce.com/v2
https://gateway.ai.cloudflare.com/v1/ACCOUNT/NAME/openai http://localhost:3000/api
https://name.openai.azure.com/openai/v1 http://localhost:1234/v1 https://api.mistral.ai/v1
"""


@pytest.mark.parametrize("base", BASES.split())
def test_E3_the_documented_addresses_stay_as_they_are(base):
    assert w.repair_base_url(base) == base == w.repair_base_url(base + "/chat/completions")
    assert w.OpenAICompatLLM(base + "/").base_url == base


@pytest.mark.parametrize(
    "base",
    [
        "https://api.anthropic.com",
        "https://api.deepseek.com/anthropic",
        "https://open.bigmodel.cn/api/anthropic",
        "https://dashscope.aliyuncs.com/apps/anthropic",
        "http://localhost:11434",
    ],
)
@pytest.mark.parametrize("pasted", ["", "/", "/v1", "/v1/messages", "/v1/models"])
def test_E3_anthropic_addresses_are_taken_with_and_without_v1(base, pasted):
    assert w.AnthropicLLM(base + pasted).base_url == base


def test_E3_open_webui_is_asked_where_it_answers():
    with FakeServer(ANSWERS) as server:
        client = Client(server, url=server.origin + "/api")
        client.run()
        assert server.requests[0][0] == "/api/chat/completions" and client.told == []


def test_a_certificate_that_is_not_trusted_names_the_variable_for_its_own():
    refused = ssl.SSLCertVerificationError()
    refused.verify_message = "self-signed certificate"
    said = str(w.connection_problem(refused, "https://box.example/v1", ""))
    assert "SSL_CERT_FILE" in said and "self-signed" in said and "box.example" in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://x/v1",
        "http://",
        "http://x:port/",
        "http://x:99999/",
        "http://u:p@x/v1",
        "http://[::1",
        "：//",
        "http://a b/v1",
        "http：//127.0.0.1:8000/v1",
        "https：//api.deepseek.com",
        "http:/127.0.0.1:8000/v1",
        "http//127.0.0.1/v1",
        "http:8000",
        "https://http://box/v1",
    ],
)
def test_addresses_that_mean_nothing_are_refused_as_they_were_given(text):
    with pytest.raises(w.BackendError) as caught:
        w.repair_base_url(text)
    assert "@" in text or f"看不懂地址 {w.show(text)}，" in str(caught.value)


@pytest.mark.parametrize(
    "error, words",
    [
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "网络不通"),
        (TimeoutError("timed out"), "超时"),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), "超时"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (OSError("odd"), "odd"),
    ],
)
def test_what_the_system_says_is_told_in_chinese_where_there_are_words(error, words):
    assert w.os_reason(error) == words
    assert f"：{words}，" in str(w.connection_problem(error, "http://box.example/v1", ""))


@pytest.mark.parametrize(
    "text, url",
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("box:8000/v1/", "http://box:8000/v1"),
        ("box/ollama", "http://box:11434/ollama/v1"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080/v1"),
        (":8080", "http://127.0.0.1:8080/v1"),
        ("http://box:11434/", "http://box:11434/v1"),
        ("box", "http://box:11434/v1"),
        ("http://box:11434/v1", "http://box:11434/v1"),
    ],
)
def test_E6_OLLAMA_HOST_may_be_an_address_to_listen_on(text, url):
    assert w.find_place(w.BACKENDS["openai"], "", "", {"OLLAMA_HOST": text})["base_url"] == url


def test_a_query_in_the_address_goes_with_every_request_and_is_not_shown():
    with FakeServer(ANSWERS, error(400, "bad")) as server:
        client = Client(server, url=server.url + "?api-version=7&k=secret")
        client.run()
        assert server.requests[0][0] == "/v1/chat/completions?api-version=7&k=secret"
        assert "secret" not in client.fails()
    with FakeServer(events(gemini({"text": "395"}), done=False), strict=False) as server:
        Client(server, w.GeminiLLM, url=server.origin + "?k=1", model="g").run()
        assert server.requests[0][0].endswith("?alt=sse&k=1")
    url = "http://127.0.0.1:9/v1?k=secret"
    assert "secret" not in Client(None, url=url).fails()


def test_E5_localhost_is_tried_in_both_families_and_the_error_says_so():
    with FakeServer(ANSWERS) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        assert Client(server, url=url).run()[0].text == "395"
    said = Client(None, url=url).fails()
    assert "::1" in said and "127.0.0.1" in said


def test_E6_what_the_user_names_makes_OLLAMA_HOST_irrelevant():
    for named, environ in [("http://box/v1", {}), ("", {"OPENAI_BASE_URL": "http://box/v1"})]:
        environ = {**environ, "OLLAMA_HOST": "http://["}
        assert w.find_place(w.BACKENDS["openai"], named, "", environ)["base_url"] == "http://box/v1"


def test_E4_no_proxy_is_asked_for_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with FakeServer(ANSWERS) as server:
        assert Client(server).run()[0].text == "395"


def test_E4_a_proxy_is_used_for_other_hosts_and_named_when_it_fails(monkeypatch):
    with FakeServer(ANSWERS) as proxy:  # a plain-HTTP proxy gets the whole address as the path
        monkeypatch.setenv("http_proxy", proxy.origin.replace("//", "//user:secret@"))
        assert Client(None, url="http://far.example/v1").run()[0].text == "395"
        path, headers, _ = proxy.requests[0]
        assert path == "http://far.example/v1/chat/completions"
        assert headers["Host"] == "far.example" and headers["Proxy-Authorization"].startswith(
            "Basic "
        )
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    said = Client(None, url="http://far.example/v1").fails()
    assert "127.0.0.1:9" in said and "NO_PROXY=far.example" in said and "secret" not in said


@pytest.mark.parametrize(
    "proxy", ["socks5://u:secret@127.0.0.1:1080", "http://u:secret@127.0.0.1:port", "http://"]
)
def test_a_proxy_that_cannot_be_used_is_refused_with_a_way_out(monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    said = Client(None, url="http://far.example/v1").fails()
    assert "NO_PROXY=far.example" in said and "secret" not in said


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "words, reply",
    [("407", b"HTTP/1.1 407 Login\r\nContent-Length: 0\r\n\r\n"), ("HTTP", b"garbage\r\n\r\n")],
)
def test_what_a_proxy_answers_instead_is_told(monkeypatch, scheme, words, reply):
    with raw_server(lambda peer, head: peer.sendall(reply)) as port:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{port}")
        said = Client(None, url=f"{scheme}://far.example/v1").fails()
        assert words in said and "代理" in said


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"Retry_After": "2"}, 2.0),
        ({"retry_after_ms": "1500"}, 1.5),
        ({"Retry_After": "Mon, 12 Jan 1970 13:46:45 GMT"}, 5.0),  # now is second 1,000,000
        ({"Retry_After": "-3"}, 0.0),
        ({"Retry_After": "Mon, 12 Jan 1970 13:00:00 GMT"}, 0.0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_E7_the_wait_that_the_server_asks_for_is_kept(headers, seconds, status):
    with FakeServer(error(status, "slow down", **headers), ANSWERS) as server:
        client = Client(server)
        client.run()
        assert client.slept == [seconds]


@pytest.mark.parametrize("header", ["soon", "nan", "inf", "9" * 400, "Mon, 99 Foo 2026"])
def test_E7_a_wait_that_cannot_be_read_becomes_our_own(header):
    with FakeServer(error(429, "slow down", Retry_After=header), ANSWERS) as server:
        client = Client(server)
        client.run()
        assert 0.4 < client.slept[0] < 1


def test_E7_waits_grow_and_tries_end():
    with FakeServer(*[error(502, "bad gateway")] * 9) as server:
        client = Client(server)
        assert "502" in client.fails()
        assert len(client.slept) == 2 and client.slept[1] > 1.3 * client.slept[0]


def test_E7_a_rate_limit_that_advertises_is_still_only_a_rate_limit():
    words = "Rate limit reached. Add a payment method at https://api.example/account/billing."
    with FakeServer(error(429, words), ANSWERS) as server:
        assert Client(server).run()[0].text == "395"


def test_E7_a_wait_beyond_the_cap_is_told_instead():
    with FakeServer(error(429, "slow down", Retry_After="3600")) as server:
        client = Client(server)
        assert "3600 秒" in client.fails() and client.slept == []


@pytest.mark.parametrize(
    "status, words",
    [
        (400, "bad"),
        (401, "bad key"),
        (403, "forbidden"),
        (404, "x"),
        (413, "large"),
        (422, "bad"),
        (429, "insufficient_quota"),
        (402, "余额不足"),
        (429, "You exceeded your current quota, please check your plan and billing details"),
        (400, "Your credit balance is too low to access the API. Please go to Plans & Billing"),
    ],
)
def test_what_cannot_get_better_is_not_sent_again(status, words):
    with FakeServer(error(status, words), ANSWERS) as server:
        client = Client(server)
        assert words in client.fails() and client.slept == [] and len(server.requests) == 1


def test_E8_what_groq_could_not_parse_is_parsed_here():
    refused = whole(
        {
            "error": {
                "message": "Failed to call a function.",
                "code": "tool_use_failed",
                "failed_generation": '<function=calculator>{"expression":"17*23+4"}</function>',
            }
        },
        400,
    )
    one_call(refused)


def test_E8_what_cannot_be_parsed_here_either_is_asked_again_once():
    value = {"message": "Failed to call a function.", "code": "tool_use_failed"}
    refused = whole({"error": {**value, "failed_generation": "<function=calc"}}, 400)
    with FakeServer(refused, ANSWERS) as server:
        assert Client(server).run()[0].text == "395"
    with FakeServer(*[refused] * 3) as server:
        client = Client(server)
        assert "读不懂的工具调用" in client.fails() and len(server.requests) == 2


def test_E9_a_server_that_loads_its_model_is_waited_for():
    loading = whole(
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503
    )
    with FakeServer(*[loading] * 8, ANSWERS) as server:
        client = Client(server)
        assert client.run()[0].text == "395" and sum(client.slept) > 60 and client.told
    with FakeServer(*[loading] * 20) as server:
        assert "Loading model" in Client(server).fails()


CUDA = {"error": {"message": "CUDA out of memory", "code": 1}}
ENDPOINT = {"error": "Unexpected endpoint or method. (POST /v2/chat/completions)"}


@pytest.mark.parametrize(
    "kind, reply, advice, wrong",
    [
        (w.OpenAICompatLLM, events(delta("你"), CUDA), "稍后再试", "--base-url"),
        (w.OpenAICompatLLM, whole(CUDA), "看它的日志", "--base-url"),
        (w.OpenAICompatLLM, whole(ENDPOINT), "请检查 --base-url", "日志"),
        (w.OpenAICompatLLM, error(429, "slow down", Retry_After="0"), "配额", "日志"),
        (w.OpenAICompatLLM, error(500, "boom"), "日志", "配额"),
        (w.OpenAICompatLLM, error(404, "nothing here"), "/v1 结尾", "日志"),
        (w.AnthropicLLM, error(404, "nothing here"), "请检查 --base-url", "/v1 结尾"),
        (w.GeminiLLM, error(404, "nothing here"), "请检查 --base-url", "/v1 结尾"),
    ],
)
def test_the_advice_fits_the_failure(kind, reply, advice, wrong):
    with FakeServer(*[reply] * 4, strict=False, base="") as server:
        said = Client(server, kind, url=server.origin + "/v2").fails()
    assert advice in said and wrong not in said.partition("HTTP")[2]


def test_E10_a_context_that_is_too_small_is_explained_with_both_numbers():
    full = whole(
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5021,
                "n_ctx": 4096,
            }
        },
        400,
    )
    with FakeServer(full) as server:
        said = Client(server).fails()
        assert "5021" in said and "4096" in said and "-c" in said


TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
]


@pytest.mark.parametrize("words", TOO_LONG)
def test_E10_every_server_s_words_for_it_get_the_same_advice(words):
    with FakeServer(error(400, words)) as server:
        said = Client(server, url=server.url).fails()
        assert words[:30] in said and "对话太长" in said and "--max-model-len" in said


LONG = [
    {"role": "system", "content": "规则。" * 50},
    {"role": "user", "content": "显存很重要，请算一算这些数。" * 800},
]


@pytest.mark.parametrize(
    "prompt, output, cut",
    [
        (1200, 5, True),
        (4090, 6, True),
        (2048, 9, True),
        (9000, 5, False),
        (0, 5, False),
        (7000, 5, False),
    ],
)
def test_E11_a_context_that_was_cut_is_noticed(prompt, output, cut):
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    with FakeServer(says("好", usage=usage)) as server:
        client = Client(server)
        client.run(messages=LONG)
        assert bool(client.told) == cut
        if cut:
            assert "OLLAMA_CONTEXT_LENGTH" in client.told[0] and str(prompt) in client.told[0]


def test_E11_an_ordinary_run_gives_no_false_alarm():
    usage = {"prompt_tokens": 61, "completion_tokens": 9}
    with FakeServer(whole(message(None, call(), usage=usage)), says("395", usage=usage)) as server:
        client = Client(server)
        client.run()
        assert client.told == []


NO_TOOLS = {
    "E12 Ollama": "registry.ollama.ai/library/gemma3:4b does not support tools",
    "E13 vLLM": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "E13 llama-server": "tools param requires --jinja flag",
    "OpenRouter": "No endpoints found that support tool use.",
    "Mistral": "Function calling is not enabled for this model",
    "DeepSeek": "deepseek-reasoner does not support Function Calling",
    "old servers": "Unrecognized request argument supplied: tools",
    "strict Pydantic servers": "body.tools: Extra inputs are not permitted",
    "others": "Function calling is not supported with this model",
}


@pytest.mark.parametrize("words", NO_TOOLS.values(), ids=NO_TOOLS)
def test_a_server_without_tools_gets_the_text_protocol(words):
    text = (
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "17*23+4"}}\n</tool_call>'
    )
    with FakeServer(error(400, words), says(text), ANSWERS) as server:
        client = Client(server)
        end, _ = client.run()
        assert end.text == "395"
        assert len(client.told) == 1 and "文字协议" in client.told[0]
        assert ("--enable-auto-tool-choice" in client.told[0]) == ("auto-tool" in words)
        assert ("--jinja" in client.told[0]) == ("jinja" in words)
        second, third = server.bodies()[1:]
        assert "tools" not in second and "calculator" in second["messages"][0]["content"]
        roles = [m["role"] for m in third["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert "<tool_call>" in third["messages"][2]["content"]
        assert "<tool_response>\n395\n</tool_response>" in third["messages"][3]["content"]


def test_E14_E15_E16_E17_E18_E19_E20_the_first_request_is_minimal():
    with FakeServer(CALLS, ANSWERS) as server:  # strict: it refuses every other field
        Client(server).run()
        assert set(server.bodies()[0]) == {"model", "messages", "tools", "stream", "stream_options"}
        assert {m["role"] for m in server.bodies()[0]["messages"]} == {"system", "user"}
    with FakeServer(ANSWERS) as server:
        Client(server, stream=False).run(w.ToolRegistry())
        assert set(server.bodies()[0]) == {"model", "messages"}


def test_E20_a_developer_message_becomes_the_one_system_message():
    history = [
        {"role": "user", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "system", "content": "c"},
    ]
    with FakeServer(ANSWERS) as server:
        Client(server).run(messages=history)
        assert server.bodies()[0]["messages"] == [
            {"role": "system", "content": "b\n\nc"},
            {"role": "user", "content": "a"},
        ]


REFUSALS = {
    "E17 stream_options": (
        422,
        {
            "detail": [
                {
                    "type": "extra_forbidden",
                    "loc": ["body", "stream_options"],
                    "msg": "Extra inputs are not permitted",
                }
            ]
        },
        {},
        "stream_options",
    ),
    "E19 temperature": (
        400,
        {
            "error": {
                "message": "Unsupported value: 'temperature' does not support 0.2 with this model.",
                "param": "temperature",
            }
        },
        {"options": {"temperature": 0.2}},
        "temperature",
    ),
    "E16 parallel_tool_calls": (
        400,
        {"error": "parallel_tool_calls is not supported"},
        {"options": {"parallel_tool_calls": True}},
        "parallel_tool_calls",
    ),
    "E15 tool_choice": (400, {"error": "Invalid tool_choice type: 'object'"}, {}, "tool_choice"),
    "E15 tool choice in words": (
        400,
        {"error": "this tool choice is not supported: tool_choice"},
        {},
        "tool_choice",
    ),
    "a short name": (
        400,
        {"error": {"message": "Unknown parameter: 'n'."}},
        {"options": {"n": 1}},
        "n",
    ),
}


@pytest.mark.parametrize("status, body, settings, field", REFUSALS.values(), ids=REFUSALS)
def test_a_refused_field_is_dropped_once_and_named(status, body, settings, field):
    with FakeServer(whole(body, status), CALLS, ANSWERS, strict=False) as server:
        client = Client(server, **settings)
        choice = (
            {"type": "function", "function": {"name": "calculator"}}
            if field == "tool_choice"
            else "auto"
        )
        assert client.run(tool_choice=choice)[0].text == "395"
        assert [field in sent for sent in server.bodies()] == [True, False, False]
        assert client.told == [f"服务器不接受 {field}，已去掉后重发。"]


def test_E17_a_server_that_refuses_the_same_again_is_not_asked_for_ever():
    refusal = error(400, "messages, model, tools, stream and stream_options are all wrong")
    with FakeServer(*[refusal] * 20) as server:
        Client(server).fails()
        assert len(server.requests) == 3


def test_E18_max_tokens_becomes_max_completion_tokens():
    refusal = error(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    )
    with FakeServer(
        refusal, ANSWERS, allowed=frozenset({"max_tokens", "max_completion_tokens"})
    ) as server:
        assert Client(server, max_tokens=50).run()[0].text == "395"
        assert (
            server.bodies()[1]["max_completion_tokens"] == 50
            and "max_tokens" not in server.bodies()[1]
        )


@pytest.mark.parametrize(
    "words",
    [
        "Streaming is not supported with tools",
        "tools are not supported when stream is set: stream unsupported",
        "this model does not support streaming",
    ],
)
def test_E17_a_server_that_cannot_stream_is_asked_for_the_whole(words):
    with FakeServer(error(400, words), CALLS, ANSWERS) as server:
        client = Client(server)
        assert client.run()[0].text == "395" and "一次收完" in client.told[0]
        assert [
            set(body) & {"tools", "stream", "stream_options"} for body in server.bodies()[1:]
        ] == [{"tools"}] * 2


def test_E17_options_may_switch_streaming_off():
    with FakeServer(ANSWERS) as server:
        Client(server, options={"stream": False}).run()
        assert server.bodies()[0]["stream"] is False and "stream_options" not in server.bodies()[0]


def test_C15_a_template_without_a_system_role_gets_it_in_the_first_user_message():
    with FakeServer(error(500, "System role not supported"), CALLS, ANSWERS) as server:
        assert Client(server).run()[0].text == "395"
        second, third = server.bodies()[1:]
        assert [m["role"] for m in second["messages"]] == ["user"]
        assert second["messages"][0]["content"] == "答得短。\n\n17*23+4 是多少？"
        assert [m["role"] for m in third["messages"]] == ["user", "assistant", "tool"]


def test_E22_the_schemas_sent_are_plain():
    plain = {"type", "properties", "required", "additionalProperties"}
    plain |= {"description", "default", "enum", "items", "minimum", "maximum"}
    with FakeServer(ANSWERS) as server:
        Client(server).run(w.built_in_tools())
        for tool in server.bodies()[0]["tools"]:
            parameters = tool["function"]["parameters"]
            assert set(parameters) <= plain and len(parameters["properties"]) < 48
            assert all(set(schema) <= plain for schema in parameters["properties"].values())


USER, ASSISTANT = {"role": "user", "content": "x"}, {"role": "assistant", "content": ""}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "x"}
REFUSED = {
    "unknown field": {"messages": [USER], "strict": True},
    "no tools": {"messages": [USER], "tools": []},
    "stream options": {"messages": [USER], "stream_options": {}},
    "role": {"messages": [{"role": "robot", "content": "x"}]},
    "null content": {"messages": [{"role": "user", "content": None}]},
    "late system": {"messages": [USER, {"role": "system", "content": "x"}]},
    "two users": {"messages": [USER, USER]},
    "empty id": {"messages": [{**ASSISTANT, "tool_calls": [call(id="")]}]},
    "repeated id": {"messages": [{**ASSISTANT, "tool_calls": [call(id="a"), call(id="a")]}]},
    "arguments no object": {"messages": [{**ASSISTANT, "tool_calls": [call("[]")]}]},
    "no result": {"messages": [USER, {**ASSISTANT, "tool_calls": [call(id="a")]}]},
    "result without a call": {"messages": [USER, RESULT]},
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_E28_the_fake_of_these_tests_is_strict(body):
    assert complaint({"model": "m", **body})


def test_E21_the_names_sent_are_legal_everywhere():
    with FakeServer(ANSWERS) as server:
        Client(server).run(w.built_in_tools())
        for tool in server.bodies()[0]["tools"]:
            assert w.TOOL_NAME.fullmatch(tool["function"]["name"])


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    "encoding, pack",
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", _raw_deflate),
        ("GZIP", gzip.compress),
    ],
)
@pytest.mark.parametrize(
    "body", [ANSWERS.pieces[0], events(*TEXT).pieces[0]], ids=["JSON", "stream"]
)
def test_E23_compressed_replies_are_read(encoding, pack, body):
    packed = pack(body)
    with FakeServer(Reply(packed[:20], packed[20:], Content_Encoding=encoding)) as server:
        assert Client(server).run()[0].text == "395"
        assert server.requests[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("charset", ["ISO-8859-1", "GBK", "utf8mb4"])
def test_bodies_are_UTF_8_whatever_their_header_says(charset, stream):
    kind = f"application/json; charset={charset}"
    body = (events(delta(content="答案"), delta("stop")) if stream else says("答案")).pieces[0]
    with FakeServer(Reply(body[:31], body[31:], type=kind)) as server:
        assert Client(server).run()[0].text == "答案"
    with FakeServer(Reply("没有权限".encode(), status=418, type=kind)) as server:
        assert "没有权限" in Client(server).fails()


def test_a_body_that_is_not_utf_8_is_not_lost():
    body = json.dumps(message("b\u00e9b\u00e9 395"), ensure_ascii=False).encode("latin-1")
    with FakeServer(Reply(body)) as server:
        assert Client(server).run()[0].text == "b\ufffdb\ufffd 395"


def test_E23_broken_and_unknown_compression_is_an_error():
    with FakeServer(*[Reply(b"nonsense", Content_Encoding="gzip")] * 2) as server:
        assert "压缩" in Client(server).fails()
    with FakeServer(Reply(b"nonsense", Content_Encoding="br")) as server:
        assert "br" in Client(server).fails()


def test_E23_a_bomb_is_stopped():
    with FakeServer(
        Reply(gzip.compress(b" " * (w.LONGEST_REPLY + 10)), Content_Encoding="gzip")
    ) as server:
        assert "MiB" in Client(server).fails()


@pytest.mark.parametrize(
    "words",
    [
        "model 'fake-2' not found",
        "The model `fake-2` does not exist or you do not have access to it.",
    ],
)
@pytest.mark.parametrize("status", [404, 400])
def test_E24_a_wrong_model_gets_the_list_and_the_closest_name(words, status):
    with FakeServer(error(status, words), models=("llama3.2:3b", "fake-1")) as server:
        said = Client(server, url=server.origin, model="fake-2").fails()
        assert "是不是想用 fake-1" in said and "llama3.2:3b" in said


def test_E24_a_server_that_says_the_same_about_its_list_ends_it():
    with FakeServer(error(400, "模型不存在"), get=error(400, "模型不存在")) as server:
        assert "--model" in Client(server).fails()


def test_E25_a_key_is_sent_as_bearer_and_never_shown():
    echo = error(401, "Incorrect API key provided: sk-secret-123456. See your account")
    with FakeServer(echo) as server:
        said = Client(server, key="sk-secret-123456").fails()
        assert server.requests[0][1]["Authorization"] == "Bearer sk-secret-123456"
        assert "sk-secret" not in said and "--key" in said
    with FakeServer(ANSWERS) as server:
        Client(server).run()
        assert "Authorization" not in server.requests[0][1]


KEYS = {  # (backend, --base-url, environment) → the key that is sent
    "nothing named: Ollama": ("openai", "", {"OPENAI_API_KEY": "k"}, ""),
    "named together": (
        "openai",
        "",
        {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://box/v1"},
        "k",
    ),
    "the same host on the command line": (
        "openai",
        "http://box/v1/",
        {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://box/v1"},
        "k",
    ),
    "another host on the command line": (
        "openai",
        "http://evil/v1",
        {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://box/v1"},
        "",
    ),
    "another port": (
        "openai",
        "http://box:81/v1",
        {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://box/v1"},
        "",
    ),
    "only on the command line": ("openai", "http://box/v1", {"OPENAI_API_KEY": "k"}, ""),
    "OLLAMA_HOST": ("openai", "", {"OPENAI_API_KEY": "k", "OLLAMA_HOST": "box"}, ""),
    "its home": ("openai", "https://api.openai.com/v1", {"OPENAI_API_KEY": "k"}, "k"),
    "its home without encryption": (
        "openai",
        "http://api.openai.com/v1",
        {"OPENAI_API_KEY": "k"},
        "",
    ),
    "a name that only looks like home": (
        "openai",
        "https://api.openai.com.evil.example/v1",
        {"OPENAI_API_KEY": "k"},
        "",
    ),
    "DeepSeek's own": (
        "openai",
        "https://api.deepseek.com",
        {"OPENAI_API_KEY": "k", "DEEPSEEK_API_KEY": "d"},
        "d",
    ),
    "not OpenAI's to DeepSeek": ("openai", "https://api.deepseek.com", {"OPENAI_API_KEY": "k"}, ""),
    "Anthropic": ("anthropic", "", {"ANTHROPIC_API_KEY": "k"}, "k"),
    "Anthropic relay": (
        "anthropic",
        "",
        {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "http://relay"},
        "Bearer t",
    ),
    "Gemini": ("gemini", "", {"GEMINI_API_KEY": "k"}, "k"),
    "Gemini, Google's name": ("gemini", "", {"GOOGLE_API_KEY": "k"}, "k"),
}


@pytest.mark.parametrize("backend, url, environ, key", KEYS.values(), ids=KEYS)
def test_E25_a_key_from_the_environment_goes_only_where_it_belongs(backend, url, environ, key):
    place = w.find_place(w.BACKENDS[backend], url, "", environ)
    assert place["key"] == key
    if not key and "OPENAI_API_KEY" in environ:
        assert "OPENAI_API_KEY" in place["key_hint"]
    given = w.find_place(w.BACKENDS[backend], url, "given", environ)
    assert given["key"] == "given" and "--key 给的密钥不对" in given["key_hint"]


def test_E26_silence_ends():
    stay = threading.Event()
    with FakeServer(Reply(b"data: ", stay, type="text/event-stream")) as server:
        assert "没有动静" in Client(server, patience=w.Patience(1, 0.2, 9)).fails()
        stay.set()


@pytest.mark.parametrize(
    "words", ["The model produced output that does not match the expected peg-native format"]
)
def test_E27_an_unreadable_call_is_not_called_a_dead_server(words):
    with FakeServer(*[error(500, words)] * 3) as server:
        client = Client(server)
        assert "读不懂的工具调用" in client.fails() and len(client.slept) == 1


def test_redirects_are_told_not_followed():
    with (
        FakeServer(ANSWERS) as other,
        FakeServer(Reply(b"", status=308, Location=other.url)) as server,
    ):
        said = Client(server, key="k").fails()
        assert other.url in said and other.requests == []


@pytest.mark.parametrize(
    "port, words",
    [(11434, "ollama serve"), (8000, "vllm serve"), (8080, "llama-server -m"), (1, "Ollama")],
)
def test_nothing_listening_says_what_to_start(port, words):
    error_ = ConnectionRefusedError(111, "Connection refused")
    said = str(w.connection_problem(error_, f"http://127.0.0.1:{port}/v1", ""))
    assert words in said and f"{port}" in said
    if port == 1:
        assert {"ollama serve", "vllm serve", "llama-server -m"} <= {
            s for s in ("ollama serve", "vllm serve", "llama-server -m") if s in said
        }


def test_nothing_listening_over_a_real_socket():
    with FakeServer() as server:
        url = server.url
    client = Client(None, url=url)
    assert "没有程序在监听" in client.fails() and client.slept == []


def test_a_host_that_does_not_exist_and_a_server_that_is_no_http():
    assert "找不到主机" in Client(None, url="http://no-such-host.invalid/v1").fails()
    with raw_server(lambda peer, head: peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as port:
        assert "不是 HTTP" in Client(None, url=f"http://127.0.0.1:{port}/v1").fails()
    for host in ("数" * 60 + ".invalid", "a..b", ".b", "a" * 64 + ".b"):
        assert "找不到主机" in Client(None, url=f"http://{host}/v1").fails()


def trickle(peer, head: bytes) -> None:
    """A byte of a line that never ends, every now and then."""
    peer.sendall(head)
    with contextlib.suppress(OSError):
        for _ in range(500):
            peer.sendall(b"x")
            time.sleep(0.02)


STARTS = {
    "the status line": b"HTTP/1.1 ",
    "a header": b"HTTP/1.1 200 OK\r\nX: ",
    "the size of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    "the body": b"HTTP/1.1 200 OK\r\n\r\ndata: ",
    "an error": b"HTTP/1.1 400 Bad\r\n\r\n",
}


@pytest.mark.parametrize("head", STARTS.values(), ids=STARTS)
def test_E26_nothing_that_trickles_outlasts_the_patience(head):
    with raw_server(lambda peer, _: trickle(peer, head)) as port:
        client = Client(None, url=f"http://127.0.0.1:{port}/v1", patience=w.Patience(2, 9, 0.3))
        assert "0.3 秒还没有答完" in client.fails() and client.slept == []


HEADS = {
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200,
    "a header without end": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 7_000_000,
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_head_without_end_is_refused(head):
    with raw_server(lambda peer, head: peer.sendall(head)) as port:
        assert "不是 HTTP" in Client(None, url=f"http://127.0.0.1:{port}/v1").fails()


BODY = ANSWERS.pieces[0]
FRAMED = {
    "no length: to the end": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "a length, and more than that": b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH:%d\r\n\r\n%s<html>"
    % (len(BODY), BODY),
    "chunks with extensions and a trailer": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n%x;a=b\r\n%s\r\n%X\r\n%s\r\n"
        b"0\r\nX: y\r\n\r\n" % (30, BODY[:30], len(BODY) - 30, BODY[30:])
    ),
    "100 Continue before it": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + BODY,
    "no reason, bare line ends": b"HTTP/1.0 200\nX-Y:z\n\n" + BODY,
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n" + BODY,
    "an odd header": b"HTTP/1.1 200 OK\r\nno colon\r\n: x\r\nY: \xff\r\n\r\n" + BODY,
}


@pytest.mark.parametrize("reply", FRAMED.values(), ids=FRAMED)
def test_a_reply_is_read_however_it_is_framed(reply):
    with raw_server(lambda peer, head: peer.sendall(reply)) as port:
        assert Client(None, url=f"http://127.0.0.1:{port}/v1").run()[0].text == "395"


BROKEN = {
    "a chunk without size": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunks without end": b"Transfer-Encoding: chunked\r\n\r\n5\r\ndata:",
    "less than the length": b"Content-Length: 9999\r\n\r\ndata: x",
    "a head that ends": b"X: y",
}


@pytest.mark.parametrize("rest", BROKEN.values(), ids=BROKEN)
def test_a_reply_whose_frame_is_broken_is_an_error(rest):
    with raw_server(lambda peer, head: peer.sendall(b"HTTP/1.1 200 OK\r\n" + rest)) as port:
        client = Client(None, url=f"http://127.0.0.1:{port}/v1")
        assert "重试后还是这样" in client.fails() and len(client.slept) == 1


def mangled(reply: bytes, choice: random.Random) -> bytes:
    """The reply with up to six places changed, removed or filled with something else."""
    reply = bytearray(reply)
    for _ in range(choice.randint(0, 6)):
        place = choice.randrange(len(reply) or 1)
        odd = choice.choice(
            [b"", b"\r\n", b"\n", b" ", b"-", b"9" * 30, b"\0", b"nan", b"\xff", b":"]
        )
        reply[place : place + choice.randint(0, 8)] = odd
    return bytes(reply)


def test_no_bytes_of_a_server_raise_anything_but_a_sentence_for_the_user():
    choice, seeds = random.Random(5), [*FRAMED.values(), *HEADS.values(), *STARTS.values()]
    replies = [mangled(choice.choice(seeds)[:999], choice) for _ in range(300)]
    with raw_server(lambda peer, head: peer.sendall(replies[-1])) as port:
        while replies:
            with contextlib.suppress(w.BackendError):
                Client(None, url=f"http://127.0.0.1:{port}/v1").run()
            replies.pop()


CERTIFICATE = Path(__file__).parent / "data/localhost.pem"


@pytest.mark.parametrize("trusted", [True, False])
def test_https_is_spoken_through_a_proxy_and_only_with_a_certificate(monkeypatch, trusted):
    def proxy(peer, head):
        heads.append(head)
        peer.sendall(b"HTTP/1.1 200 Connected\r\nX: y\r\n\r\n")
        with context.wrap_socket(peer, server_side=True) as inside:
            while not inside.recv(65536).endswith(b"}"):  # to close before would reset it
                pass
            inside.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    heads = []
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with raw_server(proxy) as port:
        monkeypatch.setenv("https_proxy", f"http://me:p%40ss@127.0.0.1:{port}")
        client = Client(None, url="https://far.example/v1")
        if trusted:
            assert client.run()[0].text == "395"
            assert heads[0].startswith(b"CONNECT far.example:443 HTTP/1.")
            assert base64.b64encode(b"me:p@ss") in heads[0]
        else:
            assert "证书不可信" in client.fails()


def test_https_on_a_plain_port_is_explained():
    with FakeServer() as server:
        assert "https" in Client(server, url=server.url.replace("http:", "https:")).fails()


PAGES = {
    "with a title": b"<!doctype html><title>Open WebUI</title>",
    "after blanks": b"\r\n\xef\xbb\xbf <html><body>Open WebUI</body></html>",
    "a comment first": b"<!-- made by x --><html><title>Open WebUI</title></html>",
}


@pytest.mark.parametrize("kind", ["OpenAICompatLLM", "AnthropicLLM", "GeminiLLM"])
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_web_page_instead_of_an_api_is_called_that_and_is_no_404(page, kind):
    page = Reply(page, type="text/html")
    with FakeServer(page, strict=False, get=page) as server:
        client = Client(server, getattr(w, kind))
        said = client.fails()
        assert "Open WebUI" in said and "网页" in said and "--base-url" in said
        assert "HTTP 404" not in said and server.requests[0][0] in said and client.slept == []
        with pytest.raises(w.BackendError, match="网页"):
            client.model.models()


def test_a_web_page_at_a_bare_address_is_asked_again_below_v1():
    page = Reply(b"<!doctype html><title>Open WebUI</title>", type="text/html")
    with FakeServer(page, ANSWERS) as server:
        client = Client(server, url=server.origin)
        assert client.run()[0].text == "395" and "/v1" in client.told[0]


HOSTILE = [
    b"[]",
    b"{}",
    b"null",
    b"3",
    b'"x"',
    b'{"choices": 3}',
    b'{"choices": [null]}',
    b'{"choices": [{"message": 3}]}',
    b'{"choices": [{"message": {"content": 3, "tool_calls": "x"}}]}',
    b'{"choices": [{"delta": {"tool_calls": [3, null, {"function": 4}]}}]}',
    b'{"choices": [{"message": {"content": null, "tool_calls": [{"function": {"name": 3, "arguments": [1]}}]}}]}',
    b'{"usage": "x", "choices": [{"message": {"content": {"a": 1}}}]}',
    b'{"error": 3}',
    b'{"error": []}',
    b'{"error": {"message": null}}',
    b'{"usage": {"prompt_tokens": "many", "completion_tokens": null}, "choices": []}',
    b"[" * 100000,
    b'{"a":' * 100000,
    b"\x00\xff" * 50,
    b"data: 3\n\n",
    b"data: null\n\n",
    b"data: []\n\n",
    b"data: [[]]\n\ndata: [DONE]\n\n",
    b"data" * 1000,
    b'[{"error": null}]',
    b'{"choices": [{"message": {"content": "\\ud800"}, "finish_reason": {"a": 1}}]}',
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("kind", ["OpenAICompatLLM", "AnthropicLLM", "GeminiLLM"])
def test_no_reply_raises_anything_but_a_sentence_for_the_user(body, kind):
    with FakeServer(*[Reply(body)] * 4, strict=False) as server:
        client = Client(server, getattr(w, kind))
        try:
            client.run()
        except w.BackendError as error_:
            assert str(error_)


def test_a_long_stream_is_read_in_linear_time_and_whole():
    text = "显存 KV cache " * 20
    chunks = [delta(content=text)] * 4000
    with FakeServer(events(*chunks, delta("stop"))) as server:
        assert Client(server, patience=w.Patience(2, 30, 60)).run()[0].text == text * 4000


# --- Anthropic and Gemini ---


def anthropic_events(*items: dict) -> Reply:
    return Reply(
        "".join(f"event: {i['type']}\ndata: {json.dumps(i)}\n\n" for i in items).encode(),
        type="text/event-stream",
    )


THINKING = {"type": "thinking", "thinking": "先算", "signature": "c2ln"}
USES = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "calculator",
    "input": {"expression": "17*23+4"},
}


def anthropic_message(*blocks: dict, stop: str = "end_turn") -> Reply:
    return whole(
        {
            "type": "message",
            "role": "assistant",
            "content": list(blocks),
            "stop_reason": stop,
            "usage": {"input_tokens": 9, "output_tokens": 2},
        }
    )


STREAMED = anthropic_events(
    {
        "type": "message_start",
        "message": {
            "id": "m",
            "role": "assistant",
            "content": [],
            "usage": {"input_tokens": 1, "cache_read_input_tokens": 400},
        },
    },
    {"type": "ping"},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "先算"},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "c2ln"},
    },
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "calculator"},
    },
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "input_json_delta", "partial_json": ""},
    },
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "input_json_delta", "partial_json": '{"expression": "17*'},
    },
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "input_json_delta", "partial_json": '23+4"}'},
    },
    {"type": "content_block_stop", "index": 1},
    {"type": "new_kind_of_event"},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}},
    {"type": "message_stop"},
)


@pytest.mark.parametrize(
    "first", [STREAMED, anthropic_message(THINKING, USES, stop="tool_use")], ids=["stream", "whole"]
)
def test_anthropic_blocks_go_back_unchanged_with_all_results_in_one_user_message(first):
    with FakeServer(
        first, anthropic_message({"type": "text", "text": "395"}), strict=False
    ) as server:
        client = Client(server, w.AnthropicLLM, url=server.origin + "/v1", key="k")
        end, _ = client.run()
        assert end.text == "395"
        path, headers, body = server.requests[1]
        assert (
            path == "/v1/messages"
            and headers["X-Api-Key" if "X-Api-Key" in headers else "x-api-key"] == "k"
        )
        assert headers["anthropic-version"] == "2023-06-01" and "Authorization" not in headers
        assert body["system"] == "答得短。" and body["max_tokens"] > 0
        assert body["messages"][1] == {"role": "assistant", "content": [THINKING, USES]}
        assert body["messages"][2] == {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "395"}],
        }
        assert {"name", "description", "input_schema"} == set(body["tools"][0])


def test_a_failed_result_says_so_to_anthropic_and_gemini_and_to_nobody_else():
    bad = {**USES, "input": {"expression": "1/"}}
    answer = anthropic_message({"type": "text", "text": "不行"})
    with FakeServer(anthropic_message(bad, stop="tool_use"), answer, strict=False) as server:
        Client(server, w.AnthropicLLM, url=server.origin).run()
        assert server.bodies()[1]["messages"][2]["content"][0]["is_error"] is True
    part = {"functionCall": {"name": "calculator", "args": {"expression": "1/"}}}
    replies = [whole(gemini(part)), whole(gemini({"text": "不行"}))]
    with FakeServer(*replies, strict=False) as server:
        Client(server, w.GeminiLLM, model="g").run()
        response = server.bodies()[1]["contents"][2]["parts"][0]["functionResponse"]["response"]
        assert set(response) == {"error"}
    with FakeServer(whole(message(None, call('{"expression":"1/"}'))), ANSWERS) as server:
        Client(server).run()  # strict: it refuses the key


@pytest.mark.parametrize("kind", ["AnthropicLLM", "GeminiLLM"])
def test_E12_the_text_protocol_works_with_every_vendor(kind):
    refusal = error(400, "registry.ollama.ai/library/gemma3:4b does not support tools")
    text = (
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "17*23+4"}}\n</tool_call>'
    )
    replies = {
        "AnthropicLLM": [anthropic_message({"type": "text", "text": t}) for t in (text, "395")],
        "GeminiLLM": [whole(gemini({"text": t})) for t in (text, "395")],
    }[kind]
    with FakeServer(refusal, *replies, strict=False) as server:
        client = Client(server, getattr(w, kind), url=server.origin)
        assert client.run()[0].text == "395" and "文字协议" in client.told[0]
        assert "tools" not in server.bodies()[2]
        assert "<tool_response>\\n395" in json.dumps(server.bodies()[2])


def test_E29_cached_tokens_count_as_prompt():
    with FakeServer(STREAMED, strict=False) as server:
        turn = Client(server, w.AnthropicLLM, url=server.origin).model.chat(
            QUESTION, calculator_only().schemas()
        )
        assert (turn.usage.input, turn.usage.cached) == (401, 400)


@pytest.mark.parametrize("status", [429, 529, 503])
def test_anthropic_overload_is_waited_out(status):
    busy = whole(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        status,
        Retry_After="1",
    )
    inside = anthropic_events(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    )
    with FakeServer(
        busy, inside, anthropic_message({"type": "text", "text": "395"}), strict=False
    ) as server:
        client = Client(server, w.AnthropicLLM, url=server.origin)
        assert client.run()[0].text == "395" and client.slept[0] == 1.0 and len(client.slept) == 2


def test_a_relay_token_goes_into_the_authorization_header():
    with FakeServer(anthropic_message({"type": "text", "text": "395"}), strict=False) as server:
        Client(server, w.AnthropicLLM, url=server.origin, key="Bearer t").run()
        assert server.requests[0][1]["Authorization"] == "Bearer t"


def gemini(*parts: dict, finish: str = "STOP") -> dict:
    return {
        "candidates": [
            {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish}
        ],
        "usageMetadata": {
            "promptTokenCount": 9,
            "candidatesTokenCount": 2,
            "thoughtsTokenCount": 3,
        },
    }


GEMINI_CALL = {
    "functionCall": {"name": "calculator", "args": {"expression": "17*23+4"}},
    "thoughtSignature": "c2ln",
}


@pytest.mark.parametrize("stream", [True, False])
def test_gemini_parts_go_back_unchanged_and_results_by_position(stream):
    def reply(*objects):
        return events(*objects, done=False) if stream else whole(objects[-1])

    first = reply(gemini(GEMINI_CALL))
    with FakeServer(first, reply(gemini({"text": "395"})), strict=False) as server:
        client = Client(
            server,
            w.GeminiLLM,
            url=server.origin + "/v1beta",
            key="k",
            model="gemini-x",
            stream=stream,
        )
        end, _ = client.run()
        assert end.text == "395" and end.usage == w.Usage(18, 10)
        path, headers, body = server.requests[1]
        assert path == "/v1beta/models/gemini-x:" + (
            "streamGenerateContent?alt=sse" if stream else "generateContent"
        )
        assert headers["x-goog-api-key"] == "k"
        assert body["contents"][1] == {"role": "model", "parts": [GEMINI_CALL]}
        response = {"functionResponse": {"name": "calculator", "response": {"output": "395"}}}
        assert body["contents"][2] == {"role": "user", "parts": [response]}


# --- the backends' names, keys, and models ---


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_no_list_of_models_raises_anything_but_a_sentence_for_the_user(body):
    with FakeServer(get=Reply(body)) as server:
        try:
            assert all(isinstance(name, str) for name in Client(server).model.models())
        except w.BackendError as error_:
            assert str(error_)


def test_models_are_listed():
    with FakeServer(models=("a", "b")) as server:
        assert Client(server).model.models() == ["a", "b"]
    with FakeServer(get=whole({"models": [{"name": "models/gemini-x"}]})) as server:
        assert Client(server, w.GeminiLLM).model.models() == ["gemini-x"]
    with (
        FakeServer(get=error(401, "Invalid API Key")) as server,
        pytest.raises(w.BackendError, match="Invalid API Key"),
    ):
        Client(server).model.models()


# --- transformers, with stand-ins that have the interfaces of version 5 ---

TEMPLATE = "{% if tools %}{{ tools }}{% endif %}{{ messages }}"


class Words(list):
    """A row of token ids: here every character is a token, and END is the special one."""

    def tolist(self):
        return list(self)

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return Words(found) if isinstance(key, slice) else found


class Ids:
    def __init__(self, row):
        self.row, self.shape = Words(row), (1, len(row))

    def __getitem__(self, index):
        return self.row


END = 0x110000
SCRIPT: list = []  # what the model writes, one text per turn
SEEN: list = []  # (messages, tools, options) of every turn


class Tokenizer:
    all_special_ids = [END]

    def __init__(self, template):
        self.chat_template = template

    def apply_chat_template(
        self,
        conversation,
        tools=None,
        *,
        add_generation_prompt=False,
        return_dict=True,
        return_tensors=None,
        **rest,
    ):
        assert add_generation_prompt and return_dict and return_tensors == "pt" and not rest
        SEEN.append((conversation, tools))
        if "refuse" in self.chat_template:
            raise RuntimeError("System role not supported")
        return {"input_ids": Ids([1] * 7), "attention_mask": Ids([1] * 7)}

    def decode(self, ids, skip_special_tokens=False):
        return "".join(map(chr, ids))


class Model:
    def generate(self, *, input_ids, attention_mask, max_new_tokens, **options):
        written = SCRIPT.pop(0)
        if isinstance(written, Exception):
            raise written
        ids = [*map(ord, written), END][:max_new_tokens]
        return Ids([*input_ids.row, *ids])


@pytest.fixture
def transformers(monkeypatch):
    def kind(make):
        def from_pretrained(folder, *, local_files_only):
            assert local_files_only
            if folder == "/nowhere":
                raise OSError("no such folder")
            return make(folder)

        return types.SimpleNamespace(from_pretrained=from_pretrained)

    SCRIPT.clear(), SEEN.clear()
    module = types.ModuleType("transformers")
    module.AutoTokenizer = kind(Tokenizer)  # the name of the folder is the template
    module.AutoModelForCausalLM = kind(lambda folder: Model())
    monkeypatch.setitem(sys.modules, "transformers", module)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))


CALL_TEXT = '<tool_call>\n{"name":"calculator","arguments":{"expression":"17*23+4"}}\n</tool_call>'


@pytest.mark.parametrize("template", [TEMPLATE, "{{ messages }}"], ids=["knows tools", "does not"])
def test_transformers_runs_a_call_and_answers(transformers, template):
    SCRIPT.extend([f"<think>先算</think>{CALL_TEXT}", "395"])
    told, shown, history = [], [], [dict(m) for m in QUESTION]
    model = w.TransformersLLM(template, notice=told.append)
    for event in w.run_tool_loop(
        model, calculator_only(), history, on_delta=lambda *pair: shown.append(pair)
    ):
        end = event
    assert (end.text, end.reason, history[3]["content"]) == ("395", "answered", "395")
    assert end.usage.input == 14 and shown == [("text", "395")]
    (_, tools), (messages, _) = SEEN
    if template == TEMPLATE:
        assert told == [] and tools[0]["function"]["name"] == "calculator"
        assert messages[2]["tool_calls"][0]["function"]["arguments"] == {"expression": "17*23+4"}
        assert messages[3]["name"] == "calculator"
    else:
        assert "文字协议" in told[0] and tools is None
        assert "calculator" in messages[0]["content"] and "tool_response" in messages[3]["content"]


def test_transformers_cut_at_the_limit_says_so(transformers):
    SCRIPT.append("395 是")
    turn = w.TransformersLLM(TEMPLATE, w.Settings("x", {}, 3)).chat(QUESTION, [])
    assert (turn.text, turn.finish, turn.usage) == ("395", "length", w.Usage(7, 3))


@pytest.mark.parametrize("words", ["CUDA out of memory", "model_kwargs not used: ['foo']"])
def test_transformers_errors_are_one_clear_line(transformers, words):
    SCRIPT.append(RuntimeError(words))
    with pytest.raises(w.BackendError, match="transformers"):
        w.TransformersLLM(TEMPLATE).chat(QUESTION, [])
    with pytest.raises(w.BackendError, match="System role"):
        w.TransformersLLM("refuse").chat(QUESTION, [])
    with pytest.raises(w.BackendError, match="对话模板"):
        w.TransformersLLM("")
    with pytest.raises(w.BackendError, match="模型目录"):
        w.TransformersLLM("/nowhere")


def test_transformers_missing_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(w.BackendError, match="pip install transformers torch"):
        w.TransformersLLM("/nowhere")

"""§11: bytes to events, and deltas of two wire formats to one Turn."""

import copy
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from w4d3_tools_mcp import (
    AnthropicFold,
    BackendError,
    OpenAIFold,
    ToolCall,
    Usage,
    _cut_off,
    assistant_message,
    sse_events,
)

# --- server-sent events ---

STREAMS = [
    (b"data: a\n\n", ["a"]),
    (b"data:a\n\ndata:  b\n\n", ["a", " b"]),
    (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", ["a", "b", "c"]),
    (b"data: a\ndata: b\ndata:\n\n", ["a\nb\n"]),
    (b": ping\n\ndata: a\n: in between\ndata: b\n\n", ["a\nb"]),
    (b"event: error\nid: 1\nretry: 5\ndata: a\n\n", ["a"]),
    (b"data\n\ndata:\n\ndata: a\n\n", ["a"]),
    (b"data\ndata\n\n", ["\n"]),
    (b"data: [DONE]\n\n", ["[DONE]"]),
    (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
    (b"data: a\n\ndata: never finished\n", ["a"]),
    (b"data: a\n\ndata: cut o", ["a"]),
    (b"\n\n\n\ndata: a\n\n\n", ["a"]),
    (b"Data: a\n\n data: b\n\ndata : c\n\n", []),
    (b"data: x:y: z\n\n", ["x:y: z"]),
    (b"", []),
    ("data: 晚安 🌙\u2028\x85\n\n".encode(), ["晚安 🌙\u2028\x85"]),
    (b"data: \xff\xfe\n\n", ["\ufffd\ufffd"]),
]


@pytest.mark.parametrize(("wire", "events"), STREAMS)
def test_events_are_the_same_however_the_bytes_are_cut(wire, events):
    assert list(sse_events([wire])) == events
    assert list(sse_events([wire[i : i + 1] for i in range(len(wire))])) == events
    for at in range(len(wire) + 1):
        assert list(sse_events([wire[:at], b"", wire[at:]])) == events


# --- OpenAI: building deltas ---


def chunk(finish=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index=None, id=None, name=None, arguments=None, **more):
    """One entry of `tool_calls`; None leaves the key out."""
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    entry = {
        k: v
        for k, v in (("index", index), ("id", id), ("function", function))
        if v not in (None, {})
    }
    return entry | more


def deltas(*groups, finish="tool_calls"):
    """A stream: each group is a list of entries in one delta."""
    return [
        chunk(role="assistant", content=None),
        *(chunk(tool_calls=list(g)) for g in groups),
        chunk(finish),
    ]


def fold(chunks, used_ids=(), kind=OpenAIFold):
    folded, shown = kind(used_ids), []
    for value in chunks:
        shown += folded.feed(value)
    return folded.turn(), shown


def turn_from_openai(reply):
    return fold([reply])[0]


def calls(turn):
    """[(id, name, arguments as a value)]"""
    return [
        (
            c.id,
            c.name,
            json.loads(c.arguments)
            if isinstance(c.arguments, str) and c.arguments
            else c.arguments or {},
        )
        for c in turn.calls
    ]


F, G = '{"n": 1}', '{"n": 2}'
OWN1, OWN2 = "call00001", "call00002"
TWO = [("a", "f", {"n": 1}), ("b", "g", {"n": 2})]
CALL_STREAMS = {
    "as documented": (deltas([piece(0, "a", "f", "")], [piece(0, arguments='{"n"')], [piece(0, arguments=": 1}")],
                             [piece(1, "b", "g", "")], [piece(1, arguments=G)]), TWO),
    "interleaved": (deltas([piece(0, "a", "f", "")], [piece(1, "b", "g", "")], [piece(0, arguments='{"n": ')],
                           [piece(1, arguments='{"n": ')], [piece(0, arguments="1}")], [piece(1, arguments="2}")]), TWO),
    "first brace with the name (llama-server)": (deltas([piece(0, "a", "f", "{")], [piece(0, arguments='"n": 1}')]), TWO[:1]),
    "whole calls in one delta each": (deltas([piece(0, "a", "f", F)], [piece(1, "b", "g", G)]), TWO),
    "whole calls in one delta together": (deltas([piece(0, "a", "f", F), piece(1, "b", "g", G)]), TWO),
    "arguments as an object (A1)": (deltas([piece(0, "a", "f", {"n": 1})], [piece(1, "b", "g", {"n": 2})]), TWO),
    "no arguments at all (A3)": (deltas([piece(0, "a", "f")]), [("a", "f", {})]),
    "empty arguments (A3)": (deltas([piece(0, "a", "f", "")], [piece(0, arguments="")]), [("a", "f", {})]),
    "null everywhere": (deltas([{"index": 0, "id": "a", "type": None, "function": {"name": "f", "arguments": None}}],
                               [{"index": 0, "id": None, "function": {"name": None, "arguments": F}}]), TWO[:1]),
    "merged objects (A7)": (deltas([piece(0, "a", "f", F + G)]), [("a", "f", {"n": 1}), (OWN1, "f", {"n": 2})]),
    "merged in pieces (A7)": (deltas([piece(0, "a", "f", F)], [piece(0, arguments=" \n" + G)]),
                              [("a", "f", {"n": 1}), (OWN1, "f", {"n": 2})]),
    "the same object twice": (deltas([piece(0, "a", "f", F + F)]), TWO[:1]),
    "no function (A9)": (deltas([{"id": "", "type": "function"}], [piece(1, "b", "g", G)]), TWO[1:]),
    "escape and character split over deltas (A12)": (
        deltas([piece(0, "a", "f", '{"n": "\\u66')], [piece(0, arguments='5a晚"}')]), [("a", "f", {"n": "晚晚"})]),
    "no ids (B1)": (deltas([piece(0, None, "f", F)], [piece(1, None, "g", G)]),
                    [(OWN1, "f", {"n": 1}), (OWN2, "g", {"n": 2})]),
    "empty id and name later on (B2)": (deltas([piece(0, "a", "f", "")], [piece(0, "", "", '{"n"')], [piece(0, "", "", ": 1}")]), TWO[:1]),
    "blank id": (deltas([piece(0, " ", "f", F)]), [(OWN1, "f", {"n": 1})]),
    "late id with index (B3)": (deltas([piece(0, None, "f", F)], [piece(0, "a")]), TWO[:1]),
    "late id without index (B3)": (deltas([piece(None, None, "f", F)], [piece(None, "a")]), TWO[:1]),
    "late id before more arguments": (deltas([piece(0, None, "f", '{"n"')], [piece(0, "a", None, ": 1}")]), TWO[:1]),
    "one id for two calls (B4)": (deltas([piece(0, "a", "f", F)], [piece(1, "a", "g", G)]),
                                  [("a", "f", {"n": 1}), (OWN1, "g", {"n": 2})]),
    "one id for two calls, no index (B4)": (deltas([piece(None, "a", "f", F), piece(None, "a", "g", G)]),
                                            [("a", "f", {"n": 1}), (OWN1, "g", {"n": 2})]),
    "every index 0, other ids (B7)": (deltas([piece(0, "a", "f", F)], [piece(0, "b", "g", G)]), TWO),
    "every index 0, other ids, in pieces (B7)": (
        deltas([piece(0, "a", "f", '{"n"')], [piece(0, arguments=": 1}")], [piece(0, "b", "g", "")], [piece(0, arguments=G)]), TWO),
    "every index 0, together (B7)": (deltas([piece(0, "a", "f", F), piece(0, "b", "g", G)]), TWO),
    "every index 0, no ids (B7)": (deltas([piece(0, None, "f", F)], [piece(0, None, "f", G)]),
                                   [(OWN1, "f", {"n": 1}), (OWN2, "f", {"n": 2})]),
    "every index 0, no ids, objects": (deltas([piece(0, None, "f", {"n": 1}), piece(0, None, "f", {"n": 2})]),
                                       [(OWN1, "f", {"n": 1}), (OWN2, "f", {"n": 2})]),
    "no index, ids (B8)": (deltas([piece(None, "a", "f", F)], [piece(None, "b", "g", G)]), TWO),
    "no index, ids, in pieces (B8)": (deltas([piece(None, "a", "f", '{"n"')], [piece(None, None, None, ": 1}")],
                                             [piece(None, "b", "g", "")], [piece(None, None, None, G)]), TWO),
    "no index, the id in every piece": (deltas([piece(None, "a", "f", '{"n"')], [piece(None, "a", None, ": 1}")],
                                               [piece(None, "b", "g", G)]), TWO),
    "no index, no ids (B8)": (deltas([piece(None, None, "f", F), piece(None, None, "g", G)]),
                              [(OWN1, "f", {"n": 1}), (OWN2, "g", {"n": 2})]),
    "no index, no ids, no arguments": (deltas([piece(None, None, "f", ""), piece(None, None, "g", "")]),
                                       [(OWN1, "f", {}), (OWN2, "g", {})]),
    "index from 1 (B9)": (deltas([piece(1, "a", "f", F)], [piece(2, "b", "g", G)]), TWO),
    "indexes out of order (B9)": (deltas([piece(5, "b", "g", G)], [piece(3, "a", "f", F)]), TWO),
    "name in every delta (B11)": (deltas([piece(0, "a", "f", "")], [piece(0, "a", "f", '{"n"')], [piece(0, "a", "f", ": 1}")],
                                         [piece(0, "a", "f", "")]), TWO[:1]),
    "names in every delta of two (B11)": (
        deltas([piece(0, "a", "f", '{"n"'), piece(1, "b", "g", '{"n"')], [piece(0, "a", "f", ": 1}"), piece(1, "b", "g", ": 2}")]), TWO),
    "name in pieces (B11)": (deltas([piece(0, "a", "fi", "")], [piece(0, None, "nd")], [piece(0, arguments=F)]), [("a", "find", {"n": 1})]),
    "name that grows (B11)": (deltas([piece(0, "a", "fi", "")], [piece(0, None, "find")], [piece(0, arguments=F)]), [("a", "find", {"n": 1})]),
    "name with a leak (B12)": (deltas([piece(0, "a", "functions.f<|channel|>commentary", F)]), TWO[:1]),
    "finish reason stop (C1)": (deltas([piece(0, "a", "f", F)], finish="stop"), TWO[:1]),
    "Ollama's own format": ([{"message": {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": {"n": 1}}}, {"function": {"name": "g", "arguments": {"n": 2}}}]}, "done": False},
        {"message": {"content": ""}, "done": True, "done_reason": "stop"}], [(OWN1, "f", {"n": 1}), (OWN2, "g", {"n": 2})]),
}  # fmt: skip


@pytest.mark.parametrize("case", CALL_STREAMS)
def test_calls_are_put_together(case):
    chunks, expected = CALL_STREAMS[case]
    before = copy.deepcopy(chunks)
    turn, _ = fold(chunks)
    assert calls(turn) == expected
    assert turn.finish == "tool_calls"
    assert chunks == before  # what came in is not touched
    assert len({c.id for c in turn.calls} - {""}) == len(turn.calls)


def whole(content="", finish="stop", **message):
    return {
        "choices": [
            {
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": finish,
            }
        ]
    }


WHOLE_CALLS = [
    ([piece(None, "a", "f", F), piece(None, "b", "g", G)], TWO),
    ([piece(None, "a", "f", {"n": 1}), piece(None, "b", "g", {"n": 2})], TWO),
    (
        [piece(None, "a", "f", F), piece(None, "a", "f", F)],
        [("a", "f", {"n": 1}), (OWN1, "f", {"n": 1})],
    ),
    ([piece(None, None, "f", ""), piece(None, "", "f", "")], [(OWN1, "f", {}), (OWN2, "f", {})]),
    ([piece(0, "a", "f", F), piece(0, "b", "g", G)], TWO),
    ([{"id": "", "type": "function"}], []),
    (None, []),
    ([None, 5, "x", {}], []),
]


@pytest.mark.parametrize(("entries", "expected"), WHOLE_CALLS)
def test_a_reply_that_is_not_streamed_is_one_delta(entries, expected):
    turn = turn_from_openai(whole(None, "stop", tool_calls=entries))
    assert calls(turn) == expected
    assert (turn.text, turn.finish) == ("", "tool_calls" if expected else "stop")


def test_ids_are_new_to_the_conversation_and_suit_every_server():
    turn, _ = fold(CALL_STREAMS["one id for two calls (B4)"][0], ["a", OWN1])
    assert [c.id for c in turn.calls] == ["call00002", "call00003"]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", c.id) for c in turn.calls)
    again, _ = fold(CALL_STREAMS["one id for two calls (B4)"][0], ["a", OWN1])
    assert again == turn


def test_unknown_keys_of_a_call_go_back():
    signature = {"google": {"thought_signature": "c2ln"}}
    turn, _ = fold(
        deltas([piece(0, "a", "f", F, extra_content=signature)], [piece(0, arguments="")])
    )
    assert turn.calls[0].extra == {"extra_content": signature}
    entry = assistant_message(turn)["tool_calls"][0]
    assert entry["extra_content"] == signature and set(entry) == {
        "id",
        "type",
        "function",
        "extra_content",
    }
    assert fold(CALL_STREAMS["as documented"][0])[0].calls[0].extra is None


# --- OpenAI: everything around the calls ---


def test_text_is_shown_as_it_comes():
    turn, shown = fold([chunk(content=""), chunk(content="你"), chunk(content="好", finish="stop")])
    assert shown == [("text", "你"), ("text", "好")]
    assert (turn.text, turn.finish, turn.calls, turn.extra) == ("你好", "stop", (), None)


PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "想"}]},
    {"type": "text", "text": "5"},
]


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        (None, "", ""),
        ("", "", ""),
        ("5", "5", ""),
        (PARTS, "5", "想"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", ""),
        ([{"type": "thinking", "thinking": "想"}, "b", {"type": "image_url"}, None, 7], "b", "想"),
        ("想</think>5", "5", "想"),
        ("<think>\n想\n</think>\n\n5", "5", "想"),
        (5, "", ""),
    ],
)
def test_content_of_all_shapes(content, text, reasoning):
    for turn in (
        turn_from_openai(whole(content)),
        fold([chunk(content=content), chunk("stop")])[0],
    ):
        assert (turn.text, turn.reasoning) == (text, reasoning)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_goes_back_under_its_own_name_with_calls(key):
    chunks = [
        chunk(**{key: "想"}),
        chunk(**{key: "想。"}, content=""),
        *deltas([piece(0, "a", "f", F)]),
    ]
    turn, shown = fold(chunks)
    assert (turn.reasoning, turn.extra) == ("想想。", {key: "想想。"})
    assert shown == [("reasoning", "想"), ("reasoning", "想。")]
    assert assistant_message(turn)[key] == "想想。"
    plain, _ = fold([chunk(**{key: "想"}), chunk(content="5"), chunk("stop")])
    assert (plain.reasoning, plain.extra) == ("想", None)


def test_reasoning_in_two_fields_is_read_once():
    turn = turn_from_openai(
        whole("5", reasoning="想", reasoning_content="想", tool_calls=[piece(None, "a", "f", F)])
    )
    assert (turn.reasoning, turn.extra) == ("想", {"reasoning_content": "想"})
    assert turn_from_openai(whole("5", reasoning="想", reasoning_content=None)).reasoning == "想"


@pytest.mark.parametrize(
    ("finish", "has_call", "expected"),
    [("stop", True, "tool_calls"), ("tool_calls", False, "stop"), ("function_call", False, "stop"), ("length", True, "length"),
     ("length", False, "length"), ("content_filter", False, "content_filter"), (None, True, "tool_calls"), (None, False, "stop")],
)  # fmt: skip
def test_calls_decide_not_the_finish_reason(finish, has_call, expected):
    entries = [piece(None, "a", "f", F)] if has_call else None
    assert turn_from_openai(whole("x", finish, tool_calls=entries)).finish == expected


@pytest.mark.parametrize(
    ("arguments", "cut"), [('{"n": 1', True), ('{"n"', True), ("", True), ("{", True), (F, False)]
)
def test_a_call_cut_off_by_the_length_limit_is_kept_and_marked(arguments, cut):
    turn, _ = fold(deltas([piece(0, "a", "f", arguments)], finish="length"))
    assert [c.name for c in turn.calls] == ["f"]
    assert turn.finish == "length"
    assert _cut_off(turn, 0) == cut


USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([chunk(content="x"), chunk("stop"), {"choices": [], "usage": USAGE}], Usage(9, 4, 3)),
        ([{"choices": [], "prompt_filter_results": []}, chunk("stop", content="x")], None),
        (
            [chunk("stop") | {"usage": {"prompt_tokens": 1}}, {"choices": [], "usage": USAGE}],
            Usage(9, 4, 3),
        ),
        ([chunk("stop") | {"usage": USAGE}, {"choices": [], "usage": None}], Usage(9, 4, 3)),
        ([{"choices": [{"delta": {}, "finish_reason": "stop", "usage": USAGE}]}], Usage(9, 4, 3)),
        (
            [
                chunk("stop")
                | {
                    "usage": {
                        "prompt_tokens": 5,
                        "completion_tokens": 1,
                        "prompt_cache_hit_tokens": 2,
                    }
                }
            ],
            Usage(5, 1, 2),
        ),
        ([chunk("stop") | {"usage": {"input_tokens": 5, "output_tokens": 1}}], Usage(5, 1, 0)),
        (
            [
                chunk("stop")
                | {
                    "usage": {
                        "prompt_tokens": "9",
                        "completion_tokens": None,
                        "prompt_tokens_details": None,
                    }
                }
            ],
            Usage(),
        ),
        ([chunk("stop")], None),
    ],
)
def test_usage_is_taken_wherever_it_stands_and_the_last_counts(chunks, usage):
    assert fold(chunks)[0].usage == usage


def test_a_stream_that_just_ends_is_an_error_that_keeps_the_text():
    folded = OpenAIFold()
    folded.feed(chunk(content="写到一"))
    with pytest.raises(BackendError, match="没有结束") as caught:
        folded.turn()
    assert caught.value.turn.text == "写到一"


@pytest.mark.parametrize("begun", ['{"n"', "{", " ", ""])
def test_a_stream_that_just_ends_inside_a_call_is_an_error(begun):
    with pytest.raises(BackendError):
        fold(deltas([piece(0, "a", "f", F)], [piece(1, "b", "g", begun)])[:-1])


def test_a_stream_that_just_ends_after_whole_calls_still_counts():
    folded = OpenAIFold()
    for value in deltas([piece(0, "a", "f", F)])[:-1]:
        folded.feed(value)
    assert calls(folded.turn()) == TWO[:1]
    assert not folded.done


@pytest.mark.parametrize("end", [chunk("stop"), {"done": True}], ids=["finish reason", "[DONE]"])
def test_a_finish_reason_or_done_alone_is_a_clean_end(end):
    assert fold([chunk(content="好"), end])[0].text == "好"
    by_transport = OpenAIFold()
    by_transport.feed(chunk(content="好"))
    by_transport.done = True
    assert by_transport.turn().text == by_transport.turn().text == "好"


def test_arguments_of_two_calls_cut_and_interleaved_at_random_come_out_whole():
    for seed in range(100):
        rng = random.Random(seed)
        texts = [
            json.dumps(
                {"k": "".join(rng.choices('ab{}"\\晚🌙', k=12))}, ensure_ascii=rng.random() < 0.5
            )
            for _ in range(2)
        ]
        queues = [[text[p : p + 3] for p in range(0, len(text), 3)] for text in texts]
        turns = [0] * len(queues[0]) + [1] * len(queues[1])
        rng.shuffle(turns)
        groups = [[piece(i, arguments=queues[i].pop(0))] for i in turns]
        turn, _ = fold(deltas([piece(0, "a", "f", "")], [piece(1, "b", "g", "")], *groups))
        assert [c.arguments for c in turn.calls] == texts


# --- Anthropic ---


def start(index, **block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def add(index, type, **delta):
    return {"type": "content_block_delta", "index": index, "delta": {"type": type, **delta}}


def stop(index):
    return {"type": "content_block_stop", "index": index}


def message(*events, reason="end_turn", end=True):
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 1,
    }
    head = {
        "type": "message_start",
        "message": {"role": "assistant", "content": [], "usage": usage},
    }
    tail = (
        [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 8}}]
        if reason
        else []
    )
    return [head, {"type": "ping"}, *events, *tail, *([{"type": "message_stop"}] if end else [])]


THINKING = {"type": "thinking", "thinking": "想一想", "signature": "c2ln"}
USE = {"type": "tool_use", "id": "tu_1", "name": "f", "input": {"n": 1}}
EVENTS = message(
    start(0, type="thinking", thinking="", signature=""), add(0, "thinking_delta", thinking="想"), {"type": "ping"},
    add(0, "thinking_delta", thinking="一想"), add(0, "signature_delta", signature="c2ln"), stop(0),
    start(1, type="text", text=""), add(1, "text_delta", text="我"), add(1, "text_delta", text="查"), stop(1),
    start(2, type="tool_use", id="tu_1", name="f", input={}), add(2, "input_json_delta", partial_json=""),
    add(2, "input_json_delta", partial_json='{"n"'), add(2, "input_json_delta", partial_json=": 1}"), stop(2),
    reason="tool_use",
)  # fmt: skip


def test_anthropic_events_become_a_turn_and_its_blocks_stay_unchanged():
    before = copy.deepcopy(EVENTS)
    turn, shown = fold(EVENTS, kind=AnthropicFold)
    assert (turn.text, turn.reasoning, turn.finish) == ("我查", "想一想", "tool_calls")
    assert calls(turn) == [("tu_1", "f", {"n": 1})]
    assert turn.usage == Usage(125, 8, 100)
    assert turn.extra == {"anthropic_blocks": [THINKING, {"type": "text", "text": "我查"}, USE]}
    assert shown == [("reasoning", "想"), ("reasoning", "一想"), ("text", "我"), ("text", "查")]
    assert EVENTS == before


def test_an_anthropic_message_that_is_not_streamed_gives_the_same_turn():
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 8,
    }
    blocks = [THINKING, {"type": "text", "text": "我查"}, USE]
    reply = {
        "type": "message",
        "role": "assistant",
        "content": blocks,
        "stop_reason": "tool_use",
        "usage": usage,
    }
    streamed = fold(EVENTS, kind=AnthropicFold)[0]
    turn = fold([reply], kind=AnthropicFold)[0]
    assert turn._replace(calls=()) == streamed._replace(calls=())
    assert calls(turn) == calls(streamed)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([start(0, type="tool_use", id="a", name="f", input={})], {}),
        ([start(0, type="tool_use", id="a", name="f")], {}),
        ([start(0, type="tool_use", id="a", name="f", input={"n": 1})], {"n": 1}),
        ([start(0, type="tool_use", id="a", name="f", input={}), add(0, "input_json_delta", partial_json=F)], {"n": 1}),
        ([start(0, type="tool_use", id="a", name="f", input={}), add(0, "from_the_future", x=1), {"type": "new_event"}], {}),
    ],
)  # fmt: skip
def test_anthropic_input_comes_from_pieces_or_the_start(events, expected):
    turn, _ = fold(message(*events, reason="tool_use"), kind=AnthropicFold)
    assert calls(turn) == [("a", "f", expected)]
    assert turn.extra is None


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
    ],
)
def test_anthropic_stop_reasons(reason, finish):
    events = message(start(0, type="text", text=""), add(0, "text_delta", text="x"), reason=reason)
    assert fold(events, kind=AnthropicFold)[0].finish == finish


def test_anthropic_tool_use_cut_off_by_max_tokens_is_marked():
    events = message(
        start(0, type="tool_use", id="a", name="f", input={}),
        add(0, "input_json_delta", partial_json='{"n'),
        reason="max_tokens",
    )
    turn, _ = fold(events, kind=AnthropicFold)
    assert turn.finish == "length" and _cut_off(turn, 0)


def test_anthropic_ids_are_repaired_in_the_blocks_too():
    turn, _ = fold(EVENTS, ["tu_1"], AnthropicFold)
    assert turn.calls[0].id == OWN1
    assert turn.extra["anthropic_blocks"][2] == {**USE, "id": OWN1}


def test_anthropic_redacted_thinking_and_citations_stay():
    blocks = [
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "a", "citations": [{"n": 1}, {"n": 2}]},
    ]
    events = message(start(0, **blocks[0]), start(1, type="text", text=""), add(1, "text_delta", text="a"),
                     add(1, "citations_delta", citation={"n": 1}), add(1, "citations_delta", citation={"n": 2}))  # fmt: skip
    assert fold(events, kind=AnthropicFold)[0].extra == {"anthropic_blocks": blocks}


def test_anthropic_end_needs_a_stop_reason_or_message_stop():
    text = [start(0, type="text", text=""), add(0, "text_delta", text="x")]
    assert fold(message(*text, end=False), kind=AnthropicFold)[0].text == "x"
    assert fold(message(*text, reason=None), kind=AnthropicFold)[0].text == "x"
    with pytest.raises(BackendError) as caught:
        fold(message(*text, reason=None, end=False), kind=AnthropicFold)
    assert caught.value.turn.text == "x"


# --- anything at all ---

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.sampled_from(["", "a", "f", F, "{", "stop", "tool_use", "text"])
)
keys = st.sampled_from([
    "choices", "delta", "message", "content", "tool_calls", "index", "id", "function", "name", "arguments", "finish_reason", "usage",
    "prompt_tokens", "prompt_tokens_details", "reasoning", "text", "type", "thinking", "function_call", "content_block", "input",
    "partial_json", "stop_reason", "citation", "done", "refusal",
])  # fmt: skip
wires = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(keys, v, max_size=5), max_leaves=20
)
types = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "message_stop",
        "message",
        "error",
    ]
)
deltas_of_any_kind = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": wires}), max_size=2)}
)


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.dictionaries(keys, wires, max_size=5) | deltas_of_any_kind, max_size=5),
    st.lists(types, min_size=5, max_size=5),
)
def test_no_chunk_of_any_shape_raises_anything_but_backend_error(chunks, kinds):
    for kind, stream in (
        (OpenAIFold, chunks),
        (AnthropicFold, [{**c, "type": t} for c, t in zip(chunks, kinds)]),
    ):
        folded = kind()
        try:
            for value in stream:
                assert all(k in ("text", "reasoning") and p for k, p in folded.feed(value))
            turn = folded.turn()
        except BackendError as error:
            turn = error.turn
        assert all(isinstance(c, ToolCall) and c.id and c.name for c in turn.calls)
        assert len({c.id for c in turn.calls}) == len(turn.calls)


def test_a_long_reply_in_many_pieces_ends_well():
    """Quadratic joining of these 300,000 pieces would take hours."""
    step, count = "晚安abcd", 100_000
    turn, _ = fold([*(chunk(content=step) for _ in range(count)), chunk("stop")])
    assert len(turn.text) == len(step) * count
    pieces = [
        [piece(0, "a", "f", '{"n": "')],
        *([piece(0, None, "f", step)] for _ in range(count)),
        [piece(0, arguments='"}')],
    ]
    assert len(fold(deltas(*pieces))[0].calls[0].arguments) > len(step) * count
    many, _ = fold(deltas(*([piece(i, None, "f", F)] for i in range(20_000))))
    assert len(many.calls) == 20_000
    wire = b"".join(b"data: x\n\n" for _ in range(count))
    assert sum(1 for _ in sse_events(wire[i : i + 7] for i in range(0, len(wire), 7))) == count
    assert list(sse_events([b"data: ", *[b"x" * 10] * count, b"\n\n"])) == ["x" * 10 * count]


@pytest.mark.parametrize(
    "deep",
    [
        '{"a":' * 100_000,
        "[" * 100_000,
        "{}" * 50_000,
        '{"a":1}' * 50_000,
        "-" * 100_000,
        '"' * 100_000,
    ],
)
def test_hostile_arguments_end_well(deep):
    turn = turn_from_openai(whole(None, tool_calls=[piece(None, "a", "f", deep)]))
    assert turn.calls[0].name == "f"

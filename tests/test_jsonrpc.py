"""§14: bytes ⇄ messages, and what is wrong with a message."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import w4d3_tools_mcp as m

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_is_encoded_is_one_line_and_decodes_to_the_same(value):
    line = m.encode(value)
    assert line.count(b"\n") == 1 and line.endswith(b"\n") and b"\r" not in line
    assert m.decode(line) == value == json.loads(line)


@given(st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=9))
def test_lone_surrogates_are_replaced_one_by_one(text):
    read = json.loads(m.encode({"text": text}).decode("utf-8"))["text"]
    assert read == "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_surrogate_pair_written_as_escapes_is_one_character():
    assert m.encode(m.decode(b'"\\ud83d\\ude00"')) == '"\U0001f600"\n'.encode()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"x": [math.nan]}])
def test_non_finite_numbers_are_never_written(value):
    with pytest.raises(ValueError):
        m.encode(value)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"nonsense",
        b"{'a':1}",
        b"[1,]",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xff\xfe{\x00}\x00",
        b"1 2",
        b"\x00",
        b"7" * 5000,
        b"[" * 100_000,
        b"\xef\xbb\xbf\xef\xbb\xbf{}",
        b'"tab\tin text"',
        b"01",
        b'{"a" 1}',
    ],
    ids=lambda line: repr(line[:20]),
)
def test_line_that_is_no_json_is_a_parse_error(line):
    with pytest.raises(m.RpcError) as caught:
        m.decode(line)
    assert caught.value.code == -32700


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_parse_error(data):
    try:
        m.decode(data)
    except m.RpcError as error:
        assert error.code == -32700
    else:
        json.loads(data)


@pytest.mark.parametrize("line", [b'\xef\xbb\xbf{"a":1}', b'{"a":1}\r\n', b'  {"a" : 1 }  '])
def test_mark_line_ends_and_blanks_do_no_harm(line):
    assert m.decode(line) == {"a": 1}


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"jsonrpc": "2.0", "id": 0, "method": "x"}, "request"),
        ({"jsonrpc": "2.0", "id": "", "method": "x", "params": {}}, "request"),
        ({"jsonrpc": "2.0", "id": 10**30, "method": "x"}, "request"),
        ({"jsonrpc": "2.0", "id": "\U0001f600 缓存", "method": "x"}, "request"),
        ({"jsonrpc": "2.0", "method": "x"}, "notification"),
        ({"jsonrpc": "2.0", "method": "x", "params": 3}, "notification"),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, "response"),
        ({"jsonrpc": "2.0", "error": {"code": 1, "message": "x"}}, "response"),
        ({"result": None}, "response"),
    ],
)
def test_kind_of_a_message(message, kind):
    assert m.kind_of(message) == kind


@pytest.mark.parametrize(
    ("message", "id"),
    [
        (None, None),
        (42, None),
        ("x", None),
        (True, None),
        ([], None),
        ({}, None),
        ({"jsonrpc": "2.0", "id": None, "method": "x"}, None),
        ({"jsonrpc": "2.0", "id": True, "method": "x"}, None),
        ({"jsonrpc": "2.0", "id": 1.0, "method": "x"}, None),
        ({"jsonrpc": "2.0", "id": {}, "method": "x"}, None),
        ({"jsonrpc": "2.0", "id": "a\ud800", "method": "x"}, None),
        ({"jsonrpc": "2.0", "id": "\udfff", "method": 7}, None),
        ({"id": 7, "method": "x"}, 7),
        ({"jsonrpc": "1.0", "id": "a", "method": "x"}, "a"),
        ({"jsonrpc": 2.0, "id": 7, "method": "x"}, 7),
        ({"jsonrpc": "2.0", "id": 7}, 7),
        ({"jsonrpc": "2.0", "id": 7, "method": None}, 7),
        ({"jsonrpc": "2.0", "method": 1}, None),
    ],
)
def test_what_is_no_message_is_an_invalid_request_with_its_id_if_readable(message, id):
    with pytest.raises(m.RpcError) as caught:
        m.kind_of(message)
    assert caught.value.code == -32600 and m.readable_id(message) == id


def test_error_reply_leaves_out_what_it_does_not_know():
    assert m.error_reply(None, m.RpcError(-32700, "x")) == {
        "jsonrpc": "2.0",
        "error": {"code": -32700, "message": "x"},
    }
    assert m.error_reply("", m.RpcError(1, "x", {"a": 0}))["error"]["data"] == {"a": 0}
    assert "id" in m.error_reply(0, m.RpcError(1, "x"))


def test_any_other_exception_is_a_fault_of_ours_without_private_paths():
    error = m.error_reply(7, KeyError("/home/me/secret.txt"))["error"]
    assert error["code"] == -32603 and "KeyError" in error["message"]
    assert "/home/me" not in error["message"]


def test_messages_never_carry_null_params():
    assert "params" not in m.request_message(1, "x")
    assert "params" not in m.notification_message("x")
    assert m.request_message(1, "x", {})["params"] == {}

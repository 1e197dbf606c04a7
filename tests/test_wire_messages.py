"""§9: one history, four spellings. Reading any of them back gives the tidy history again."""

from __future__ import annotations

import copy
import json

import pytest
from fake_server import complaint
from hypothesis import given, settings
from hypothesis import strategies as st

import w4d3_tools_mcp as w

# --- histories of every kind, well-formed or not ---

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.text("abc_", min_size=1, max_size=6)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3)
arguments = st.one_of(
    objects.map(json.dumps),
    objects,
    st.none(),
    texts,
    objects.map(json.dumps).map(json.dumps),
    objects.map(json.dumps).map(lambda text: text[:-1]),
)
ids = st.none() | st.just("") | st.sampled_from(["a", "b", "call_1", "aB3dE5fG7"])
images = st.sampled_from(["data:image/png;base64,AAAA", "https://x.example/a.png"])
parts = st.lists(
    st.one_of(
        texts.map(lambda t: {"type": "text", "text": t}),
        images.map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
    ),
    max_size=3,
)
calls = st.builds(
    lambda i, name, text: {
        "type": "function",
        "function": {"name": name, "arguments": text},
        **({} if i is None else {"id": i}),
    },
    ids,
    words,
    arguments,
)
messages = st.one_of(
    st.builds(
        lambda role, c: {"role": role, "content": c},
        st.sampled_from(["system", "developer"]),
        texts,
    ),
    st.builds(lambda c: {"role": "user", "content": c}, texts | parts),
    st.builds(
        lambda c, k: {"role": "assistant", "content": c, "tool_calls": k},
        st.none() | texts,
        st.lists(calls, max_size=3),
    ),
    st.builds(
        lambda i, c, bad: {
            "role": "tool",
            "tool_call_id": i,
            "content": c,
            **({"is_error": True} if bad else {}),
        },
        ids,
        texts,
        st.booleans(),
    ),
)
histories = st.lists(messages, max_size=8)


def canonical(history: list[dict]) -> list[dict]:
    """The history with arguments parsed: their spelling may differ, their value may not."""
    history = copy.deepcopy(history)
    for message in history:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return history


@settings(max_examples=120, deadline=None)
@given(histories)
def test_any_history_becomes_one_that_strict_servers_accept(history):
    before = copy.deepcopy(history)
    tidy = w.tidy_history(history)
    assert history == before, "the history itself must not change"
    assert w.tidy_history(tidy) == tidy
    seen = [c["id"] for m in tidy for c in m.get("tool_calls", ())]
    bare = [{k: v for k, v in m.items() if k not in w.OWN_KEYS} for m in tidy]
    if len(set(seen)) == len(seen):
        assert complaint({"messages": bare}) == ""


@settings(max_examples=120, deadline=None)
@given(histories)
def test_anthropic_reads_back(history):
    tidy = w.tidy_history(history)
    system, converted = w.to_anthropic_messages(history)
    assert canonical(w.tidy_history(w.from_anthropic_messages(system, converted))) == canonical(
        tidy
    )
    assert w.to_anthropic_messages(w.from_anthropic_messages(system, converted)) == (
        system,
        converted,
    )
    for message, following in zip(converted, [*converted[1:], {"content": []}]):
        uses = [b["id"] for b in message["content"] if b["type"] == "tool_use"]
        results = [b["tool_use_id"] for b in following["content"] if b["type"] == "tool_result"]
        if message["role"] == "assistant":
            assert uses == results == [b["tool_use_id"] for b in following["content"][: len(uses)]]


@settings(max_examples=120, deadline=None)
@given(histories)
def test_gemini_reads_back(history):
    tidy = w.tidy_history(history)
    system, contents = w.to_gemini_contents(history)
    assert canonical(w.tidy_history(w.from_gemini_contents(system, contents))) == canonical(tidy)
    assert w.to_gemini_contents(w.from_gemini_contents(system, contents)) == (system, contents)


@settings(max_examples=120, deadline=None)
@given(histories)
def test_transformers_reads_back(history):
    hf = w.to_hf_messages(history)
    for message in hf:
        assert all(
            isinstance(c["function"]["arguments"], dict) for c in message.get("tool_calls", ())
        )
        assert message["role"] != "tool" or message.pop("name")
    bare = [{k: v for k, v in m.items() if k not in w.OWN_KEYS} for m in w.tidy_history(history)]
    assert canonical(w.tidy_history(hf)) == canonical(bare)


# --- single facts ---

CALL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "calculator", "arguments": '{"expression": "1+1"}'},
}
HISTORY = [
    {"role": "system", "content": "规则"},
    {"role": "user", "content": "问"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0", "content": "2"},
    {"role": "assistant", "content": "2"},
]


def test_a_history_that_is_tidy_stays_as_it_is():
    assert w.tidy_history(HISTORY) == HISTORY


@pytest.mark.parametrize(
    "text, back",
    [
        ("", "{}"),
        (None, "{}"),
        ({"n": 1}, '{"n": 1}'),
        ('{"n":1}', '{"n":1}'),
        ('"{\\"n\\": 1}"', '{"n": 1}'),
        ('{"n": ', '{"unreadable_arguments": "{\\"n\\":"}'),
        ("{'n': True}", '{"n": true}'),
        ('{"n": NaN}', None),
    ],
)
def test_arguments_go_back_as_text_of_one_object(text, back):
    call = {**CALL, "function": {"name": "f", "arguments": text}}
    sent = w.tidy_history([{"role": "assistant", "content": None, "tool_calls": [call]}])[0][
        "tool_calls"
    ][0]
    value = json.loads(sent["function"]["arguments"], parse_constant=pytest.fail)
    assert isinstance(value, dict)
    if back is not None:
        assert value == json.loads(back) or "unreadable_arguments" in value
    if text == '{"n":1}':
        assert sent["function"]["arguments"] == text, (
            "the model's own text is kept where it is good"
        )


def test_what_the_openai_package_dumps_loses_its_nulls():
    dumped = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [CALL],
    }
    tidy = w.tidy_history([dumped, HISTORY[3]])
    assert tidy[0] == HISTORY[2]


def test_results_are_put_in_call_order_and_missing_ones_are_named():
    two = {
        "role": "assistant",
        "content": "",
        "tool_calls": [CALL, {**CALL, "id": "call_1"}, {**CALL, "id": "call_2"}],
    }
    results = [{"role": "tool", "tool_call_id": i, "content": i} for i in ("call_2", "call_0")]
    tidy = w.tidy_history([two, *results])
    assert [m["content"] for m in tidy[1:]] == ["call_0", w.NO_RESULT, "call_2"]


CHOICES = ["auto", "none", "required", {"type": "function", "function": {"name": "calculator"}}]


def test_tool_choice_in_three_spellings():
    anthropic = [{"type": word} for word in ("auto", "none", "any")]
    anthropic.append({"type": "tool", "name": "calculator"})
    assert [w.to_anthropic_choice(choice) for choice in CHOICES] == anthropic
    gemini = [w.to_gemini_choice(choice)["functionCallingConfig"] for choice in CHOICES]
    assert [config["mode"] for config in gemini] == ["AUTO", "NONE", "ANY", "ANY"]
    assert gemini[3]["allowedFunctionNames"] == ["calculator"] and len(gemini[2]) == 1


def test_definitions_and_tools_convert_alike():
    tool = next(iter(w.built_in_tools()))
    for convert in (w.to_openai_tool, w.to_anthropic_tool, w.to_gemini_tool):
        assert convert(tool) == convert(tool.schema())


BLOCKS = [
    {"type": "thinking", "thinking": "想", "signature": "c2ln"},
    {"type": "text", "text": "我来算"},
    {"type": "redacted_thinking", "data": "eA=="},
    {"type": "tool_use", "id": "toolu_1", "name": "calculator", "input": {"expression": "1+1"}},
]


def test_thinking_blocks_survive_the_round_trip_in_their_order():
    user = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2", "is_error": True}
        ],
    }
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "问"}]},
        {"role": "assistant", "content": BLOCKS},
        user,
    ]
    history = w.from_anthropic_messages("", conversation)
    assert history[1]["content"] == "我来算" and history[2]["is_error"]
    assert w.to_anthropic_messages(history) == ("", conversation)


# --- the vendors' own types, where their packages are installed (.peers/vendor) ---


def test_openai_types_accept_what_we_send():
    openai = pytest.importorskip("openai", reason="pip install openai: only in .peers/vendor")
    from openai.types import chat
    from pydantic import TypeAdapter

    question = w.Question(HISTORY, w.built_in_tools().schemas(), CHOICES[3])
    body = w.openai_request(question, w.Settings("m", {"temperature": 0.5}, 50))
    TypeAdapter(list[chat.ChatCompletionMessageParam]).validate_python(body["messages"])
    TypeAdapter(list[chat.ChatCompletionToolUnionParam]).validate_python(body["tools"])
    TypeAdapter(chat.ChatCompletionToolChoiceOptionParam).validate_python(body["tool_choice"])
    import inspect

    known = inspect.signature(openai.resources.chat.completions.Completions.create).parameters
    assert set(body) <= set(known)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_anthropic_types_accept_what_we_send(history):
    pytest.importorskip("anthropic", reason="pip install anthropic: only in .peers/vendor")
    from anthropic import types
    from pydantic import TypeAdapter

    _, converted = w.to_anthropic_messages(history)
    TypeAdapter(list[types.MessageParam]).validate_python(converted)
    for choice in CHOICES:
        TypeAdapter(types.ToolChoiceParam).validate_python(w.to_anthropic_choice(choice))
    TypeAdapter(list[types.ToolParam]).validate_python(
        w.tools_in_format(w.built_in_tools(), "anthropic")
    )


@settings(max_examples=40, deadline=None)
@given(histories)
def test_gemini_types_accept_what_we_send(history):
    genai = pytest.importorskip(
        "google.genai", reason="pip install google-genai: only in .peers/vendor"
    )
    types = genai.types
    _, contents = w.to_gemini_contents(history)
    for content in contents:
        types.Content.model_validate(content)
    for choice in CHOICES:
        types.ToolConfig.model_validate(w.to_gemini_choice(choice))
    for tool in w.tools_in_format(w.built_in_tools(), "gemini"):
        types.Tool.model_validate(tool)

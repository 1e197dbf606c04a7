"""§19: columns, wrapping and tables with Chinese text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from w4d3_tools_mcp import Style, columns, heading, message_lines, pad, table, wrap

mixed = st.text(alphabet="ab 中文，。（）“”…-1 \n", max_size=120)


@pytest.mark.parametrize(
    "text, width",
    [
        ("", 0),
        ("abc", 3),
        ("中文", 4),
        ("KV 缓存", 7),
        ("é", 1),
        ("e\u0301", 1),
        ("，", 2),
        ("①", 1),
        ("ｆ", 2),
    ],
)
def test_columns(text, width):
    assert columns(text) == width


def test_pad_counts_columns():
    assert pad("中", 4) == "中  " and pad("中文字", 4) == "中文字"


@given(mixed, st.integers(4, 40))
def test_wrapped_lines_fit_and_lose_nothing(text, width):
    lines = wrap(text, width)
    assert all(columns(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.text(alphabet="中文，。（）ab ", min_size=1, max_size=60), st.integers(12, 30))
def test_no_line_starts_with_a_closing_mark(text, width):
    dense = text.replace(" ", "")
    runs_of_marks = any(dense[i : i + 3].strip("，。（）") == "" for i in range(len(dense) - 2))
    if not runs_of_marks:
        assert not [line for line in wrap(text, width)[1:] if line[:1] in "，。）"]


def test_words_are_not_broken_when_they_fit():
    assert wrap("ab tool calling", 8) == ["ab tool", "calling"]


def test_a_long_word_is_chopped():
    assert wrap("x" * 10, 4) == ["xxxx", "xxxx", "xx"]


def test_table_aligns_chinese_and_numbers():
    assert table([("名", 5), ("name", 12)], right=[1]) == ["名     5", "name  12"]


def test_heading_fills_the_width():
    assert columns(heading("场景 1", Style(40))) == 40


def test_colour_does_not_change_the_text():
    plain = message_lines({"role": "user", "content": "问"}, Style(60))
    coloured = message_lines({"role": "user", "content": "问"}, Style(60, True))
    assert [line.replace("\x1b[36m", "").replace("\x1b[0m", "") for line in coloured] == plain


def test_a_message_shows_role_ids_names_and_arguments():
    lines = message_lines(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "function": {"name": "t", "arguments": '{"n": 1}'}}],
        },
        Style(60),
        mark="①",
        remark="模型开口",
    )
    shown = "\n".join(lines)
    assert lines[0].startswith("①") and "模型开口" in lines[0]
    assert all(word in shown for word in ("assistant", "call_0", "t", '{"n": 1}'))

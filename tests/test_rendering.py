"""§19: columns, wrapping and tables with Chinese text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import w4d3_tools_mcp
from w4d3_tools_mcp import (
    Style,
    chapter,
    columns,
    heading,
    message_lines,
    pad,
    said,
    shortened,
    table,
    wrap,
)

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


@pytest.mark.parametrize(
    "text, width, lines",
    [
        ("中文  ，中文", 6, ["中", "文  ，", "中文"]),  # a mark stays with its word over any blank
        ("ab     cd", 6, ["ab", "cd"]),  # blanks between two lines are gone
        ("  ab cd", 5, ["  ab", "cd"]),  # those in front are an indent
        ("a xxxxxx", 4, ["a xx", "xxxx"]),  # what fits nowhere begins at once
        ('["甲乙", "c"]', 6, ['["甲', '乙",', '"c"]']),
        ("他说“好”。", 8, ["他说", "“好”。"]),
        ("𠀀𠀁𠀂", 4, ["𠀀𠀁", "𠀂"]),  # rare 汉字
        ("", 5, [""]),
        ("a\n\nb", 5, ["a", "", "b"]),
    ],
)
def test_where_a_line_ends(text, width, lines):
    assert wrap(text, width) == lines


@pytest.mark.parametrize("text", ["x" * 20_000, "（" * 20_000, " " * 20_000 + "，", '中"' * 10_000])
def test_wrapping_a_long_line_takes_no_time_to_speak_of(text):
    assert "".join("".join(wrap(text, 40)).split()) == text.strip()


@given(mixed, st.integers(0, 60))
def test_a_shortened_text_fits_and_says_that_more_is_missing(text, width):
    short = shortened(text, width)
    assert short == text or columns(short) <= width + 3 and short.endswith(" ……")
    assert (short == text) is (columns(text) <= width)


def test_what_somebody_wrote_becomes_one_line_that_does_nothing():
    assert said("a\n\x1b[2J  b") == "a \\u001b[2J b" and len(said("x" * 5000)) < 90


def test_a_chapter_fits_the_screen_but_for_its_title():
    title, *lines = chapter("题", ("中文" * 20, "", "b"), Style(30))
    assert "题" in title and lines[-2:] == ["", "b"] and max(map(columns, lines)) <= 30


def test_the_patterns_of_the_screen_are_no_work_at_import():
    values = vars(w4d3_tools_mcp).values()
    patterns = [str(value.pattern) for value in values if isinstance(value, re.Pattern)]
    assert not [pattern for pattern in patterns if "《" in pattern or "\x1b" in pattern]


def test_table_aligns_chinese_and_numbers():
    assert table([("名", 5), ("name", 12)], right=[1]) == ["名     5", "name  12"]


def test_heading_fills_the_width():
    assert columns(heading("场景 1", Style(40))) == 40


@given(st.text(alphabet="ab 中文", max_size=80), st.integers(30, 60))
def test_a_long_heading_is_cut(text, width):
    assert columns(heading(text, Style(width))) == width


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

"""§7: the four tools, called the way a model calls them, on the real notes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import w4d3_tools_mcp as product
from w4d3_tools_mcp import (
    NotesIndex,
    ToolCall,
    ToolError,
    built_in_tools,
    kv_cache_gib,
    notes_tools,
    read_note,
    review_tool,
    search_notes,
)

TOOLS = built_in_tools()
DATA = Path(__file__).parent / "data"
QUERIES = json.loads((DATA / "notes_queries.json").read_text("utf-8"))
FRESH = json.loads((DATA / "notes_fresh_queries.json").read_text("utf-8"))


def call(name, **arguments):
    return TOOLS.call(ToolCall("id", name, json.dumps(arguments)))


def test_the_lectures_example():
    result = call(
        "kv_cache_gib", num_layers=32, num_kv_heads=8, head_dim=128, seq_len=8192, batch_size=4
    )
    assert result.text == '{"bytes": 4294967296, "GiB": 4.0, "per_token_KiB": 128.0}'


def test_the_lectures_sentence_for_a_wrong_type():
    result = call("kv_cache_gib", num_layers=32, num_kv_heads=8, head_dim=128, seq_len="8k")
    assert '参数 seq_len 应该是 integer，收到的是 "8k"' in result.text


@pytest.mark.parametrize(
    "shape", [(2, 1, 64, 10, 1, 1), (80, 8, 128, 4096, 16, 2), (1, 1, 1, 1, 1, 4)]
)
def test_the_size_is_that_of_the_real_arrays(shape):
    layers, heads, dim, length, batch, width = shape
    assert (
        kv_cache_gib(*shape)["bytes"]
        == 2 * np.empty((layers, heads, dim), f"V{width}").nbytes * length * batch
    )


@pytest.mark.parametrize(
    "name", ["num_layers", "num_kv_heads", "head_dim", "seq_len", "batch_size", "bytes_per_value"]
)
@pytest.mark.parametrize("value", [0, -1, 10**10])
def test_sizes_out_of_range_name_the_parameter(name, value):
    arguments = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1, "seq_len": 1, name: value}
    result = call("kv_cache_gib", **arguments)
    assert result.is_error and name in result.text and str(value) in result.text


@pytest.mark.parametrize("tool", list(TOOLS), ids=lambda t: t.name)
def test_the_schemas_are_flat_and_every_parameter_is_described(tool):
    text = json.dumps(tool.parameters)
    assert not [word for word in ("anyOf", "oneOf", "allOf", "$ref", "null") if f'"{word}"' in text]
    assert all(
        p.get("description") and p.get("type") for p in tool.parameters["properties"].values()
    )
    assert tool.parameters["additionalProperties"] is False


@pytest.mark.parametrize("tool", list(TOOLS), ids=lambda t: t.name)
def test_our_own_review_has_nothing_to_add(tool):
    assert review_tool(tool, TOOLS) == []


def test_calculator_answers_and_refuses():
    assert call("calculator", expression="17*23+4").text == "395"
    assert call("calculator", expression="1/0").is_error
    assert call("calculator", expression="__import__('os').system('ls')").is_error


def test_search_finds_sections_and_says_plainly_when_nothing_is_found():
    found = search_notes("GRPO", 2)
    assert found["hits"] and set(found["hits"][0]) == {"section", "title", "snippet", "score"}
    nothing = search_notes("zzqqxx")
    assert nothing["hits"] == [] and "没有找到" in nothing["message"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"query": ""}, "query"),
        ({"query": "  "}, "query"),
        ({"query": "a", "top_k": 0}, "top_k"),
        ({"query": "a", "top_k": 21}, "top_k"),
        ({"query": "a", "top_k": 10**100}, "top_k"),
        ({}, "query"),
    ],
)
def test_bad_searches_are_argument_errors(arguments, said):
    result = call("search_notes", **arguments)
    assert result.is_error and said in result.text


def test_every_hit_can_be_read_by_its_section():
    for hit in search_notes("显存", 5)["hits"]:
        text = read_note(hit["section"])
        assert text.startswith(hit["section"]) and hit["title"] in text


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "C:\\Windows\\win.ini",
        "Week 9 Day 9",
        "",
        "  ",
        "\x00",
        "a" * 10_000,
        "..",
        "~/.ssh/id_rsa",
        "file:///etc/passwd",
        "Week 1 Day 4 §99",
        "\ud800",
    ],
)
def test_unknown_sections_get_one_neutral_error(name):
    result = call("read_note", section=name)
    assert result.is_error and len(result.text) < 500
    assert (
        str(Path.cwd()) not in result.text
        and "root:" not in result.text
        and "Errno" not in result.text
    )


def test_a_missing_folder_is_a_clear_message():
    search, read = notes_tools(NotesIndex("no/such/folder"))
    for attempt in (lambda: search("KV"), lambda: read("Week 1 Day 4")):
        with pytest.raises(ToolError, match="讲义|notes"):
            attempt()


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("Week 2 Day 6 §1.2–1.3", "Week 2 Day 6 §1.2–1.3"),
        ("1.4", "Week 1 Day 4 §1.4"),
        ("W1D4 §1.4", "Week 1 Day 4 §1.4"),
        ("notes/week1-day4.md", "Week 1 Day 4"),
        ("week 1 day 4", "Week 1 Day 4"),
        ("LoRA与QLoRA", "Week 2 Day 6 §2"),
        ("Dr GRPO", "Week 3 Day 3 §3"),
    ],
)
def test_sections_are_read_by_what_people_write(name, section):
    assert read_note(name).startswith(section)


def test_a_lesson_too_long_for_one_result_says_which_sections_to_read_next():
    result = call("read_note", section="week4-day3").text
    assert "结果过长" in result
    listed = re.search("后面的请再分别读：(.*)）", result)[1].split("、")
    whole = "".join(read_note(name).partition("\n\n")[2] for name in listed)
    assert read_note("week4-day3")[-200:] in whole
    for name in listed:
        head, _, text = read_note(name).partition("\n\n")
        assert head.startswith(name) and text not in result
    assert "分别读" not in read_note("week1-day4")


def test_a_script_started_through_a_link_finds_its_notes(tmp_path):
    link = tmp_path / "tools.py"
    link.symlink_to(product.__file__)
    code = f"import runpy; print(runpy.run_path({str(link)!r})['read_note']('1.4')[:17])"
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert child.stdout.strip() == "Week 1 Day 4 §1.4"


def rank(query, section, k=5):
    sections = [hit["section"] for hit in search_notes(query, k)["hits"]]
    return sections.index(section) + 1 if section in sections else None


def test_the_bundled_queries_find_their_sections():
    ranks = [rank(item["query"], item["section"]) for item in QUERIES]
    missed = [q["query"] for q, r in zip(QUERIES, ranks) if r is None]
    assert missed == []
    assert sum(r == 1 for r in ranks) / len(ranks) >= 0.9


@pytest.mark.parametrize("part", ["tuned", "held out", "second"])
def test_fresh_queries_find_their_sections(part):
    """Written before the ranking was tuned; the misses of "held out" were never looked at."""
    ranks = [rank(row["query"], row["section"]) for row in FRESH if row["set"] == part]
    assert len(ranks) > 80
    assert sum(r == 1 for r in ranks) / len(ranks) >= 0.8
    assert sum(r is not None for r in ranks) / len(ranks) >= 0.95


def test_every_section_is_the_first_answer_to_a_chinese_and_an_english_query():
    first = {}
    for item in QUERIES:
        if rank(item["query"], item["section"]) == 1:
            chinese = any("\u4e00" <= c <= "\u9fff" for c in item["query"])
            first.setdefault(item["section"], set()).add("zh" if chinese else "en")
    asked = {item["section"] for item in QUERIES}
    assert {s for s in asked if first.get(s) != {"zh", "en"}} == set()


def test_results_stay_within_the_lectures_length():
    result = call("search_notes", query="模型 注意力 显存 训练", top_k=5)
    assert len(result.text) <= 1500 and json.loads(result.text)["hits"]


def test_as_many_hits_as_were_asked_for_arrive_whole():
    for item in QUERIES[::5]:
        hits = json.loads(call("search_notes", query=item["query"], top_k=20).text)["hits"]
        assert hits == search_notes(item["query"], 20)["hits"]

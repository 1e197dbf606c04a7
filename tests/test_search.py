"""§6 Search. Oracles: a numpy re-derivation of BM25, and plain counting over the text itself."""

from __future__ import annotations

import os
import re
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import w4d3_tools_mcp as product
from w4d3_tools_mcp import (
    BM25,
    LargeNotesIndex,
    NotesIndex,
    ToolError,
    content_words,
    known_words,
    query_words,
    stem,
    tokenize,
    weigh_fields,
)

# ── words ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_kv_heads", ["num", "kv", "heads"]),
        ("get-weather.now", ["get", "weather", "now"]),
        ("learningRate", ["learningrate", "learning", "rate"]),
        ("KVCache", ["kvcache", "kv", "cache"]),
        ("LoRA", ["lora", "lo", "ra"]),
        ("parseHTTPResponse", ["parsehttpresponse", "parse", "http", "response"]),
        ("LLMs GPUs", ["llms", "gpus"]),
        ("KV Cache", ["kv", "cache"]),
        ("llama3", ["llama", "3"]),
        ("Llama-3.1-8B", ["llama", "3.1", "8", "b"]),
        ("week1-day4", ["week", "1", "day", "4"]),
        ("§1.4", ["1.4"]),
        ("8,192 和 1,24", ["8192", "和", "1", "24"]),
        ("梯度消失", ["梯度", "度消", "消失"]),
        ("注", ["注"]),
        ("用KV缓存。", ["用", "kv", "缓存"]),
        ("ＫＶ　Ｃａｃｈｅ１．４", ["kv", "cache", "1.4"]),
        ("naïve Ärger α β", ["naïve", "ärger", "α", "β"]),
        ("ありがとう 감사", ["あり", "りが", "がと", "とう", "감사"]),
        ("พีชคณิต", ["พ", "ชค", "คณ", "ต"]),
        ("ⲀⲂ Ꞑ 𝐀", ["ⲁⲃ", "ꞑ", "𝐀"]),
        ("n² x₁ Kᵀ", ["n²", "x₁", "kᵀ"]),
        ("", []),
        (" \n_—…!?", []),
    ],
)
def test_tokenize(text, words):
    assert tokenize(text) == words


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_any_text_has_words_without_blanks_or_capitals(text):
    for word in tokenize(text):
        assert word and word == word.lower() and not re.search(r"\s|_", word)


@settings(max_examples=200, deadline=None)
@given(st.text("梯度消失注意力KVcache12._- ，§", max_size=30), st.text("模型ab3 ", max_size=10))
def test_words_of_a_part_between_blanks_are_words_of_the_whole(part, rest):
    assert set(tokenize(part)) <= set(tokenize(f"{rest} {part} {rest}"))


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=2, max_size=20))
def test_every_pair_of_a_chinese_run_is_found(run):
    assert tokenize(run) == [run[i : i + 2] for i in range(len(run) - 1)]


@pytest.mark.parametrize(
    "family",
    [
        "cache caches cached caching",
        "head heads",
        "policy policies",
        "stop stops stopped stopping",
        "train trained training",
        "fuse fused fuses",
        "class classes",
        "token tokens",
    ],
)
def test_forms_of_one_english_word_meet(family):
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize(
    "word", ["loss", "bias", "corpus", "this", "kv", "显存", "1.4", "as", "é", "β", "thing", "red"]
)
def test_what_is_no_ending_stays(word):
    assert stem(word) in (word, word[:-1]) and stem(word)


@settings(max_examples=200, deadline=None)
@given(st.text("abdeginsy", min_size=1, max_size=10))
def test_stems_are_never_empty_nor_longer(word):
    assert 1 <= len(stem(word)) <= len(word)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("显存怎么算？", ["显存"]),
        ("注意力的计算量为什么是平方", ["注意", "意力", "计算", "算量", "平方"]),
        ("how does the KV cache work", ["kv", "cach", "work"]),
        ("注", ["注"]),
        ("为什么", ["为什", "什么"]),
        ("what is this", []),
        ("。", []),
    ],
)
def test_a_question_is_cut_down_to_what_it_is_about(question, words):
    assert query_words(question) == words


# ── ranking ───────────────────────────────────────────────────────────────────────────────────────


def bm25_by_numpy(documents, query, k1, b):
    """The formula written over a dense matrix of counts."""
    vocabulary = sorted({word for document in documents for word in document} | set(query))
    counts = np.array(
        [[document.count(word) for word in vocabulary] for document in documents], float
    )
    counts = counts.reshape(len(documents), len(vocabulary))
    lengths = counts.sum(axis=1, keepdims=True)
    mean = lengths.mean() or 1.0
    present = (counts > 0).sum(axis=0)
    idf = np.log(1 + (len(documents) - present + 0.5) / (present + 0.5))
    damping = k1 * (1 - b + b * lengths / mean)
    shares = np.where(counts > 0, counts * (k1 + 1) / np.maximum(counts + damping, 1e-12), 0)
    asked = np.array([word in query for word in vocabulary], float)
    return shares @ (idf * asked)


WORDS = st.lists(st.sampled_from("abcdef"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8), WORDS, st.floats(0.01, 3), st.floats(0, 1))
def test_scores_are_those_of_the_formula(documents, query, k1, b):
    expected = bm25_by_numpy(documents, query, k1, b)
    hits = BM25(documents, k1=k1, b=b).search(query, len(documents))
    found = dict(hits)
    assert found == pytest.approx({i: score for i, score in enumerate(expected) if score > 0})
    assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
    assert all(score > 0 for score in found.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(WORDS, max_size=8), WORDS, st.integers(0, 10))
def test_top_k_is_the_head_of_the_whole_ranking(documents, query, top_k):
    index = BM25(documents)
    assert index.search(query, top_k) == index.search(query, 99)[:top_k]


def test_an_empty_corpus_and_empty_documents_give_no_hits():
    assert BM25([]).search(["a"]) == []
    assert BM25([[], []]).search(["a"]) == []
    assert BM25([["a"]]).search([]) == []
    assert BM25([["a"]]).search(["b"]) == []


def test_ties_keep_the_order_of_the_documents_and_a_repeated_word_counts_once():
    index = BM25([["a", "b"]] * 5)
    assert [position for position, _ in index.search(["b"], 3)] == [0, 1, 2]
    assert index.search(["b", "b"]) == index.search(["b"])


def test_a_word_in_every_document_still_counts_for_its_document():
    hits = BM25([["a"], ["a", "a"], ["a", "b"]]).search(["a"])
    assert len(hits) == 3 and all(score > 0 for _, score in hits)


def test_fields_count_by_their_weight():
    assert weigh_fields((["a", "b"], 3.0), (["a"], 0.5)) == {"a": 3.5, "b": 3.0}
    titled, plain = (
        weigh_fields((["x"], 3.0), (["y"], 1.0)),
        weigh_fields((["y"], 3.0), (["x"], 1.0)),
    )
    assert BM25([plain, titled]).search(["x"])[0][0] == 1
    assert BM25([weigh_fields((["a"], 1.0))]).search(["a"]) == BM25([["a"]]).search(["a"])


# ── a folder of the bundled kind ──────────────────────────────────────────────────────────────────

DAY_FOUR = """# Week 1 Day 4 · 推理的账

公式后面会反复用到。

## §1 预填充与解码 (prefill)

两个阶段：首字延迟和每字延迟。

```python
# 不是标题
## §9 也不是
```

### §1.4 KV Cache 占多少显存 (KV cache memory)

字节数 = 2 × num_layers × num_kv_heads × head_dim × seq_len。注意：fp16 每个值 2 字节。

## §2 批处理 (batching) ##

连续批处理让请求随到随走。
"""
DAY_ONE = """# Week 2 Day 1 · 规模

## §1 训练算力

C ≈ 6·N·D，模型梯度消失与梯度爆炸。

## §1.4 数据墙

高质量数据快用完了。
"""


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "week1-day4.md").write_text(DAY_FOUR, encoding="utf-8")
    (tmp_path / "week2-day1.md").write_text(DAY_ONE, encoding="utf-8")
    return NotesIndex(str(tmp_path))


def days_of(index):
    return [note.name for note in index.sections if note.level == 0]


def refusal(action, *arguments) -> str:
    with pytest.raises(ToolError) as caught:
        action(*arguments)
    message = str(caught.value)
    assert "\n" not in message and re.search("[\u4e00-\u9fff]", message)
    return message


def test_sections_know_their_number_line_and_own_text(notes):
    assert [(note.section, note.title, note.line) for note in notes.sections] == [
        ("Week 1 Day 4", "推理的账", 1),
        ("Week 1 Day 4 §1", "预填充与解码 (prefill)", 5),
        ("Week 1 Day 4 §1.4", "KV Cache 占多少显存 (KV cache memory)", 14),
        ("Week 1 Day 4 §2", "批处理 (batching)", 18),
        ("Week 2 Day 1", "规模", 1),
        ("Week 2 Day 1 §1", "训练算力", 3),
        ("Week 2 Day 1 §1.4", "数据墙", 7),
    ]
    assert notes.sections[0].text == "公式后面会反复用到。"
    assert notes.sections[1].text.endswith("## §9 也不是\n```")
    assert days_of(notes) == ["week1-day4", "week2-day1"]


@pytest.mark.parametrize(
    "name",
    [
        "Week 1 Day 4 §1.4",
        "week 1 day 4 §1.4",
        "Week 1 Day 4 § 1.4",
        "Week1Day4 1.4",
        "week1-day4 §1.4",
        "week1-day4 1.4",
        "week1_day4#1.4",
        "week1-day4.md §1.4",
        "W1D4 §1.4",
        "第1周第4天 §1.4",
        "第一周第四天 §1.4",
        "第 1 周 第 4 天 第1.4节",
        "Ｗｅｅｋ　１　Ｄａｙ　４　§１．４",
        "  Week 1 Day 4 §1.4  ",
        "Week 1 Day 4 §1.4 KV Cache 占多少显存 (KV cache memory)",
        "§1.4 KV Cache 占多少显存 (KV cache memory)",
        "KV Cache 占多少显存 (KV cache memory)",
        "kv cache",
        "占多少显存",
        "1.4 KV Cache",
        "§1.4 占多少显存",
        "KV Cache占多少显存？（KV cache memory）",
        "“KV Cache，占多少显存”",
        "week1-day4 KV Cache",
        "Week 1 Day 4 §1.4 KV Cache",
        "Week 1 Day 4 §1.4.",
        "（见 Week 1 Day 4 §1.4）",
        "Week 1, Day 4, Section 1.4",
        "week 01 day 04 1.4",
        "week1－day4 §1．4",
        "notes/week1-day4.md §1.4",
        "notes\\week1-day4.md#1.4",
    ],
)
def test_one_section_has_many_names(notes, name):
    assert notes.find(name).section == "Week 1 Day 4 §1.4"


@pytest.mark.parametrize(
    "name",
    [
        "week1-day4",
        "week1-day4.md",
        "Week 1 Day 4",
        "第1周第4天",
        "推理的账",
        "w1d4",
        "week 1 day 4",
        "notes/week1-day4.md",
        "./week1-day4",
        "/home/me/notes/week1-day4.md",
        "..\\week1-day4.md",
        "week1－day4",
        "notes://week1-day4",
    ],
)
def test_a_day_is_found_whole(notes, name):
    day = notes.find(name)
    assert day.section == "Week 1 Day 4"
    for piece in ("公式后面", "## §1 预填充", "# 不是标题", "### §1.4 KV Cache", "连续批处理"):
        assert piece in day.text
    assert "6·N·D" not in day.text


def test_a_section_is_found_with_its_subsections(notes):
    text = notes.find("Week 1 Day 4 §1").text
    assert (
        "首字延迟" in text
        and "### §1.4" in text
        and "num_kv_heads" in text
        and "连续批处理" not in text
    )


@pytest.mark.parametrize(
    ("name", "section", "has", "lacks"),
    [
        ("Week 1 Day 4 §1–1.4", "Week 1 Day 4 §1–1.4", ["首字延迟", "### §1.4"], ["连续批处理"]),
        ("Week 1 Day 4 §1.4-2", "Week 1 Day 4 §1.4–2", ["num_kv_heads", "## §2"], ["首字延迟"]),
        ("week1-day4 §1.4 ～ §2", "Week 1 Day 4 §1.4–2", ["连续批处理"], ["6·N·D"]),
        ("Ｗ２Ｄ１ §1至1.4", "Week 2 Day 1 §1–1.4", ["6·N·D", "## §1.4 数据墙"], ["KV"]),
    ],
)
def test_several_sections_in_a_row_are_read_as_one(notes, name, section, has, lacks):
    found = notes.find(name)
    assert found.section == section
    assert all(text in found.text for text in has) and not any(t in found.text for t in lacks)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Week 1 Day 4 §1.4–1.9", "Week 1 Day 4 §1.4"),
        ("Week 1 Day 4 §2–1", "Week 1 Day 4"),
        ("Week 1 Day 4 §1.4、Week 2 Day 1 §1", "Week 1 Day 4 §1.4"),
        ("Week 1 Day 4 §1.4 和 §2", "Week 1 Day 4 §1.4"),
        ("week1-day4 数据墙", "数据墙"),
        ("§2 数据墙", "数据墙"),
        ("1.4", "Week 2 Day 1 §1.4"),
    ],
)
def test_what_is_no_one_section_says_the_nearest(notes, name, near):
    assert near in refusal(notes.find, name).partition("相近的有")[2]


@pytest.mark.parametrize(
    "name", ["Week 9 Day 9", "Week 9 Day 9 §9", "第九周第九天", "§99", "量子力学", "算力 猫咪 狗粮"]
)
def test_what_has_nothing_near_is_told_to_search_and_named_no_section(notes, name):
    message = refusal(notes.find, name)
    assert "相近" not in message and message.endswith("先用 search_notes 查")


def test_a_refusal_gives_an_example_from_these_notes(tmp_path):
    (tmp_path / "菜谱.md").write_text("# 菜\n\nx\n\n## 汤\n\ny\n", encoding="utf-8")
    message = refusal(NotesIndex(str(tmp_path)).find, "zzz")
    assert "（如 菜谱 > 汤）" in message and "（如 菜谱）" in message and "Week" not in message


def test_every_hit_can_be_read_by_its_id(notes):
    for note in notes.sections:
        assert notes.find(note.section).section == note.section


@pytest.mark.parametrize(
    "name",
    [
        "../etc/passwd",
        "/etc/passwd",
        "C:\\Windows\\win.ini",
        "..",
        "",
        " ",
        "\x00",
        "不存在的一节",
        "Week 9 Day 9",
        "x" * 100_000,
        "\ud800",
    ],
)
def test_an_unknown_name_gets_a_neutral_refusal(notes, name):
    message = refusal(notes.find, name)
    assert message.startswith("没有这一节") and len(message) < 600
    assert str(notes.folder) not in message and "etc" not in message


def test_a_refusal_names_the_nearest_sections(notes):
    assert "Week 1 Day 4 §1.4" in refusal(notes.find, "Week 1 Day 4 §1.5")
    assert "Week 1 Day 4" in refusal(notes.find, "weak1-day4")
    assert "训练算力" in refusal(notes.find, "训练用的算力")


def test_an_ambiguous_name_lists_what_it_could_mean(notes):
    message = refusal(notes.find, "§1.4")
    assert (
        message.startswith("有好几节")
        and "Week 1 Day 4 §1.4" in message
        and "Week 2 Day 1 §1.4" in message
    )


@pytest.mark.parametrize(
    ("query", "section"),
    [
        ("KV Cache 显存", "Week 1 Day 4 §1.4"),
        ("num_kv_heads", "Week 1 Day 4 §1.4"),
        ("ＫＶ缓存 ｃａｃｈｅ", "Week 1 Day 4 §1.4"),
        ("how much memory does the KV cache take?", "Week 1 Day 4 §1.4"),
        ("梯度", "Week 2 Day 1 §1"),
        ("消失", "Week 2 Day 1 §1"),
        ("注", "Week 1 Day 4 §1.4"),
        ("Week 2 Day 1 §1.4", "Week 2 Day 1 §1.4"),
        ("批处理", "Week 1 Day 4 §2"),
        ("训练算力怎么算", "Week 2 Day 1 §1"),
        ("6ND", "Week 2 Day 1 §1"),
    ],
)
def test_search_finds_the_section(notes, query, section):
    assert notes.search(query)[0].note.section == section


@pytest.mark.parametrize(
    ("query", "section"),
    [
        ("kvcache", "Week 1 Day 4 §1.4"),
        ("batchinng", "Week 1 Day 4 §2"),
        ("memorry", "Week 1 Day 4 §1.4"),
        ("prefil", "Week 1 Day 4 §1"),
        ("preflil 阶段", "Week 1 Day 4 §1"),
        ("为啥要 cashe 啊", "Week 1 Day 4 §1.4"),
    ],
)
def test_slips_of_the_finger_and_run_together_words_are_understood(notes, query, section):
    assert notes.search(query)[0].note.section == section


@pytest.mark.parametrize("word", ["pizza", "memoize", "emmory", "kv", "缓春", "memoryyy"])
def test_only_one_slip_after_two_right_letters_is_mended(word):
    counts = {"kv": 9, "cach": 8, "memory": 7, "缓存": 6}

    def terms(start, part=""):
        return [word for word in counts if word.startswith(start) and part in word]

    known = known_words(word, SimpleNamespace(count=lambda w: counts.get(w, 0), terms=terms))
    assert known == [word]


def test_no_slips_are_looked_for_in_a_word_without_end():
    def terms(start, part=""):
        raise AssertionError("a thousand letters have 54,000 slips of a thousand letters each")

    known = known_words("a" * 1_000, SimpleNamespace(count=lambda word: 0, terms=terms))
    assert known == ["a" * 1_000]


def test_a_latin_word_is_not_outvoted_by_pairs_of_characters(tmp_path):
    text = "# T\n\n## 甲\n\nDPO 的失效\n\n## 乙\n\n模型输出变长\n\n## 丙\n\n无关的文字\n"
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    assert NotesIndex(str(tmp_path)).search("dpo 输出")[0].note.title == "甲"


def test_a_search_for_something_else_finds_nothing(notes):
    for query in ("量子纠缠", "pizza recipe", "如何做红烧肉", "?!", "what is this"):
        assert notes.search(query) == []
    assert "空" in refusal(notes.search, "  ")
    assert "1000" in refusal(notes.search, "字" * 1001)


def test_a_word_in_the_heading_outweighs_one_in_the_text(tmp_path):
    (tmp_path / "a.md").write_text(
        "# A\n\n## 量化\n\n位宽变小。\n\n## 其他\n\n量化也提一句。\n", encoding="utf-8"
    )
    assert [hit.note.title for hit in NotesIndex(str(tmp_path)).search("量化")] == ["量化", "其他"]


def test_a_snippet_is_one_line_around_the_match_and_cuts_no_word(tmp_path):
    filler = "some ordinary words about nothing at all\n" * 20
    (tmp_path / "a.md").write_text(
        f"# A\n\n{filler}```\nthe needle is here\n```\n{filler}", encoding="utf-8"
    )
    (hit,) = NotesIndex(str(tmp_path)).search("needle")
    assert (
        "the needle is here" in hit.snippet and "\n" not in hit.snippet and "`" not in hit.snippet
    )
    assert 150 <= len(hit.snippet) <= 205
    assert hit.snippet.startswith("…") and hit.snippet.endswith("…")
    assert set(hit.snippet.strip("…").split()) <= set((filler + "the needle is here").split())


@settings(max_examples=60, deadline=None)
@given(query=st.text(max_size=30))
def test_any_query_is_answered(tmp_path_factory, query):
    folder = tmp_path_factory.getbasetemp() / "any query"
    folder.mkdir(exist_ok=True)
    text = "# 标题 title\n\n梯度 cache 1.4 (x) [y] * + \\ β"
    (folder / "a.md").write_text(text, encoding="utf-8")
    index = NotesIndex(str(folder))
    if query.strip():
        for hit in index.search(query):
            assert hit.score > 0 and hit.note.name == "a"
    try:
        index.find(query)
    except ToolError as error:
        assert "\n" not in str(error)


# ── a folder of any kind ──────────────────────────────────────────────────────────────────────────


def sections_of(tmp_path, text: str | bytes) -> list[tuple[str, str]]:
    (tmp_path / "file.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    return [(note.section, note.text) for note in NotesIndex(str(tmp_path)).sections]


def test_foreign_headings_make_a_path(tmp_path):
    text = "intro\n\n# Setup\n\nrun it\n\n## On Linux\n\napt\n\n"
    text += "### Empty\n\n# Use\n\n## On Linux\n\ngo\n"
    assert sections_of(tmp_path, text) == [
        ("file", "intro"),
        ("file > Setup", "run it"),
        ("file > Setup > On Linux", "apt"),
        ("file > Use", ""),
        ("file > Use > On Linux", "go"),
    ]


def test_equal_headings_get_different_ids(tmp_path):
    text = "# T\n\n## A\n\n1\n\n## A\n\n2\n\n## A (2)\n\n3\n\n## A\n\n4\n"
    sections = sections_of(tmp_path, text)
    assert [text for _, text in sections] == ["", "1", "2", "3", "4"]
    assert len({section for section, _ in sections}) == 5
    index = NotesIndex(str(tmp_path))
    assert all(index.find(section).section == section for section, _ in sections)


def test_ten_thousand_equal_headings_are_no_trouble(tmp_path):
    assert len(sections_of(tmp_path, "# T\n" + "## A\nx\n" * 10_000)) == 10_001


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("# T\n```\n# no\n```\n## Yes\nx", ["Yes"]),
        ("# T\n~~~\n# no\n```\n# no\n~~~\n## Yes\nx", ["Yes"]),
        ("# T\n````md\n```\n# no\n```\n# no\n````\n## Yes\nx", ["Yes"]),
        ('# T\n```py title="~~~"\n# no\n``` not the end\n# no\n```  \n## Yes\nx', ["Yes"]),
        ("# T\n- ```sh\n  # no\n  ```\n## Yes\nx", ["Yes"]),
        ("# T\n1. ~~~\n   # no\n   ~~~\n## Yes\nx", ["Yes"]),
        ("# T\n> ```\n> # no\n> ```\n## Yes\nx", ["Yes"]),
        ("# T\n```inline``` code\n## Yes\nx", ["Yes"]),
        ("# T\n```\n## no, the fence never ends\nx", []),
        ("# T\n#tag\n#\n####### seven\n    # code\n## Yes\nx", ["Yes"]),
        (
            "# T\n## C#\nx\n## Closed ##\nx\n## Not closed#\nx\n   ## Indented\nx",
            ["C#", "Closed", "Not closed#", "Indented"],
        ),
        ("# T\n## ###\nx\n##\tTab\nx", ["Tab"]),
        ("---\ntitle: a\n# no\n---\n# T\n## Yes\nx", ["Yes"]),
        ("---\n# T\n## Yes\nx", ["T", "Yes"]),
        ("# T\nabove\n---\n## Yes\nx", ["Yes"]),
        ("# T\r\n## Yes\r\nx\r\n", ["Yes"]),
        ("\ufeff# T\n## Yes\nx", ["Yes"]),
        ("# T\n## Yes\u2028still\nx", ["Yes\u2028still"]),
    ],
)
def test_headings_are_told_from_what_looks_like_them(tmp_path, text, titles):
    sections_of(tmp_path, text)
    assert [note.title for note in NotesIndex(str(tmp_path)).sections if note.level] == titles


def test_line_numbers_count_from_the_top_of_the_file(tmp_path):
    sections_of(tmp_path, "---\na: 1\n---\n\n# T\n\n## Yes\nx")
    index = NotesIndex(str(tmp_path))
    assert [(note.title, note.line) for note in index.sections] == [("T", 5), ("Yes", 7)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["# a", "## b", "### §1.2 c", "```", "~~~", "text", "", "---", "- ```", "## ", "#"]
        ),
        max_size=14,
    )
)
def test_no_line_of_text_is_lost_or_invented(lines):
    from w4d3_tools_mcp import _notes_of_file

    text = "\n".join(["start", *lines])
    notes = _notes_of_file("f", text)
    kept = [line for note in notes for line in note.text.split("\n") if line]
    source = [line for line in text.split("\n") if line]
    assert [line for line in kept if line in ("text", "start")] == [
        line for line in source if line in ("text", "start")
    ]
    assert [note.line for note in notes] == sorted(note.line for note in notes)


@pytest.fixture
def hostile(tmp_path):
    """A folder with everything in it that a real notes folder may hold."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("# 机密\n\n密码 hunter2\n", encoding="utf-8")
    folder = tmp_path / "notes"
    (folder / "sub" / "深层").mkdir(parents=True)
    (folder / ".obsidian").mkdir()
    (folder / "empty").mkdir()
    (folder / "directory.md").mkdir()
    (folder / "a.md").write_text("# 甲\n\n第一篇\n", encoding="utf-8")
    (folder / "sub" / "深层" / "b.MD").write_text("# 乙\n\n第二篇 attention\n", encoding="utf-8")
    (folder / ".obsidian" / "hidden.md").write_text("# 隐藏\n\nx\n", encoding="utf-8")
    (folder / ".draft.md").write_text("# 草稿\n\nx\n", encoding="utf-8")
    (folder / "notes.txt").write_text("# 文本\n\nx\n", encoding="utf-8")
    (folder / "gbk.md").write_bytes("# 国标\n\n内容\n".encode("gbk"))
    (folder / "binary.md").write_bytes(bytes(range(256)))
    (folder / "empty.md").write_bytes(b"")
    (folder / "huge.md").write_bytes(b"x" * 2_000_001)
    (folder / "nul.md").write_bytes("# 空字符\n\na\x00b\n".encode())
    return folder


def test_only_readable_markdown_below_the_folder_is_read(hostile):
    index = NotesIndex(str(hostile))
    assert days_of(index) == ["a", "nul", "sub/深层/b"]
    assert any("gbk.md" in notice and "UTF-8" in notice for notice in index.notices)
    assert any("huge.md" in notice for notice in index.notices)
    assert not any(str(hostile) in notice for notice in index.notices)
    assert index.find("b").name == index.find("sub/深层/b.md").name == "sub/深层/b"
    assert index.search("attention")[0].note.section == "sub/深层/b"


def symlink(link, target):
    try:
        link.symlink_to(target)
    except (OSError, NotImplementedError):
        pytest.skip("no symbolic links here")


def test_links_never_lead_outside(hostile):
    symlink(hostile / "leak.md", hostile.parent / "outside" / "secret.md")
    symlink(hostile / "tree", hostile.parent / "outside")
    symlink(hostile / "loop", hostile)
    symlink(hostile / "dangling.md", hostile / "gone")
    symlink(hostile / "inside.md", hostile / "a.md")
    index = NotesIndex(str(hostile))
    assert days_of(index) == ["a", "nul", "sub/深层/b"]
    assert index.search("hunter2") == []
    assert [notice for notice in index.notices if "链接" in notice] == [
        f"跳过链接 {name}，请放真正的文件"
        for name in ("dangling.md", "inside.md", "leak.md", "loop", "tree")
    ]


def test_a_folder_that_is_itself_a_link_is_fine(hostile):
    symlink(hostile.parent / "link", hostile)
    assert NotesIndex(str(hostile.parent / "link")).find("a").title == "甲"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX names and pipes")
def test_odd_file_names_and_pipes_do_no_harm(hostile):
    os.mkfifo(hostile / "pipe.md")
    with open(os.fsencode(hostile) + b"/bad\xff\nname.md", "w", encoding="utf-8") as file:
        file.write("# 丙\n\n第三篇\n")
    index = NotesIndex(str(hostile))
    note = index.find("丙")
    note.section.encode("utf-8")
    assert "\n" not in note.section and index.find(note.section) == note


def test_a_file_that_vanishes_or_is_closed_to_us_is_skipped(hostile, monkeypatch):
    import builtins

    real = builtins.open

    def vanishing(path, *arguments, **options):
        if str(path).endswith("a.md"):
            raise FileNotFoundError(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(builtins, "open", vanishing)
    index = NotesIndex(str(hostile))
    assert days_of(index) == ["nul", "sub/深层/b"]
    assert any("a.md" in notice for notice in index.notices)


def test_a_missing_or_empty_folder_says_how_to_give_one(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        index = NotesIndex(str(folder))
        for action, arguments in ((index.search, ["x"]), (index.find, ["x"]), (days_of, [index])):
            message = refusal(action, *arguments)
            assert "--notes DIR" in message and str(tmp_path) not in message


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file.md").write_text("# 甲\n\nx\n", encoding="utf-8")
    assert "没有找到笔记文件夹" in refusal(NotesIndex(str(tmp_path / "file.md")).search, "x")


def test_notices_are_told_once_when_the_notes_are_read(hostile):
    told: list[str] = []
    index = NotesIndex(str(hostile), notice=told.append)
    assert told == []
    index.search("attention")
    index.find("a")
    assert told == index.notices and any("gbk.md" in text for text in told)


def test_of_very_many_notices_only_a_few_are_told_one_by_one(tmp_path):
    (tmp_path / "a.md").write_text("# 甲\n\nx\n", encoding="utf-8")
    for i in range(40):
        (tmp_path / f"gbk{i:02}.md").write_bytes("国标".encode("gbk"))
    told: list[str] = []
    index = NotesIndex(str(tmp_path), notice=told.append)
    assert len(index.notices) == 40 and len(told) == 6 and "35" in told[-1]


def test_nothing_is_read_before_the_first_question(tmp_path):
    index = NotesIndex(str(tmp_path / "later"))
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a.md").write_text("# 甲\n\n内容\n", encoding="utf-8")
    assert index.search("内容")


@pytest.mark.parametrize("large", [None, 10**9, 0])
def test_changes_are_seen_by_the_next_question_after_a_while(tmp_path, monkeypatch, large):
    folder, file = tmp_path / "notes", tmp_path / "notes" / "a.md"
    folder.mkdir()
    file.write_text("# 甲\n\n内容\n", encoding="utf-8")
    options = {"cache": str(tmp_path / "cache"), "large": large}
    kind, options = (NotesIndex, {}) if large is None else (LargeNotesIndex, options)
    index = kind(str(folder), **options)
    monkeypatch.setattr(product, "LOOK_AGAIN", 1e9)
    assert index.search("内容")
    first = index.find("甲")
    file.write_text("# 甲\n\n改过的正文\n", encoding="utf-8")
    assert index.search("内容") and index.find("甲") == first
    monkeypatch.setattr(product, "LOOK_AGAIN", -1.0)
    assert not index.search("内容") and index.search("正文") and "正文" in index.find("甲").text
    (folder / "b.md").write_text("# 乙\n\n另一篇\n", encoding="utf-8")
    assert index.search("另一篇")[0].note.name == "b" and index.outline[-1].name == "b"
    (folder / "b.md").unlink()
    assert not index.search("另一篇")
    (folder / "a.md").rename(tmp_path / "away.md")
    for _ in range(2):
        assert "没有可读的" in refusal(index.search, "正文")
    (tmp_path / "away.md").rename(folder / "a.md")
    assert index.search("正文")
    folder.rename(tmp_path / "gone")
    assert "没有找到笔记文件夹" in refusal(index.search, "正文")
    (tmp_path / "gone").rename(folder)
    assert index.search("正文")


@pytest.mark.parametrize(
    ("text", "section", "shown"),
    [
        ("没有标题\n", "a", "a"),
        ("没有标题\n\n## 一节\n\nx\n", "a > 一节", "a > 一节"),
        ("# 标题\n\nx\n", "a", "a 标题"),
        ("# 标题\n\n## §2\n\nx\n", "a §2", "a §2"),
        ("# 标题\n\n## §2 二\n\nx\n", "a §2", "a §2 二"),
        ("## b\n\nx\n\n## b\n\ny\n", "a > b (2)", "a > b (2)"),
        ("# Week 1 Day 4\n\nx\n", "Week 1 Day 4", "Week 1 Day 4"),
        ("# Week 1 Day 4 · 4\n\nx\n", "Week 1 Day 4", "Week 1 Day 4 4"),
        ("# Week 1 Day 4\n\n## §2 Day\n\nx\n", "Week 1 Day 4 §2", "Week 1 Day 4 §2 Day"),
    ],
)
def test_no_name_is_shown_twice(tmp_path, text, section, shown):
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    index = NotesIndex(str(tmp_path))
    assert index.find(section).full_name == shown
    (tmp_path / "zz.md").write_text("正则化\n", encoding="utf-8")
    assert refusal(NotesIndex(str(tmp_path)).find, "正则化 §7").endswith("相近的有：zz")


def test_a_file_that_begins_with_a_lower_heading_is_found_whole(tmp_path):
    (tmp_path / "a.md").write_text("## 一\n\nx\n\n## 二\n\ny\n", encoding="utf-8")
    for kind, options in (
        (NotesIndex, {}),
        (LargeNotesIndex, {"cache": str(tmp_path / "c"), "large": 0}),
    ):
        assert kind(str(tmp_path), **options).find("a").text == "## 一\n\nx\n\n## 二\n\ny"


def test_many_threads_may_ask_first(notes):
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append(notes.search("KV Cache"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and all(answer == answers[0] for answer in answers)


def test_long_lines_of_blanks_and_fences_take_no_time(tmp_path):
    nasty = [
        "# " + " " * 100_000 + "x",
        "#" * 100_000,
        "> " * 50_000,
        "- " * 50_000,
        "`" * 100_000,
        "1. " * 30_000,
    ]
    assert sections_of(tmp_path, "# T\n" + "\n".join(nasty))
    assert content_words(" ".join(nasty)) is not None

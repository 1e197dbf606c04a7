"""§6 at scale: the stored index finds what the one in memory finds, and survives what happens."""

from __future__ import annotations

import json
import os
import pathlib
import random
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

import w4d3_tools_mcp as product
from w4d3_tools_mcp import (
    NOTES_FOLDER,
    LargeNotesIndex,
    NotesIndex,
    NotesInStore,
    ToolError,
    notes_cache,
)

HERE = pathlib.Path(__file__).resolve().parent
QUERIES = json.loads((HERE / "data" / "notes_queries.json").read_text("utf-8"))


def fts5_is_missing():
    try:
        with closing(sqlite3.connect(":memory:")) as base:
            base.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
    except sqlite3.OperationalError:
        return True
    return False


needs_fts5 = pytest.mark.skipif(fts5_is_missing(), reason="this SQLite has no FTS5")


def write(folder, name, text):
    path = folder / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    return path


def save_again(path, text):
    """Write a file as a later save would: its time moves on."""
    before = path.stat().st_mtime_ns
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(before, before + 1_000_000_000))


def stored(folder, cache, **options):
    return LargeNotesIndex(str(folder), str(cache), large=0, **options)


def is_stored(index):
    return isinstance(index._notes, NotesInStore)


def days_of(index):
    return [note.name for note in index.sections if note.level == 0]


def ids(hits):
    return [hit.note.section for hit in hits]


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    write(notes, "a", "# 优化\n\n开头\n\n## 梯度消失与梯度爆炸\n\n残差连接 residual\n")
    write(
        notes,
        "sub/b",
        "# Week 9 Day 1 检索\n\n## §1 倒排\n\nBM25 idf\n\n### §1.1 细节\n\nk1 和 b\n",
    )
    return notes


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return NotesIndex(NOTES_FOLDER), stored(NOTES_FOLDER, tmp_path_factory.mktemp("cache"))


# --- the same answers both ways ---


@needs_fts5
def test_both_ways_score_the_bundled_notes_alike(both, monkeypatch):
    memory, large = both
    monkeypatch.setattr(product, "CANDIDATES", len(memory.sections))
    for row in QUERIES:
        expected, found = memory.search(row["query"], 5), large.search(row["query"], 5)
        assert ids(found) == ids(expected), row["query"]
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected])
        assert [hit.snippet for hit in found] == [hit.snippet for hit in expected]
    assert is_stored(large)


@needs_fts5
def test_fifty_candidates_hold_the_best_three(both):
    memory, large = both
    for row in QUERIES:
        assert ids(large.search(row["query"], 3)) == ids(memory.search(row["query"], 3))


@pytest.mark.parametrize("way", ["memory", "stored"])
def test_the_bundled_queries_find_their_section(both, way):
    index = both[way == "stored"]
    ranks = []
    for row in QUERIES:
        found = ids(index.search(row["query"], 5))
        assert row["section"] in found, row["query"]
        ranks.append(found.index(row["section"]))
    assert ranks.count(0) / len(ranks) >= 0.9


@needs_fts5
def test_both_ways_know_the_same_sections_by_the_same_names(both):
    memory, large = both
    assert large.sections == memory.sections
    for note in memory.sections:
        for name in (note.section, note.heading, f"{note.section} {note.title}"):
            try:
                expected = memory.find(name)
            except ToolError:
                with pytest.raises(ToolError, match="有好几节符合"):
                    large.find(name)
            else:
                assert large.find(name) == expected
    for name in ("Week 2 Day 6 §1.2–1.3", "1.4", "W1D4 §1.4", "notes/week1-day4.md", "week 1 day 4",
                 "Week 1 Day 4 §1.4 KV Cache", "week1-day4 KV Cache", "Week 01, Day 04", "Dr GRPO",
                 "Week 4 Day 3 §3–3.4", "1.4 占多少显存", "KV Cache"):  # fmt: skip
        assert large.find(name) == memory.find(name)
    for query in ("kvcache", "attenton", "multihead atention", "speculativ decodng", "quantzation"):
        assert ids(large.search(query, 3)) == ids(memory.search(query, 3)) != []
    for index in both:
        with pytest.raises(ToolError, match="相近的有"):
            index.find("KV Cache 显存 占用 公式")


@needs_fts5
def test_both_ways_agree_on_random_notes_after_random_edits(tmp_path):
    rng = random.Random(7)
    words = "梯度 显存 注意力 采样 cache token GRPO 奖励 检索 位置编码 1.4 beam_search 量化".split()
    folder, cache = tmp_path / "notes", tmp_path / "cache"

    def text():
        return "".join(
            f"{'#' * rng.randint(1, 3)} {rng.choice(words)} {rng.randint(0, 9)}\n\n"
            + "，".join(rng.choices(words, k=rng.randint(0, 30)))
            + "\n\n"
            for _ in range(rng.randint(1, 5))
        )

    for i in range(12):
        write(folder, f"d{i % 3}/f{i}", text())
    for step in range(6):
        memory, large = NotesIndex(str(folder)), stored(folder, cache)
        for query in (*words, "显存 cache", "GRPO 奖励 采样", "注", "梯度消失"):
            hits, expected = large.search(query, 100), memory.search(query, 100)
            scores = pytest.approx([hit.score for hit in expected])
            assert [hit.score for hit in hits] == scores, (step, query)
            places = {(hit.note.name, hit.note.line) for hit in expected}
            assert {(hit.note.name, hit.note.line) for hit in hits} == places
        paths = sorted(folder.rglob("*.md"))
        save_again(rng.choice(paths), text())
        rng.choice(paths).unlink()
        write(folder, f"new{step}", text())


# --- traps of SQLite's full-text search ---


@needs_fts5
@pytest.mark.parametrize(
    ("query", "section"),
    [
        ("梯度", "a > 梯度消失与梯度爆炸"),  # unicode61 makes one token of a run of Chinese
        ("消失", "a > 梯度消失与梯度爆炸"),  # trigram knows nothing below three characters
        ("度消", "a > 梯度消失与梯度爆炸"),
        ("爆", "a > 梯度消失与梯度爆炸"),  # one character, not the first of its run
        ("residuals", "a > 梯度消失与梯度爆炸"),
        ("ＢＭ２５", "Week 9 Day 1 §1"),
        ("k1", "Week 9 Day 1 §1.1"),
        ("1.1", "Week 9 Day 1 §1.1"),
    ],
)
def test_words_are_found_however_short_and_wherever_in_a_run(tmp_path, query, section):
    notes = tmp_path / "notes"
    write(notes, "a", "# 优化\n\n开头\n\n## 梯度消失与梯度爆炸\n\n残差连接 residual\n")
    write(notes, "b", "# Week 9 Day 1 检索\n\n## §1 倒排\n\nBM25 idf\n\n### §1.1 细节\n\nk1 和 b\n")
    large = stored(notes, tmp_path / "cache")
    assert ids(large.search(query))[:1] == ids(NotesIndex(str(notes)).search(query))[:1]
    assert ids(large.search(query))[:1] == [section]
    assert is_stored(large)


@needs_fts5
@pytest.mark.parametrize(
    "query",
    [
        '"',
        '""',
        '"梯度',
        "梯度 OR",
        "NEAR(梯度, 2)",
        "heading: 梯度",
        "梯度*",
        "-梯度",
        "^梯度",
        "(梯度",
        "梯度 AND NOT 残差",
        "{a b} : c",
        "梯度'; DROP TABLE sections; --",
        "a\x00b",
        "\ud800 梯度",
        "é ß İ",
        "。",
        "1.4.",
        "…",
        "𠀀",
        "かな",
        "・",
        "の" * 900,
    ],
)
def test_no_query_is_taken_for_query_language(folder, tmp_path, query):
    large = stored(folder, tmp_path / "cache")
    expected = NotesIndex(str(folder)).search(query, 50)
    assert ids(large.search(query, 50)) == ids(expected)
    assert is_stored(large)
    with pytest.raises(ToolError):
        large.find(query + "zz")


@needs_fts5
def test_names_are_no_patterns(folder, tmp_path):
    large = stored(folder, tmp_path / "cache")
    for name in ("%", "_", "梯%", "' OR 1 --", "\ud800"):
        with pytest.raises(ToolError):
            large.find(name)
    assert large.find("梯度爆炸").title == "梯度消失与梯度爆炸"


# --- what is read again ---


@needs_fts5
def test_only_changed_files_are_read_again(folder, tmp_path):
    for i in range(5):
        write(folder, f"more{i}", f"# 更多 {i}\n\n内容\n")
    read = []
    stored(folder, tmp_path / "cache", progress=lambda done, total: read.append(total)).search(
        "梯度"
    )
    stored(folder, tmp_path / "cache", progress=lambda done, total: read.append(total)).search(
        "梯度"
    )
    save_again(folder / "a.md", "# 新标题\n\n正则化\n")
    (folder / "more0.md").unlink()
    write(folder, "more9", "# 蒸馏\n\n教师\n")
    large = stored(folder, tmp_path / "cache", progress=lambda done, total: read.append(total))
    assert ids(large.search("正则化")) == ["a"]
    assert large.search("梯度") == [] and ids(large.search("教师")) == ["more9"]
    assert read == [7, 2]
    assert days_of(large) == [
        "a",
        "more1",
        "more2",
        "more3",
        "more4",
        "more9",
        "sub/b",
    ]


@needs_fts5
def test_an_index_stopped_half_way_leaves_nothing_behind(folder, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored(folder, tmp_path / "cache", progress=stop).search("梯度")
    interrupted = stored(folder, tmp_path / "cache", progress=stop)
    with pytest.raises(KeyboardInterrupt):
        interrupted.search("梯度")
    interrupted.progress = print
    for large in (interrupted, stored(folder, tmp_path / "cache")):
        assert ids(large.search("梯度"))
        assert len(large.sections) == len(NotesIndex(str(folder)).sections)


@needs_fts5
def test_a_file_that_vanishes_while_being_read_is_skipped(folder, tmp_path):
    for i in range(product.PROGRESS_STEP):
        write(folder, f"n{i:03}", f"# 第 {i} 篇\n\n内容\n")
    last = folder / "sub" / "b.md"
    large = stored(folder, tmp_path / "cache", progress=lambda *_: last.unlink(missing_ok=True))
    assert ids(large.search("梯度"))
    assert large.search("倒排") == [] and any("sub/b" in notice for notice in large.notices)


@needs_fts5
def test_what_is_no_notes_is_named_at_every_start_and_not_read_again(folder, tmp_path):
    (folder / "gbk.md").write_bytes("# 国标\n\n内容\n".encode("gbk"))
    write(folder, "huge", "x" * (product.MAX_NOTE_BYTES + 1))
    write(folder, "空", "")
    read = []
    for _ in range(2):
        large = stored(folder, tmp_path / "cache", progress=lambda done, total: read.append(total))
        assert large.notices == NotesIndex(str(folder)).notices and len(large.notices) == 2
        assert not any(str(tmp_path) in notice for notice in large.notices)
    assert read == [5]


@needs_fts5
def test_what_is_skipped_is_told_at_every_start_once(folder, tmp_path):
    (folder / "gbk.md").write_bytes("# 国标\n\n内容\n".encode("gbk"))
    for way in ("stored", "stored", "memory"):
        told = []
        cache = tmp_path / ("cache" if way == "stored" else "gbk.md")
        large = LargeNotesIndex(
            str(folder), str(cache), large=0 if way == "stored" else 10**9, notice=told.append
        )
        assert told == []
        large.search("梯度")
        large.find("a")
        assert is_stored(large) == (way == "stored")
        assert told == large.notices == ["跳过不是 UTF-8 的文件 gbk.md，请另存为 UTF-8"]


@needs_fts5
def test_a_file_that_could_not_be_read_is_tried_again_at_the_next_start(folder, tmp_path):
    real = product._read_file

    def closed(name, path):
        return real(name, str(tmp_path / "none") if name == "a" else path)

    product._read_file = closed
    try:
        first = stored(folder, tmp_path / "cache")
        assert first.search("梯度") == [] and first.notices == ["跳过读不了的文件 a.md"]
    finally:
        product._read_file = real
    again = stored(folder, tmp_path / "cache")
    assert ids(again.search("梯度")) and again.notices == []


@needs_fts5
def test_files_of_obsidian_and_windows_are_read(tmp_path):
    notes = tmp_path / "notes"
    write(notes, ".obsidian/x", "# 设置\n")
    write(
        notes,
        "笔记",
        "---\r\ntags: [a]\r\n---\r\n# 标题\r\n\r\n[[链接]] #标签\r\n\r\n### 跳级\r\n\r\n内容\r\n",
    )
    large = stored(notes, tmp_path / "cache")
    assert large.sections == NotesIndex(str(notes)).sections
    assert ids(large.search("链接")) == ["笔记"]


@needs_fts5
def test_links_out_of_the_folder_are_not_followed(folder, tmp_path):
    secret = write(tmp_path / "outside", "secret", "# 机密\n\n密码\n")
    try:
        (folder / "link.md").symlink_to(secret)
        (folder / "dir").symlink_to(secret.parent, target_is_directory=True)
        (folder / "loop").symlink_to(folder, target_is_directory=True)
    except (OSError, NotImplementedError):
        pytest.skip("no symbolic links here")
    large = stored(folder, tmp_path / "cache")
    assert large.search("密码") == [] and any("link" in notice for notice in large.notices)
    assert len(days_of(large)) == 2


@needs_fts5
def test_two_files_of_one_title_can_both_be_opened(folder, tmp_path):
    write(folder, "copy", "# Week 9 Day 1 检索\n\n## §1 倒排\n\n副本\n")
    large = stored(folder, tmp_path / "cache")
    for hit in large.search("倒排"):
        assert large.find(hit.note.section).name == hit.note.name


# --- where there is no store ---


def test_a_small_folder_stays_in_memory(folder, tmp_path):
    large = LargeNotesIndex(str(folder), str(tmp_path / "cache"))
    assert ids(large.search("梯度")) and not is_stored(large)
    assert not (tmp_path / "cache").exists() and large.notices == []


def in_memory_and_says_so(large, told):
    assert ids(large.search("梯度")) and not is_stored(large)
    assert large.find("a").title == "优化" and len(days_of(large)) == 2
    assert [notice for notice in large.notices if "内存" in notice] == told
    assert len(told) == 1


def test_where_no_file_can_be_made_the_notes_are_held_in_memory(folder, tmp_path):
    told = []
    (tmp_path / "cache").write_text("x", encoding="utf-8")
    in_memory_and_says_so(stored(folder, tmp_path / "cache", notice=told.append), told)


@needs_fts5
@pytest.mark.parametrize("there", [False, True])
def test_on_a_read_only_disk_the_notes_are_held_in_memory(folder, tmp_path, monkeypatch, there):
    """SQLite itself says so: the same file, opened for reading only, even by root."""
    path, told = pathlib.Path(stored(folder, tmp_path / "cache").path), []
    path.parent.mkdir()
    if there:
        stored(folder, tmp_path / "cache").search("梯度")
        save_again(folder / "a.md", "# 优化\n\n梯度\n")
    else:
        with closing(sqlite3.connect(path)) as base:
            base.execute("VACUUM")
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3,
        "connect",
        lambda path, **options: connect(f"file:{path}?mode=ro", uri=True, **options),
    )
    in_memory_and_says_so(stored(folder, tmp_path / "cache", notice=told.append), told)


def test_without_fts5_the_notes_are_held_in_memory(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(product, "STORE_TABLES", "CREATE VIRTUAL TABLE w USING fts99(x);")
    large = stored(folder, tmp_path / "cache")
    assert ids(large.search("梯度")) and not is_stored(large)


def test_without_sqlite_the_notes_are_held_in_memory(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    large = stored(folder, tmp_path / "cache")
    assert ids(large.search("梯度")) and not is_stored(large)


@pytest.mark.parametrize("files", [{}, {"gbk.md": "国标".encode("gbk")}, {"readme.txt": b"x"}])
def test_a_folder_without_notes_is_said_to_have_none(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    large = stored(tmp_path, tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(ToolError, match="没有可读的"):
            large.search("x")


def test_a_missing_folder_is_named_as_such(tmp_path):
    with pytest.raises(ToolError, match="没有找到笔记文件夹"):
        stored(tmp_path / "none", tmp_path / "cache").search("x")


# --- damage, and several processes ---


@needs_fts5
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"not a database at all" * 400,
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:4096] + bytes(len(data) - 4096),
        lambda data: data[:100] + os.urandom(len(data) - 100),
    ],
    ids=["text", "empty", "cut", "zeroed", "random"],
)
def test_a_damaged_file_is_made_anew(folder, tmp_path, damage):
    first = stored(folder, tmp_path / "cache")
    expected = ids(first.search("梯度 检索"))
    first._notes.base.close()
    path = pathlib.Path(first.path)
    path.write_bytes(damage(path.read_bytes()))
    large = stored(folder, tmp_path / "cache")
    assert ids(large.search("梯度 检索")) == expected
    assert large.find("a").title == "优化"


CHILD = """
import sys
import w4d3_tools_mcp as w
index = w.LargeNotesIndex(sys.argv[1], sys.argv[2], large=0)
sys.stdin.readline()
print(len(index.sections), *(hit.note.section for hit in index.search("细节 37", 1)), sep="|")
"""


@needs_fts5
def test_two_processes_build_one_index_at_once(tmp_path):
    folder, cache = tmp_path / "notes", tmp_path / "cache"
    for i in range(60):
        write(folder, f"n{i:02}", f"# 第 {i} 篇\n\n内容 {i}\n\n## 细节 {i}\n\n更多\n")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, folder, cache],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=pathlib.Path(product.__file__).parent,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONUTF8": "1"},
        )
        for _ in range(3)
    ]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60) for child in children]
    assert outputs == [("120|n37 > 细节 37\n", "")] * 3
    large = stored(folder, cache)
    assert len(large.sections) == 120 and is_stored(large)


@needs_fts5
def test_two_servers_start_on_one_large_folder_at_once(tmp_path):
    """Real processes, as two hosts start them: both answer, from one index file."""
    folder = tmp_path / "notes"
    filler = "这一段只是为了让文件夹够大，没有别的意思。" * 400
    for i in range(90):
        write(folder, f"n{i:02}", f"# 第 {i} 篇\n\n{filler}\n\n## 细节 {i}\n\n更多\n")
    (folder / "gbk.md").write_bytes("国标".encode("gbk"))
    version, client = "2025-06-18", {"name": "t", "version": "1"}
    arguments = {"query": "细节 37", "top_k": 1}
    messages = [
        {"id": 1, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": client}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {
            "name": "search_notes", "arguments": arguments}},
    ]  # fmt: skip
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages)
    environment = {**os.environ, "PYTHONUTF8": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment |= {"LOCALAPPDATA": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    servers = [
        subprocess.Popen(
            [sys.executable, product.__file__, "--mcp-server", "--notes", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", env=environment,
        )
        for _ in range(2)
    ]  # fmt: skip
    for server in servers:
        server.stdin.write(lines)
        server.stdin.flush()
    for server in servers:
        replies = [json.loads(server.stdout.readline()) for _ in range(2)]
        assert "n37 > 细节 37" in replies[1]["result"]["content"][0]["text"]
        server.communicate(timeout=60)
    assert len(list((tmp_path).rglob("notes-*.sqlite"))) == 1


@needs_fts5
def test_a_reader_goes_on_while_another_process_writes(folder, tmp_path):
    reader = stored(folder, tmp_path / "cache")
    before = ids(reader.search("梯度"))
    save_again(folder / "a.md", "# 新\n\n正则化\n")
    seen = []
    writer = stored(
        folder,
        tmp_path / "cache",
        progress=lambda *_: seen.append(ids(reader.search("梯度"))),
    )
    assert ids(writer.search("正则化")) == ["a"]
    assert seen == [before]


@needs_fts5
def test_while_another_process_builds_the_index_one_is_told_so(folder, tmp_path, monkeypatch):
    large = stored(folder, tmp_path / "cache")
    large.search("梯度")
    save_again(folder / "a.md", "# 新\n\n正则化\n")
    monkeypatch.setattr(product, "PATIENCE", 0.01)
    with closing(sqlite3.connect(large.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(ToolError, match="另一个程序正在为这些笔记建索引"):
                late = stored(folder, tmp_path / "cache")
                late.search("正则化")
        other.execute("ROLLBACK")
    assert ids(late.search("正则化")) == ["a"] and is_stored(late)


@needs_fts5
def test_a_query_of_a_thousand_different_characters_is_answered(folder, tmp_path):
    large = stored(folder, tmp_path / "cache")
    query = "".join(map(chr, range(0x4E00, 0x4E00 + 990))) + "梯度"
    assert ids(large.search(query)) == ["a > 梯度消失与梯度爆炸"] and is_stored(large)


@needs_fts5
def test_searches_from_many_threads_share_one_store(folder, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    large = stored(folder, tmp_path / "cache")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ids(large.search("梯度")), range(40)))
    assert found == [found[0]] * 40 and found[0]


# --- where the file lies ---


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "/home/u/.cache/w4d3_tools_mcp"),
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c/w4d3_tools_mcp"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/u/.cache/w4d3_tools_mcp"),
        ("darwin", {"XDG_CACHE_HOME": "/c"}, "/home/u/Library/Caches/w4d3_tools_mcp"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/w4d3_tools_mcp"),
        ("win32", {}, "/home/u/AppData/Local/w4d3_tools_mcp"),
    ],
)
def test_the_cache_is_where_the_system_keeps_caches(platform, variables, expected):
    assert notes_cache(platform, variables, "/home/u") == expected.replace("/", os.sep)


@needs_fts5
def test_the_cache_is_for_its_owner_only(folder, tmp_path):
    large = stored(folder, tmp_path / "deep" / "cache")
    large.search("梯度")
    assert os.name == "nt" or (tmp_path / "deep" / "cache").stat().st_mode & 0o077 == 0


def test_making_an_index_touches_nothing(tmp_path):
    LargeNotesIndex(str(tmp_path / "none"), str(tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []

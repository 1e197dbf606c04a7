"""How well tools are found: our router beside other lexical rankers, on public sets.

    python3 bench_router.py DATA [SET …]

DATA holds SET.tools.jsonl ({"name", "description", "parameters"} a line) and SET.*.jsonl with
requests ({"query", "right": [names]} a line). The others get name and description, as they are
commonly used. Rankers that are not installed are named and left out.
"""

import json
import pathlib
import re
import sys
import time

import w4d3_tools_mcp as w

SETS = ("bfcl", "metatool", "ace_en", "seal", "ace_zh")
COLUMNS = ("r@1", "r@5", "r@10", "MRR", "all@5")
K = 10


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def plain_text(tool):
    return f"{tool['name']} {tool['description']}"


def plain_words(text):
    return re.findall(r"\w+", text.lower())


def our_router(tools):
    router = w.ToolRouter(tools)
    return lambda query: [found.name for found in router.pick(query, K)]


def rank_bm25(tools):
    from rank_bm25 import BM25Okapi

    names = [tool["name"] for tool in tools]
    ranking = BM25Okapi([plain_words(plain_text(tool)) for tool in tools])

    def pick(query):
        scores = ranking.get_scores(plain_words(query))
        return [names[i] for i in sorted(range(len(names)), key=lambda i: -scores[i])[:K]]

    return pick


def bm25s(tools):
    import bm25s as library

    names = [tool["name"] for tool in tools]
    options = {"stopwords": "en", "show_progress": False}
    ranking = library.BM25()
    words = library.tokenize([plain_text(tool) for tool in tools], **options)
    ranking.index(words, show_progress=False)

    def pick(query):
        words = library.tokenize([query], **options)
        found, _ = ranking.retrieve(words, k=min(K, len(names)), show_progress=False)
        return [names[i] for i in found[0]]

    return pick


def sqlite_fts5(tools):
    import sqlite3

    base = sqlite3.connect(":memory:")
    try:
        base.execute("CREATE VIRTUAL TABLE t USING fts5(text, tokenize='porter unicode61')")
    except sqlite3.OperationalError as error:
        raise ImportError(str(error)) from error
    base.executemany("INSERT INTO t VALUES (?)", [(plain_text(tool),) for tool in tools])

    def pick(query):
        words = " OR ".join(f'"{word}"' for word in dict.fromkeys(plain_words(query)))
        rows = base.execute("SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?", (words, K))
        return [tools[row[0] - 1]["name"] for row in rows] if words else []

    return pick


RANKERS = {
    "ToolRouter": our_router,
    "rank_bm25": rank_bm25,
    "bm25s": bm25s,
    "FTS5 porter": sqlite_fts5,
}


def measures(picked, right):
    """(r@1, r@5, r@10, MRR, all@5) of one request."""
    right = set(right)
    share = [len(right & set(picked[:k])) / len(right) for k in (1, 5, 10)]
    first = next((1 / rank for rank, name in enumerate(picked, 1) if name in right), 0.0)
    return *share, first, float(right <= set(picked[:5]))


def run(ranker, tools, requests):
    """Mean measures, seconds to build, milliseconds per request (CPU time)."""
    start = time.process_time()
    pick = ranker(tools)
    built = time.process_time()
    rows = [measures(pick(row["query"]), row["right"]) for row in requests]
    asked = (time.process_time() - built) / len(requests) * 1000
    return [sum(column) / len(rows) for column in zip(*rows)], built - start, asked


def available():
    """The rankers that can run here; the others are named on stderr."""
    for name, ranker in RANKERS.items():
        try:
            ranker([{"name": "probe", "description": "probe", "parameters": {}}])
            yield name, ranker
        except ImportError as error:
            print(f"left out: {name} ({error})", file=sys.stderr)


def main(folder, *sets):
    rankers = list(available())
    print(
        f"{'set':<15} {'tools':>5} {'asked':>5}  {'ranker':<12}",
        *(f"{c:>6}" for c in COLUMNS),
        f"{'build s':>8} {'ms each':>8}",
    )
    means = {name: [] for name, _ in rankers}
    for name in sets or SETS:
        pool = pathlib.Path(folder, f"{name}.tools.jsonl")
        tools = read_lines(pool)
        for file in sorted(set(pathlib.Path(folder).glob(f"{name}.*.jsonl")) - {pool}):
            requests = read_lines(file)
            for label, ranker in rankers:
                values, built, asked = run(ranker, tools, requests)
                means[label].append(values)
                print(
                    f"{file.stem:<15} {len(tools):>5} {len(requests):>5}  {label:<12}",
                    *(f"{value:>6.3f}" for value in values),
                    f"{built:>8.2f} {asked:>8.2f}",
                    flush=True,
                )
    for label, rows in means.items():
        means_of_sets = (sum(column) / len(column) for column in zip(*rows))
        print(f"{'mean':<27}  {label:<12}", *(f"{value:>6.3f}" for value in means_of_sets))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])

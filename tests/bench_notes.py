"""Notes at any size: first index, warm start, queries, memory, disk.

    python3 bench_notes.py FOLDER QUERIES.json

FOLDER holds Markdown files, QUERIES.json a list of
{"query": text}. Each line is a process of its own; the index goes to a directory that is removed.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time


def child(folder, cache, count):
    import w4d3_tools_mcp as w

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    index = w.LargeNotesIndex(folder, cache)
    index.search("KV cache 显存占用 怎么计算")
    first = time.perf_counter() - wall, time.process_time() - cpu
    times = []
    for query in json.loads(sys.stdin.read())[:count]:
        start = time.perf_counter()
        index.search(query)
        times.append((time.perf_counter() - start) * 1000)
    times.sort()
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"first answer {first[0] * 1000:8.0f} ms wall {first[1]:6.2f} s CPU   "
        f"query p50 {times[len(times) // 2]:6.2f} p95 {times[len(times) * 95 // 100]:6.2f} ms   "
        f"memory added {added:5.0f} MB   in memory: {not isinstance(index._notes, w.NotesInStore)}"
    )


def main(folder, cache, queries):
    for label in ("first index", "warm start", "warm again"):
        print(f"{label:<12}", end=" ", flush=True)
        subprocess.run(
            [sys.executable, __file__, "--child", folder, cache],
            input=queries,
            text=True,
            encoding="utf-8",
            check=True,
        )
    size = sum(entry.stat().st_size for entry in os.scandir(cache))
    print(f"on disk {size / 1e6:.0f} MB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4], 200)
    elif len(sys.argv) < 3:
        sys.exit(__doc__)
    else:
        with open(sys.argv[2], encoding="utf-8") as file, tempfile.TemporaryDirectory() as place:
            main(sys.argv[1], place, json.dumps([row["query"] for row in json.load(file)]))

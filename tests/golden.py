"""The transcripts in tests/golden: which commands they come from, and how to write them anew.

Run as a script (`make golden`) it rewrites them; test_golden.py compares. Read the diff before you
commit it: a transcript is what a learner sees.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ROOT / "w4d3_tools_mcp.py"
FOLDER = ROOT / "tests" / "golden"

COMMANDS = {
    "short-help": [],
    "help": ["--help"],
    "demo": ["--demo"],
    "demo-1-json": ["--demo", "1", "--json"],
    "router-demo": ["--router-demo"],
    "mcp-demo": ["--mcp-demo"],
    "schema": ["--schema"],
    "schema-anthropic": ["--schema", "kv_cache_gib", "--format", "anthropic"],
    "schema-gemini": ["--schema", "kv_cache_gib", "--format", "gemini"],
    "schema-mcp": ["--schema", "kv_cache_gib", "search_notes", "--format", "mcp"],
    "lint": ["--schema", "--lint"],
    "lint-own-tools": ["--schema", "hello", "add", "--lint", "--tools", "tests/data/weak_tools.py"],
}


def run(arguments, *, columns=80, cwd=ROOT, **environment):
    """The finished process of one command, with a bare environment and a fixed width.

    Started as a module, which does the same as the script and keeps its compiled code: hundreds of
    starts take a third of the time. Tests about the script as such start it as a script.
    """
    env = {
        "PATH": os.environ.get("PATH", ""),
        "COLUMNS": str(columns),
        "PYTHONUTF8": "1",
        "PYTHONPATH": str(ROOT),
        "SYSTEMROOT": os.environ.get("SYSTEMROOT", ""),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-m", PRODUCT.stem, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def transcript(arguments):
    return run(arguments).stdout.decode("utf-8").replace("\r\n", "\n")


def rewrite_readme():
    """Put today's output below each command in the README whose output is shown in full."""
    path = ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", readme, re.M | re.S))

    def shown(match):
        words = shlex.split(match[1])
        if words[0] != "python3" or "…" in match[2].split("\n"):
            return match[0]
        with tempfile.TemporaryDirectory() as folder:
            for name, source in files.items():
                (Path(folder) / name).write_text(source, encoding="utf-8")
            arguments = [str(Path(folder) / w) if w in files else w for w in words[2:]]
            return f"$ {match[1]}\n{transcript(arguments)}"

    def block(match):
        return re.sub(r"^\$ (.+)\n((?:(?!\$ |```).*\n)*)", shown, match[0], flags=re.M)

    readme = re.sub(r"^```console\n.*?^```", block, readme, flags=re.M | re.S)
    path.write_text(readme, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    for name, arguments in COMMANDS.items():
        (FOLDER / f"{name}.txt").write_text(transcript(arguments), encoding="utf-8", newline="\n")
        print(f"wrote tests/golden/{name}.txt")
    rewrite_readme()
    print("wrote the console blocks of README.md")

"""make bench: our speed as ratios to other libraries, both measured in turn in this one process.

A row: what, ours, the other, the ratio ours / other (median of pairs), the goal for that ratio.
Machines differ and drift; a ratio of two neighbours holds. Nothing here is a test.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple, Optional

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import w4d3_tools_mcp as product  # noqa: E402

PAIRS = 15  # measured in turn: ours, the other, ours, the other …
EXPRESSION = "2*(3+4)**2/sqrt(16)-max(1,2)"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "ratio": {"type": "number"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
GOOD = {"city": "Turku", "unit": "C", "limit": None, "tags": ["a", "b"], "days": 3, "ratio": 0.5}
BAD = {"city": 5, "unit": "K", "limit": "x", "tags": [1], "days": 99, "ratio": "y"}


class Row(NamedTuple):
    what: str
    ours: float  # seconds, or MB
    other_name: str
    other: float
    ratio: float
    goal: str


def make_function():
    """A fresh six-parameter function, so that no cache helps."""

    def forecast(
        city: str,
        days: int,
        unit: Literal["C", "F"] = "C",
        limit: Optional[int] = None,
        tags: list[str] = [],
        ratio: float = 0.5,  # noqa: B006
    ) -> dict:
        """Gives the forecast for a city.

        Args:
            city: Name of the city, for example Turku.
            days: Number of days, 1 to 14.
            unit: Unit of the temperature.
            limit: Most stations to use.
            tags: Words to filter by.
            ratio: Share of stations, 0 to 1.
        """
        return {}

    return forecast


def seconds(work, times):
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begin) / times


def pair(what, goal, ours, other_name, other, times):
    """A row of medians and the median of the pairwise ratios."""
    ours(), other()
    pairs = [(seconds(ours, times), seconds(other, times)) for _ in range(PAIRS)]
    return Row(
        what,
        statistics.median(a for a, _ in pairs),
        other_name,
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
        goal,
    )


def process(code):
    """Run code in a new interpreter; what it imports may keep its bytecode, as for any user."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)


def peak_megabytes(arguments):
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, sys.executable, *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    return float(done.stdout)


def rows():
    """The rows; a library that is not installed leaves its row out and says so."""
    yield pair(
        "import of the file",
        "<= 1.3",
        lambda: process("import w4d3_tools_mcp"),
        "bare python + json",
        lambda: process("import json"),
        1,
    )
    ours, bare = (
        peak_megabytes([str(ROOT / "w4d3_tools_mcp.py"), "--schema"]),
        peak_megabytes(["-c", "import json"]),
    )
    yield Row("peak MB of --schema", ours, "bare python + json", bare, ours / bare, "< 20 MB")
    try:
        from transformers.utils import get_json_schema

        yield pair(
            "function_to_schema",
            "<= 1.5",
            lambda: product.function_to_schema(make_function()),
            "transformers",
            lambda: get_json_schema(make_function()),
            40,
        )
    except ImportError:
        print("transformers is not installed: its row is left out")
    try:
        import pydantic

        yield pair(
            "function_to_schema",
            "",
            lambda: product.function_to_schema(make_function()),
            "bare pydantic TypeAdapter",
            lambda: pydantic.TypeAdapter(make_function()).json_schema(),
            10,
        )
    except ImportError:
        print("pydantic is not installed: its row is left out")
    try:
        import jsonschema

        validator = jsonschema.Draft202012Validator(SCHEMA)
        yield pair(
            "validate, valid",
            "<= 0.25",
            lambda: product.validate_arguments(GOOD, SCHEMA),
            "jsonschema",
            lambda: list(validator.iter_errors(GOOD)),
            200,
        )
        yield pair(
            "validate, six faults",
            "",
            lambda: product.validate_arguments(BAD, SCHEMA),
            "jsonschema",
            lambda: [e.message for e in validator.iter_errors(BAD)],
            100,
        )
    except ImportError:
        print("jsonschema is not installed: its rows are left out")
    try:
        import math

        import simpleeval

        names = {"sqrt": math.sqrt, "max": max}
        yield pair(
            "safe_eval",
            "<= 2",
            lambda: product.safe_eval(EXPRESSION),
            "simpleeval",
            lambda: simpleeval.simple_eval(EXPRESSION, functions=names),
            200,
        )
    except ImportError:
        print("simpleeval is not installed: its row is left out")


def fastmcp_row():
    """Tools made of functions by pydantic's TypeAdapter, as fastmcp does; runs in its own folder."""
    from fastmcp.tools import Tool

    return pair(
        "function_to_schema",
        "<= 0.125",
        lambda: product.function_to_schema(make_function()),
        "fastmcp (TypeAdapter)",
        lambda: Tool.from_function(make_function()),
        10,
    )


def shown(value, what):
    return f"{value:.1f} MB" if "MB" in what else f"{value * 1e6:,.1f} us"


if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, medians of {PAIRS} pairs")
    lines = [("what", "ours", "against", "theirs", "ours/theirs", "goal")]
    for r in [fastmcp_row()] if "fastmcp" in sys.argv else rows():
        lines.append(
            (
                r.what,
                shown(r.ours, r.what),
                r.other_name,
                shown(r.other, r.what),
                f"{r.ratio:.2f}",
                r.goal,
            )
        )
    print("\n".join(product.table(lines, right=[1, 3, 4])))
    if "--json" in sys.argv:
        print(json.dumps(lines))

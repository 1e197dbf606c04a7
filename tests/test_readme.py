"""The README's console blocks are run; what they show is what the commands print.

A line that holds only `…` stands for any number of lines. `make` commands are checked to exist.
"""

import re
import shlex

import pytest
from golden import ROOT, run

README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", README, re.M | re.S)
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", README, re.M | re.S))


def steps():
    for block in BLOCKS:
        for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.M):
            yield command, shown


STEPS = list(steps())


def matches(shown, printed):
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line) + r"\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("command, shown", [s for s in STEPS if s[0].startswith("python3 ")])
def test_the_readme_shows_what_the_command_prints(command, shown, tmp_path):
    for name, source in FILES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    words = shlex.split(command)
    assert words[1] in ("w4d3_tools_mcp.py", "w4day3_checks.py")
    assert words[1] == "w4d3_tools_mcp.py" and (ROOT / words[1]).exists()
    done = run([word if word not in FILES else str(tmp_path / word) for word in words[2:]])
    assert done.returncode == 0, done.stderr.decode()
    printed = done.stdout.decode("utf-8").replace("\r\n", "\n")
    assert not shown or matches(shown, printed), printed


@pytest.mark.parametrize("command", [c for c, _ in STEPS if c.startswith("make ")])
def test_the_readme_names_targets_that_exist(command):
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert command.split()[1] in targets


def test_the_readme_has_blocks_and_starts_with_the_two_commands():
    assert len(STEPS) >= 5
    commands = [command for command, _ in STEPS]
    assert commands[:2] == ["python3 w4d3_tools_mcp.py --demo", "make test"]


def test_every_command_and_option_is_in_the_readme():
    import w4d3_tools_mcp as product

    assert [r.flag for r in (*product.COMMANDS, *product.OPTIONS) if r.flag not in README] == []

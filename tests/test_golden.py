"""What each command prints, compared with its transcript; `make golden` rewrites them."""

import pytest
from golden import COMMANDS, FOLDER, transcript


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_prints_its_transcript(name):
    expected = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert transcript(COMMANDS[name]) == expected


def test_every_transcript_belongs_to_a_command():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(COMMANDS)

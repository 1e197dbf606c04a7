"""§21: the real program as a child process: exit codes, one-line errors, encodings, terminals."""

import codecs
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import unicodedata

import pytest
from golden import COMMANDS, PRODUCT, ROOT, run

import w4d3_tools_mcp as product

TRACEBACK = b"Traceback"


def text(raw):
    return raw.decode("utf-8")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--nonsense"], "不认识 --nonsense"),
        (["--dmo"], "是不是想写 --demo"),
        (["--dem"], "是不是想写 --demo"),
        (["hello"], "不认识 hello"),
        (["--demo", "--schema"], "不能同时用"),
        (["--demo", "9"], "没有场景 9"),
        (["--demo", "0"], "没有场景 0"),
        (["--demo", "-1"], "没有场景 -1"),
        (["--demo", "一"], "没有场景 一"),
        (["--demo", "1.5"], "没有场景 1.5"),
        (["--demo", ""], "没有场景"),
        (["--schema", "calculater"], "是不是想写 calculator"),
        (["--schema", "zzz"], "可用：calculator"),
        (["--schema", "--format", "xml"], "可选：openai"),
        (["--schema", "--format"], "--format 后面要跟一个值"),
        (["--schema", "--lint=yes"], "--lint 不带值"),
        (["--lint"], "--lint 要和 --schema 一起用"),
        (["--demo", "--format", "openai"], "--format 要和 --schema 一起用"),
        (["--json"], "--json 要和"),
        (["--schema", "--tools", "no_such_file.py"], "no_such_file.py"),
        (["--schema", "--tools", "."], "--tools"),
        (["--schema", "--tools", ""], "--tools"),
        (["--schema", "--tools", "README.md"], "--tools"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments, said):
    done = run(arguments)
    assert done.returncode == 2 and done.stdout == b""
    message = text(done.stderr)
    assert said in message and message.count("\n") == 1 and TRACEBACK not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["--version"], *COMMANDS.values()])
def test_good_commands_exit_0_and_leave_stderr_empty(arguments):
    done = run(arguments)
    assert (done.returncode, done.stderr) == (0 if "weak" not in str(arguments) else 0, b"")


@pytest.mark.parametrize("width", [48, 60, 80, 100, 120, 300])
@pytest.mark.parametrize("arguments", [["--demo"], ["--schema", "--lint"]])
def test_no_line_is_wider_than_the_terminal(arguments, width):
    lines = text(run(arguments, columns=width).stdout).splitlines()
    assert max(map(product.columns, lines)) <= min(width, 120)


def test_help_fits_in_100_columns_and_names_every_flag():
    shown = text(run(["--help"]).stdout)
    assert max(map(product.columns, shown.splitlines())) <= 100
    for row in (*product.COMMANDS, *product.OPTIONS):
        assert f"  {row.flag}" in shown
    assert shown.count("  python3 w4d3_tools_mcp.py --") >= 3


@pytest.mark.parametrize("encoding", ["gbk", "cp936", "utf-8", "ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize(
    "arguments", [["--demo"], ["--help"], ["--schema", "--lint"], ["--nonsense"]]
)
def test_every_console_encoding_works(arguments, encoding):
    done = run(arguments, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode in (0, 2) and TRACEBACK not in done.stderr
    assert done.stdout or done.stderr


@pytest.mark.parametrize(
    "arguments", [["--demo"], ["--help"], ["--schema", "--lint"], ["--demo", "9"]]
)
def test_nothing_is_lost_on_a_gbk_console(arguments):
    plain, gbk = run(arguments), run(arguments, PYTHONIOENCODING="gbk", PYTHONUTF8="0")
    typed = text(plain.stdout).encode("gbk", "typed_instead").decode("gbk")
    assert gbk.stdout.decode("gbk") == typed and "?" not in typed.replace(" ?", "")
    assert gbk.stderr.decode("gbk") == text(plain.stderr)


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "zh_CN.UTF-8"}, {"LANG": "en_US.UTF-8"}, {}]
)
def test_every_locale_works(locale):
    done = run(["--demo", "1"], PYTHONUTF8="0", **locale)
    assert done.returncode == 0 and TRACEBACK not in done.stderr


def on_a_terminal(arguments, **environment):
    """What the program writes to a real terminal (a pty)."""
    leader, follower = pty.openpty()
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", "PYTHONUTF8": "1", **environment}
    child = subprocess.Popen(
        [sys.executable, str(PRODUCT), *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=env,
        cwd=ROOT,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert child.wait(20) == 0
    os.close(leader)
    return shown


def test_colour_only_on_a_terminal_that_wants_it():
    assert b"\x1b[" in on_a_terminal(["--demo", "1"])
    assert b"\x1b[" not in on_a_terminal(["--demo", "1"], NO_COLOR="1")
    assert b"\x1b[" not in on_a_terminal(["--demo", "1"], TERM="dumb")
    assert b"\x1b[" not in run(["--demo", "1"]).stdout


def test_a_reader_that_leaves_early_is_no_error():
    child = subprocess.Popen(
        [sys.executable, str(PRODUCT), "--demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr.read() == b"" and child.wait(20) == 0
    child.stderr.close()


def test_the_file_alone_in_an_empty_folder_still_teaches(tmp_path):
    shutil.copy(PRODUCT, tmp_path)
    done = subprocess.run(
        [sys.executable, PRODUCT.name, "--demo"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "4.0 GiB" in done.stdout and "没有" in done.stdout and str(tmp_path) not in done.stdout


def user_file(tmp_path, source, name="my_tools.py"):
    path = tmp_path / name
    path.write_text(source, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "source, line, reason",
    [
        ("def f(:\n    pass\n", 1, "SyntaxError"),
        ("x = 1\nimport no_such_module_here\n", 2, "no_such_module_here"),
        ("x = 1\n\ny = 1 / 0\n", 3, "ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
        ("def silent(n: int):\n    return n\n", 1, "silent"),
        ("\ndef odd(n: 'Nowhere'):\n    '''说明，返回 n。'''\n", 2, "Nowhere"),
        ("def calculator(n: int):\n    '''说明，返回 n。'''\n", 1, "calculator"),
        ("def 工具(n: int):\n    '''说明，返回 n。'''\n", 1, "名字"),
        ("_private = 1\n", None, "没有公开的函数"),
        ("", None, "没有公开的函数"),
    ],
)
def test_a_broken_tools_file_names_file_line_and_reason(tmp_path, source, line, reason):
    done = run(["--schema", "--tools", user_file(tmp_path, source)])
    message = text(done.stderr)
    assert done.returncode == 2 and done.stdout == b"" and message.count("\n") == 1
    assert "my_tools.py" in message and reason in message
    assert line is None or f"第 {line} 行" in message


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00", b"x = '\xff'\n", b"\x00\x01\x02"])
def test_a_tools_file_that_is_no_text_is_one_message(tmp_path, raw):
    path = tmp_path / "my_tools.py"
    path.write_bytes(raw)
    done = run(["--schema", "--tools", str(path)])
    assert done.returncode == 2 and text(done.stderr).count("\n") == 1


TRAINING = '''
def train_flops(num_params: float, num_tokens: float) -> dict:
    """估算训练一个模型要多少算力（6·N·D），返回 FLOPs 的总数。

    Args:
        num_params: 参数量 N，例如 8e9。
        num_tokens: 训练的 token 数 D，例如 15e12。
    """
    print("a stray print")
    return {"FLOPs": 6 * num_params * num_tokens}

print("another at import")
'''


def test_an_own_tool_shows_its_schema_and_its_prints_stay_out_of_the_json(tmp_path):
    done = run(["--schema", "train_flops", "--tools", user_file(tmp_path, TRAINING)])
    function = json.loads(done.stdout)[0]["function"]
    assert function["parameters"]["required"] == ["num_params", "num_tokens"]
    assert done.returncode == 0 and b"another at import" in done.stderr


def test_an_own_file_may_use_the_products_classes(tmp_path):
    source = (
        "from w4d3_tools_mcp import ToolError\n"
        "def f(n: int):\n    '''说明，返回 n。'''\n    raise ToolError('不行')\n"
    )
    assert run(["--schema", "f", "--tools", user_file(tmp_path, source)]).returncode == 0


def test_imported_names_classes_and_private_functions_are_no_tools(tmp_path):
    source = (
        "from math import sqrt\nfrom json import dumps\nclass C: pass\n"
        "def _p(): pass\ndef mine():\n    '''说明，返回空。'''\n"
    )
    shown = json.loads(run(["--schema", "--tools", user_file(tmp_path, source)]).stdout)
    assert [t["function"]["name"] for t in shown][4:] == ["mine"]


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["calculator", '{"expression": "17*23+4"}'], 0, "395"),
        (["search_notes", '{"query": "GRPO", "top_k": 1}'], 0, "Week 3 Day 3"),
        (["kv_cache_gib", '{"num_layers": "8k"}'], 1, '收到的是 "8k"'),
        (["calculator", "{oops"], 1, "参数不合格"),
        (["calculator"], 1, "缺少必填参数 expression"),
        (["calculator", '{"expression": "1/0"}'], 1, "除以零"),
        (["calculater", "{}"], 2, "是不是想写 calculator"),
        ([], 2, "--call 后面至少要跟一个值"),
    ],
)
def test_a_tool_can_be_called_by_hand(arguments, code, said):
    done = run(["--call", *arguments])
    assert done.returncode == code and said in text(done.stdout + done.stderr)
    assert bool(done.stdout) is (code == 0)


def test_debug_shows_the_traceback_that_users_do_not_see(tmp_path, monkeypatch):
    code = (
        "import sys, w4d3_tools_mcp as p\n"
        "def broken(args, style): raise RuntimeError('inside /home/me/x/y.py')\n"
        "p.COMMANDS = (p.Command('--demo', '[N …]', '', broken),)\n"
        "sys.exit(p.main(['--demo']))"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONUTF8": "1"}
    quiet = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True)
    loud = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**env, "W4D3_DEBUG": "1"},
        capture_output=True,
    )
    assert quiet.returncode == 1 and TRACEBACK not in quiet.stderr and b"/home" not in quiet.stderr
    assert TRACEBACK in loud.stderr


@pytest.mark.parametrize("folder", ["no/such/folder", "README.md"])
def test_a_missing_notes_folder_is_a_clear_message_in_the_demo(folder):
    done = run(["--demo", "2", "--notes", folder])
    assert TRACEBACK not in done.stderr and done.returncode in (0, 2)
    assert re.search("notes|讲义", text(done.stdout + done.stderr))


def test_output_has_no_emoji_and_no_control_characters():
    for arguments in (["--demo"], ["--help"], ["--schema", "--lint"]):
        shown = text(run(arguments).stdout)
        assert not [
            c
            for c in shown
            if unicodedata.category(c) in ("So", "Cc", "Co") and c not in "\n①②③④⑤⑥⑦⑧⑨⑩─"
        ]

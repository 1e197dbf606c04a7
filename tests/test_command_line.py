"""§21: the real program as a child process: exit codes, one-line errors, encodings, terminals."""

import json
import os
import pty
import re
import shutil
import signal
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
        (["--demo", "9"], "--demo 不能是 9"),
        (["--demo", "0"], "--demo 不能是 0"),
        (["--demo", "-1"], "--demo 不能是 -1"),
        (["--demo", "一"], "--demo 不能是 一"),
        (["--demo", "1.5"], "--demo 不能是 1.5"),
        (["--demo", ""], "--demo 不能是"),
        (["--schema", "calculater"], "是不是想写 calculator"),
        (["--schema", "zzz"], "可用：calculator"),
        (["--call", "zzz", "{}"], "；自己写的工具要加 --tools FILE.py"),
        (["--mcp-config", "Cloude"], "不能是 Cloude"),
        (["--schema", "--format", "xml"], "可选：openai"),
        (["--schema", "--format"], "--format 后面要跟一个值"),
        (["--schema", "--lint=yes"], "--lint 后面不用写值"),
        (["--lint"], "--lint 要和 --schema 一起用"),
        (["--demo", "--format", "openai"], "--format 要和 --schema 一起用"),
        (["--json"], "--json 要和"),
        (["--schema", "--tools", "no_such_file.py"], "no_such_file.py"),
        (["--schema", "--tools", "."], "--tools"),
        (["--schema", "--tools", ""], "--tools"),
        (["--schema", "--tools", "README.md"], "不是 Python 文件"),
        (["--schema", "--tools", "notes"], "这是文件夹"),
        (["--schema", "--tools", "no/such.py"], "没有这个文件"),
        (["--demo", "--notes", "no/such/folder"], "没有这个文件夹"),
        (["--demo", "--notes", "README.md"], "没有这个文件夹"),
        (["--mcp-server", "--notes", "no/such/folder"], "没有这个文件夹"),
        (["--mcp-config", "--notes", "no/such/folder"], "没有这个文件夹"),
        (["--demo", "--notes", "tests/golden"], "没有可读的 .md 文件"),
        (["--demo", "--notes", ""], "--notes 后面的值是空的"),
        (["--ask", "x", "--base-url", " "], "--base-url 后面的值是空的"),
        (["--ask", "x", "--key", ""], "--key 后面的值是空的"),
        (["--models", "--key="], "--key 后面的值是空的"),
        (["--router-demo", ""], "--router-demo 后面的值是空的"),
        (["--router-demo= "], "--router-demo 后面的值是空的"),
        (["--demo", "9" * 5000], "--demo 不能是 999"),
        (["--demo", "\x1b[2J\n"], "--demo 不能是 \\u001b[2J"),
        (["--demo", "1", "--demo", "2"], "--demo 写了两次"),
        (["--schema", "--schema"], "--schema 写了两次"),
        (["--schema", "--format", "mcp", "--format", "gemini"], "--format 只能有一个值"),
        (["--demo", "--notes", "notes", "--notes", "notes"], "--notes 只能有一个值"),
        (["--schema", "--lint", "--format", "mcp"], "--lint 和 --format 不能同时用"),
        (["--ask", "x", "--route", "3", "--no-route"], "不能同时用"),
        (["--ask", "x", "-q", "-v"], "不能同时用"),
        (["--ask", "x", "--trace-args"], "--trace-args 要和 --trace"),
        (["1", "--demo"], "不认识 1"),
        (["--ask", "two", "words"], "有空格时请加引号"),
        (["--mcp-doctor", "python3", "x.py"], "--mcp-doctor -- python3 …"),
        (["--mcp-demo", "npx", "-y", "x"], "--mcp-demo -- npx …"),
        (["--mcp-doctor", "--jsn"], "是不是想写 --json"),
        (["--mcp-server", "x"], "--mcp-server 后面不用写值"),
        (["--schema", "--format", "--lint"], "--format 后面要跟一个值"),
        (["--ask", "--model", "m"], "--ask 后面要跟一个值"),
        (["--mcp-config", "cursr"], "可选：all、claude"),
        (["--ask", "x", "--max-turns", "9" * 5000], "--max-turns 要大于 0 的整数"),
        (["--ask", "x", "--timeout", "nan"], "--timeout 要大于 0 的数"),
        (["--schema", "--", "x"], "-- 后面的命令 要和 --mcp-demo"),
        (["--hlep"], "是不是想写 --help"),
        (["demo"], "是不是想写 --demo"),
        (["help"], "是不是想写 --help"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments, said):
    done = run(arguments)
    assert done.returncode == 2 and done.stdout == b""
    message = text(done.stderr)
    assert said in message and message.count("\n") == 1 and TRACEBACK not in done.stderr


@pytest.mark.parametrize(
    "arguments, same_as",
    [
        (["--demo", "--json", "3"], ["--demo", "3", "--json"]),
        (["--demo", "1", "--json", "2"], ["--demo", "1", "2", "--json"]),
        (["--json", "--demo", "3"], ["--demo", "3", "--json"]),
        (["--demo=1", "--json", "--json"], ["--demo", "1", "--json"]),
        (
            ["--schema", "--format", "anthropic", "kv_cache_gib"],
            ["--schema", "kv_cache_gib", "--format", "anthropic"],
        ),
        (
            ["--format=mcp", "--schema", "read_note", "--tools", "tests/data/weak_tools.py", "add"],
            ["--schema", "read_note", "add", "--tools=tests/data/weak_tools.py", "--format", "mcp"],
        ),
        (
            ["--mcp-config", "--notes", "notes", "claude"],
            ["--mcp-config", "claude", "--notes=notes"],
        ),
        (["--router-demo", "--notes", "notes", "天气"], ["--router-demo", "天气"]),
        (["--mcp-config", "Cursor"], ["--mcp-config", "cursor"]),
        (["--schema", "--format", "OpenAI"], ["--schema"]),
        (
            ["--call", "calculator", '{"expression":', '"-1"}'],
            ["--call", "calculator", '{"expression": "-1"}'],
        ),
        (["--demo", "--help"], ["--help"]),
        (["--mcp-demo", "--version", "--", "x", "--help"], ["--version"]),
    ],
)
def test_words_and_options_may_stand_in_any_order(arguments, same_as):
    done, plain = run(arguments), run(same_as)
    assert (done.returncode, done.stdout) == (0, plain.stdout) and plain.stdout


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["--version"], *COMMANDS.values()])
def test_good_commands_exit_0_and_leave_stderr_empty(arguments):
    done = run(arguments)
    assert (done.returncode, done.stderr) == (0 if "weak" not in str(arguments) else 0, b"")


@pytest.mark.parametrize("width", [48, 60, 80, 100, 120, 300])
@pytest.mark.parametrize("arguments", [["--demo"], ["--schema", "--lint"]])
def test_no_line_is_wider_than_the_terminal(arguments, width):
    lines = text(run(arguments, columns=width).stdout).splitlines()
    assert max(map(product.columns, lines)) <= min(width, 120)


LONG_REQUEST = (
    "我想知道 KV Cache 的长度和 batch head dim 很大的时候显存占多少字节 layers sequence\n" * 3
)


@pytest.mark.parametrize("request_", [LONG_REQUEST, "x" * 500, "很" * 500])
def test_a_long_request_to_route_fits_in_80_columns(request_):
    shown = text(run(["--router-demo", request_], columns=80).stdout)
    title, *lines = shown.splitlines()
    assert title.endswith("─") and max(map(product.columns, (title, *lines))) <= 80
    rows = lines[1 : lines.index("")] if "" in lines else []
    assert all(row.startswith(f"   {rank}  ") for rank, row in enumerate(rows, 1))


def test_the_tools_of_the_router_demo_stand_in_the_order_of_their_rank():
    router = product.ToolRouter(product.catalogue_tools(product.built_in_tools()))
    ranked = [routed.name for routed in router.pick(product.KV_QUESTION, 5)]
    shown = "".join(text(run(["--router-demo"]).stdout).split())
    assert f"最合适的在前：{'、'.join(ranked)}）" in shown


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


def on_a_terminal(arguments, *, code=0, **environment):
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
    assert child.wait(20) == code
    os.close(leader)
    return shown


def test_colour_only_on_a_terminal_that_wants_it():
    assert b"\x1b[" in on_a_terminal(["--demo", "1"])
    assert b"\x1b[" not in on_a_terminal(["--demo", "1"], NO_COLOR="1")
    assert b"\x1b[" not in on_a_terminal(["--demo", "1"], TERM="dumb")
    assert b"\x1b[" not in run(["--demo", "1"]).stdout


def test_the_doctor_counts_the_seconds_on_a_terminal():
    slow = ["--mcp-doctor", "--", sys.executable, "-c", "import time; time.sleep(1.5)"]
    assert "正在体检 1 秒" in on_a_terminal(slow, code=1).decode("utf-8")


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


@pytest.mark.parametrize(
    "arguments, shown, lacking",
    [
        (["--demo"], "4.0 GiB", True),
        (["--mcp-config"], "mcpServers", True),
        (["--mcp-config", "--notes", "."], "mcpServers", False),
        (["--call", "calculator", '{"expression": "6*7"}'], "42", False),
    ],
)
def test_the_file_alone_teaches_and_says_what_it_lacks(tmp_path, arguments, shown, lacking):
    shutil.copy(PRODUCT, tmp_path)
    (tmp_path / "my.md").write_text("# 甲\n\n乙\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, PRODUCT.name, *arguments],
        cwd=tmp_path,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0 and shown in text(done.stdout)
    assert text(done.stderr).count("没有 notes 文件夹") == text(done.stderr).count("\n") == lacking


def user_file(tmp_path, source, name="my_tools.py"):
    path = tmp_path / name
    path.write_text(source, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "source, line, reason",
    [
        ("def f(:\n    pass\n", 1, "（SyntaxError）："),
        ("x = 1\nimport no_such_module_here\n", 2, "没有安装模块 no_such_module_here"),
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


@pytest.mark.parametrize("encoding", ["gbk", "utf-16"])
@pytest.mark.parametrize("source", ["def f():\n    return '说明'\n", "x = '中文'\n"])
def test_a_tools_file_in_another_encoding_is_told_to_be_utf_8(tmp_path, encoding, source):
    path = tmp_path / "my_tools.py"
    path.write_bytes(source.encode(encoding))
    done = run(["--schema", "--tools", str(path)])
    assert text(done.stderr).endswith("：不是 UTF-8，请另存为 UTF-8\n") and done.returncode == 2


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
        (["calculator", "{oops"], 1, "（参数的写法：--schema calculator）"),
        (["calculator", "17*23+4"], 1, '。例如 \'{"expression": "17*23+4"}\'（'),
        (["calculator", "{expression: 1+1}"], 1, '，PowerShell 5.1 里要写成 \\" 而不是 "（'),
        (["calculator", '{\\"expression\\": 1}'], 1, '“{\\"expression\\":” 附近，键要用英文双引号'),
        (["calculator", '{"expression": 1}'], 1, "请改正后重新调用。（参数的写法"),
        (["calculator"], 1, "缺少必填参数 expression"),
        (["calculator"], 1, "参数的写法：--schema calculator"),
        (["calculator", '{"expression": "1/0"}'], 1, "除以零"),
        (["calculater", "{}"], 2, "是不是想写 calculator"),
        ([], 2, "--call 后面要跟一个值"),
    ],
)
def test_a_tool_can_be_called_by_hand(arguments, code, said):
    done = run(["--call", *arguments])
    assert done.returncode == code and said in text(done.stdout + done.stderr)
    assert bool(done.stdout) is (code == 0)


def test_the_hint_after_a_wrong_call_repeats_the_tools_files(tmp_path):
    (folder := tmp_path / "my tools").mkdir()
    path = user_file(folder, TRAINING)
    done = run(["--call", "train_flops", "{}", "--tools", path])
    assert text(done.stderr).endswith(f'（参数的写法：--schema train_flops --tools "{path}"）\n')
    assert "--tools FILE.py" not in text(run(["--schema", "zzz", "--tools", path]).stderr)


def test_a_server_on_a_terminal_says_what_it_waits_for_and_one_on_a_pipe_nothing():
    assert run(["--mcp-server"]).stderr == b""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, str(PRODUCT), "--mcp-server"],
        stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
    )  # fmt: skip
    said = text(child.stderr.readline())
    assert "在等主机" in said and "按 Ctrl-C 结束" in said
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20) == (b"", b"")
    os.close(leader)
    os.close(follower)


def test_debug_shows_the_traceback_that_users_do_not_see(tmp_path, monkeypatch):
    code = (
        "import sys, w4d3_tools_mcp as p\n"
        "def broken(args, style): raise RuntimeError('inside /home/me/x/y.py')\n"
        "p.COMMANDS = (p._flag('--demo', '[N …]', '', run=broken),)\n"
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


def test_output_has_no_emoji_and_no_control_characters():
    for arguments in (["--demo"], ["--help"], ["--schema", "--lint"]):
        shown = text(run(arguments).stdout)
        assert not [
            c
            for c in shown
            if unicodedata.category(c) in ("So", "Cc", "Co") and c not in "\n①②③④⑤⑥⑦⑧⑨⑩─"
        ]


# --- the user's notes ---


def test_notes_that_were_left_out_are_told_and_the_rest_is_used(tmp_path):
    (tmp_path / "good.md").write_text("# GRPO\n\nGRPO 的组内优势。\n", encoding="utf-8")
    (tmp_path / "latin.md").write_bytes(b"# caf\xe9\n")
    found = run(["--call", "search_notes", '{"query": "GRPO"}', "--notes", str(tmp_path)])
    assert found.returncode == 0 and "组内优势" in text(found.stdout)
    assert "latin.md" in text(found.stderr) and text(found.stderr).count("\n") == 1


# --- the user's tools ---

DOC = "\n    '''说明，返回 n。'''\n    return n\n"
INNER = DOC.replace("\n", "\n    ")


@pytest.mark.parametrize(
    "source, names",
    [
        (f"def f(n: int):{DOC}g = f\n", ["f"]),
        (f"import typing\nU = typing.NewType('U', int)\ndef f(n: U):{DOC}", ["f"]),
        (f"import typing\nT = typing.TypeVar('T', bound=int)\ndef f(n: int):{DOC}", ["f"]),
        (f"def f(n: int):{DOC}def g(n: int):{DOC}__all__ = ['g']\n", ["g"]),
        (f"__all__ = ('_f', 'C')\nclass C: pass\ndef _f(n: int):{DOC}", ["_f"]),
        (f"def f(n: int):{DOC}__all__ = None\n", ["f"]),
        (f"import functools\n@functools.cache\ndef f(n: int):{DOC}", ["f"]),
        (
            "import functools\ndef _deco(fn):\n    @functools.wraps(fn)\n"
            "    def inner(*a, **k):\n        return fn(*a, **k)\n    return inner\n"
            f"@_deco\ndef f(n: int):{DOC}",
            ["f"],
        ),
        (
            f"def _twice(fn):\n    def inner(n: int):{INNER}\n    return inner\n"
            "@_twice\ndef f(n): pass\n@_twice\ndef g(n): pass\n",
            ["f", "g"],
        ),
        (f"class C:\n    @staticmethod\n    def s(n: int):{INNER}\ng = C.s\n", ["g"]),
        (f"class C:\n    def m(self, n: int):{INNER}\ng = C().m\n", ["g"]),
        (f"from math import sqrt\nsmall = lambda x: x\ndef f(n: int):{DOC}", ["f"]),
        (f"async def f(n: int):{DOC}", ["f"]),
        (f"def f(n: int):{DOC}f.tool = {{'name': 'other'}}\n", ["other"]),
    ],
)
def test_public_functions_and_nothing_else_become_tools(tmp_path, source, names):
    done = run(["--schema", "--tools", user_file(tmp_path, source)])
    assert done.returncode == 0, text(done.stderr)
    assert [t["function"]["name"] for t in json.loads(done.stdout)][4:] == names


def test_a_decorator_from_elsewhere_that_hides_the_function_is_told(tmp_path):
    user_file(tmp_path, "def hide(fn):\n    def inner(*a): pass\n    return inner\n", "deco.py")
    path = user_file(tmp_path, f"from deco import hide\n@hide\ndef f(n: int):{DOC}")
    done = run(["--schema", "--tools", path])
    assert done.returncode == 2 and "functools.wraps" in text(done.stderr)


BAD = "def f(n: int):\n    '''说明，返回 n。'''\n"


@pytest.mark.parametrize(
    "source, said",
    [
        ("import sys\nsys.exit()", "SystemExit"),
        ("exit()", "SystemExit"),
        ("raise BaseException('no')", "BaseException: no"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        (f"{BAD}f.__wrapped__ = f", "第 1 行"),
        (f"{BAD}f.tool = 5", "第 1 行"),
        (f"{BAD}f.tool = {{'colour': 1}}", "第 1 行"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "第 3 行"),
        ("raise ValueError('a\\nb' * 9999)", "ValueError: a b"),
        ("__all__ = ['missing']", "missing"),
        ("def f(): f()\nf()", "RecursionError"),
        ("print(1, flush=True)\nimport os\nos.write(1, b'raw')\n1/0", "第 4 行"),
        ("import sys\nsys.stdout = sys.stderr = None\n1/0", "第 3 行"),
        ("import sys\nsys.stdout.close()\n1/0", "第 3 行"),
    ],
)
def test_a_tools_file_that_goes_astray_is_one_sentence(tmp_path, source, said):
    path = user_file(tmp_path, source + "\n")
    done = run(["--schema", "--tools", path])
    last = text(done.stderr).splitlines()[-1]
    assert done.returncode == 2 and done.stdout == b"" and TRACEBACK not in done.stderr
    assert "my_tools.py" in last and said in last and "--tools" in last


def test_an_error_in_an_imported_helper_names_that_file_and_line(tmp_path):
    path = user_file(tmp_path, "\n\nimport helper\n")
    for source, line in [("x = (\n", 1), ("\nimport json\njson.loads('{')\n", 3)]:
        user_file(tmp_path, source, "helper.py")
        done = run(["--schema", "--tools", path])
        assert f"helper.py 第 {line} 行" in text(done.stderr) and done.returncode == 2


def test_helpers_beside_the_file_are_found_when_a_tool_runs(tmp_path):
    user_file(tmp_path, "value = 42\n", "late_helper.py")
    user_file(tmp_path, "raise ValueError('not the real one')\n", "queue.py")
    source = (
        "def f() -> int:\n    '''说明，返回数。'''\n    import late_helper, queue\n"
        "    return late_helper.value\n"
    )
    done = run(["--call", "f", "--tools", user_file(tmp_path, source)])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")


def test_two_files_of_one_name_and_one_file_twice(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        source = (
            "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\n"
            f"class {folder.upper()}:\n    n: int\n"
            f"def {folder}(x: {folder.upper()}):\n    '''说明，返回空。'''\n"
        )
        user_file(tmp_path / folder, source)
    files = [str(tmp_path / name / "my_tools.py") for name in "aba"]
    done = run(["--schema", *(word for path in files for word in ("--tools", path))])
    assert [t["function"]["name"] for t in json.loads(done.stdout)][4:] == ["a", "b"]


def test_a_users_tool_may_have_the_name_of_a_scenarios(tmp_path):
    path = user_file(
        tmp_path, "def gpu_memory(host: str):\n    '''说明，返回空。'''\n    return 1\n"
    )
    assert run(["--demo", "5", "--tools", path]).stdout == run(["--demo", "5"]).stdout


def test_what_a_tool_prints_stays_off_stdout(tmp_path):
    source = (
        "import os, subprocess, sys\ndef f() -> str:\n    '''说明，返回字。'''\n"
        "    print('printed')\n    os.write(1, b'written\\n')\n"
        "    subprocess.run([sys.executable, '-c', 'print(5)'])\n    return 'result'\n"
    )
    done = run(["--call", "f", "--tools", user_file(tmp_path, source)])
    assert (done.returncode, done.stdout) == (0, b"result\n")
    assert sorted(text(done.stderr).split()) == ["5", "printed", "written"]


@pytest.mark.parametrize(
    "body, said",
    [
        ("import time; time.sleep(99)", "0.2 秒内没有返回"),
        ("while True: pass", "0.2 秒内没有返回"),
        ("while True: print('x' * 1000)", "0.2 秒内没有返回"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt|中断"),
    ],
)
def test_a_call_has_the_tools_own_limit(tmp_path, body, said):
    source = f"def f():\n    '''说明，返回空。'''\n    {body}\nf.tool = {{'seconds': 0.2}}\n"
    done = run(["--call", "f", "--tools", user_file(tmp_path, source)])
    assert (done.returncode, done.stdout) == (1, b"") and TRACEBACK not in done.stderr
    assert re.search(said, text(done.stderr)[-300:])


def test_one_ctrl_c_ends_a_call_quietly(tmp_path):
    source = (
        "import time\ndef f():\n    '''说明，返回空。'''\n    print('begun', flush=True)\n"
        "    time.sleep(99)\n"
    )
    child = subprocess.Popen(
        [sys.executable, str(PRODUCT), "--call", "f", "--tools", user_file(tmp_path, source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert child.stderr.readline() == b"begun\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20) == (b"", b"") and child.returncode == 130


def test_ctrl_c_while_the_file_is_read_leaves_no_traceback():
    """The signal arrives at the first class that the file defines."""
    code = (
        "import os, runpy, signal, sys\n"
        "def watch(frame, event, arg):\n"
        "    if frame.f_code.co_name == 'ToolError':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.setprofile(watch)\n"
        f"runpy.run_path({str(PRODUCT)!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_debug_shows_the_traceback_of_a_tools_file_too(tmp_path):
    path = user_file(tmp_path, "def f():\n    1 / 0\nf()\n")
    done = run(["--schema", "--tools", path], W4D3_DEBUG="1")
    assert done.returncode == 2 and TRACEBACK in done.stderr and b"in f" in done.stderr
    assert TRACEBACK not in run(["--schema", "--tools", path], W4D3_DEBUG="0").stderr


@pytest.mark.parametrize("head", ["def f():", "async def f():"])
@pytest.mark.parametrize("failure", ["1 / 0", "exit('end')", "raise ToolError('no')"])
def test_debug_shows_the_line_where_an_own_tool_failed(tmp_path, head, failure):
    source = f"from w4d3_tools_mcp import ToolError\n{head}\n    'F.'\n    {failure}\n"
    arguments = ["--call", "f", "--tools", user_file(tmp_path, source)]
    loud, quiet = run(arguments, W4D3_DEBUG="1"), run(arguments)
    assert loud.returncode == 1 and failure.encode() in loud.stderr and not loud.stdout
    assert TRACEBACK in loud.stderr and TRACEBACK not in quiet.stderr


# --- output ---


NASTY = (
    "def f() -> str:\n    '''说明，返回字。'''\n"
    "    return 'a\\x1b[2J\\x9b1m\\x07\\r\\x7f\\u202e中\\tb'\n"
)


def test_control_characters_are_escaped_on_a_terminal_only(tmp_path):
    arguments = ["--call", "f", "--tools", user_file(tmp_path, NASTY)]
    shown = on_a_terminal(arguments).decode().replace("\r\n", "\n")
    assert shown == "a\\u001b[2J\\u009b1m\\u0007\\u000d\\u007f\\u202e中\tb\n"
    assert "\x1b[2J\x9b" in text(run(arguments).stdout)


def test_control_characters_of_a_file_name_never_reach_a_terminal(tmp_path):
    path = user_file(tmp_path, "1/0\n", "a\x1b[2J\nb.py")
    shown = on_a_terminal(["--schema", "--tools", path], code=2)
    assert b"\x1b[2J" not in shown and b"\\u001b[2J" in shown
    assert b"\x1b[2J" not in on_a_terminal(["--schema", "--tools", path + "\x1b[2J"], code=2)


def test_what_a_model_says_cannot_clear_the_terminal(tmp_path):
    (tmp_path / "a.md").write_text("# GRPO \x1b[2J\x9b2J\n\nGRPO\x1b[8m\n", encoding="utf-8")
    shown = on_a_terminal(["--ask", "GRPO", "--backend", "mock", "--notes", str(tmp_path)])
    assert b"\\u001b[2J" in shown and not re.search(rb"\x1b\[[28]J|\xc2\x9b|\x1b\[8m", shown)


CONSOLES = ["cp437", "cp866", "koi8-r", "cp1251", "mac-roman", "ascii", "gbk", "big5", "utf-16-le"]


@pytest.mark.parametrize("encoding", CONSOLES)
def test_json_stays_the_same_json_on_every_console(encoding):
    for arguments in (["--schema"], ["--demo", "--json"]):
        done = run(arguments, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert json.loads(done.stdout.decode(encoding)) == json.loads(run(arguments).stdout)
    done = run(["--mcp-demo", "--json"], PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert all(map(json.loads, done.stdout.decode(encoding).splitlines())) and done.stdout


@pytest.mark.parametrize("encoding", CONSOLES)
@pytest.mark.parametrize("arguments", [["--demo"], ["--help"], ["--nonsense"]])
def test_a_console_without_chinese_is_told_so_in_english(arguments, encoding):
    done = run(arguments, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    said = done.stderr.decode(encoding)
    assert done.returncode in (0, 2) and "Traceback" not in said
    assert ("PYTHONIOENCODING=utf-8" in said) is (encoding not in ("gbk", "big5", "utf-16-le"))


@pytest.mark.parametrize(
    "redirect, code, said",
    [
        (">&-", 1, "标准输出是关着的"),
        (">/dev/full", 1, "写不了标准输出"),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("<&- >&- 2>&-", 1, ""),
        ("2>/dev/full", 0, ""),
    ],
)
@pytest.mark.parametrize("arguments", ["--demo 1", "--schema", "--call calculator", "--help"])
def test_streams_that_are_closed_or_full(arguments, redirect, code, said):
    done = subprocess.run(
        ["sh", "-c", f'"$0" "$1" {arguments} {redirect}', sys.executable, str(PRODUCT)],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
        timeout=60,
    )
    fails = arguments == "--call calculator"  # its argument is missing: nothing for stdout
    message = text(done.stderr)
    assert done.returncode == (1 if fails else code)
    assert TRACEBACK not in done.stderr and "Exception ignored" not in message
    assert message.count("\n") <= 1 and (said in message or fails)


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_a_wrong_command_that_cannot_be_told_still_exits_2(redirect):
    done = subprocess.run(
        ["sh", "-c", f'"$0" "$1" --nonsense {redirect}', sys.executable, str(PRODUCT)],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("columns", ["0", "", "-5", "x", "9" * 5000, "1"])
def test_any_value_of_columns_works(columns):
    done = run(["--demo", "1"], columns=columns)
    assert done.returncode == 0 and done.stderr == b""


@pytest.mark.parametrize("width", [48, 60, 80, 98, 120])
@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_fits_the_terminal(arguments, width):
    shown = text(run(arguments, columns=width).stdout).split("\n例子\n")[0]
    assert max(map(product.columns, shown.splitlines())) <= min(width, 98)


def test_help_is_grouped_by_command():
    shown = text(run(["--help"]).stdout)
    heads = re.findall(r"^.*选项$", shown, re.M)
    assert heads == ["通用选项", "--ask 的选项", "--schema 的选项", "--mcp-config 的选项"]


@pytest.mark.parametrize("flag", ["-OO", "-O"])
def test_without_docstrings_it_says_so(flag):
    done = subprocess.run(
        [sys.executable, flag, str(PRODUCT), "--schema"],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1"},
        timeout=60,
    )
    if flag == "-OO":
        assert done.returncode == 2 and "docstring" in text(done.stderr)
    else:
        assert done.returncode == 0 and len(json.loads(done.stdout)) == 4


def test_the_file_can_be_run_by_its_name():
    assert os.access(PRODUCT, os.X_OK)


def test_the_lint_of_a_thousand_tools_ends_soon_and_stays_short(tmp_path):
    one = "def tool_{0}(n: int):\n    '''查询第 {0} 种东西的数量，返回一个整数，没有时返回 0。'''\n"
    path = user_file(tmp_path, "".join(map(one.format, range(1000))))
    done = run(["--schema", "--lint", "--tools", path])
    assert done.returncode == 0 and text(done.stdout).count("很像") < 5000

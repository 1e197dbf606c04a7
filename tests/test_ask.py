"""--ask and --models: the command line as a child process, against a fake server on a socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_server import (
    ANSWERS,
    CALLS,
    FakeServer,
    Reply,
    call,
    delta,
    error,
    events,
    message,
    says,
    whole,
)

import w4d3_tools_mcp as w

PROGRAM = w.__file__
QUESTION = "17*23+4 是多少？"
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if "PROXY" not in name.upper()
    and not name.startswith(
        ("OPENAI", "OLLAMA", "ANTHROPIC", "GEMINI", "GOOGLE", "W4D3", "COLUMNS", "NO_COLOR")
    )
}


def ask(*flags: str, env: dict | None = None, stdin: bytes | None = b"", question: str = QUESTION):
    """The finished process of one --ask; output as bytes."""
    return subprocess.run(
        [sys.executable, PROGRAM, "--ask", question, *flags],
        input=stdin,
        capture_output=True,
        env={**CLEAN, "PYTHONIOENCODING": "utf-8", **(env or {})},
        timeout=60,
    )


def asking(server: FakeServer, *flags: str, stdin: int | None = None) -> subprocess.Popen:
    """The running process of --ask against a fake server."""
    return subprocess.Popen(
        [
            sys.executable,
            PROGRAM,
            "--ask",
            QUESTION,
            "--base-url",
            server.url,
            "--model",
            "m",
            *flags,
        ],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**CLEAN, "PYTHONIOENCODING": "utf-8"},
    )


def said(process) -> str:
    return process.stderr.decode()


def test_the_answer_and_nothing_else_is_on_stdout():
    with FakeServer(whole(message("我来算。", call())), says("答案是 395。")) as server:
        run = ask("--base-url", server.url, "--model", "fake-1")
    assert run.stdout.decode() == "答案是 395。\n" and run.returncode == 0
    assert (
        'calculator(expression="17*23+4")' in said(run)
        and "← calculator" in said(run)
        and "我来算" in said(run)
    )
    assert "\r" not in said(run) and "\x1b" not in said(run)


def test_quiet_says_nothing_and_verbose_everything():
    usage = {"prompt_tokens": 812, "completion_tokens": 40}
    script = [
        whole(message(None, call(), reasoning_content="先想想", usage=usage)),
        says("395", usage=usage),
    ]
    with FakeServer(*script) as server:
        run = ask("--base-url", server.url, "--model", "m", "-q")
    assert run.stderr == b"" and run.stdout == b"395\n"
    with FakeServer(*script) as server:
        run = ask("--base-url", server.url, "--model", "m", "-v")
    assert "先想想" in said(run) and "812" in said(run) and "1624" in said(run)


def test_json_prints_the_whole_run():
    with FakeServer(CALLS, ANSWERS) as server:
        run = ask("--base-url", server.url, "--model", "m", "--json")
    value = json.loads(run.stdout)
    assert value["answer"] == "395" and value["reason"] == "answered" and value["turns"] == 2
    assert [m["role"] for m in value["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_the_question_comes_from_stdin_in_any_usual_encoding(encoding):
    data = "讲义：显存\n第二行\n".encode(encoding)
    with FakeServer(ANSWERS) as server:
        run = ask("--base-url", server.url, "--model", "m", question="-", stdin=data)
        assert run.stdout == b"395\n"
        assert server.bodies()[0]["messages"][1]["content"] == "讲义：显存\n第二行"


def test_json_of_a_run_that_fails_says_why_and_keeps_what_was_spent():
    usage = {"prompt_tokens": 812, "completion_tokens": 40}
    with FakeServer(whole(message(None, call(), usage=usage)), error(400, "no good")) as server:
        run = ask("--base-url", server.url, "--model", "m", "--json")
    value = json.loads(run.stdout)
    assert run.returncode == 1 and value["reason"] == "failed" and "no good" in value["error"]
    assert value["turns"] == 1 and value["usage"]["input"] == 812 and len(value["messages"]) == 4
    run = ask("--base-url", server.url, "--json")  # nobody is there, not even for the list
    assert run.returncode == 1 and "没有程序在监听" in json.loads(run.stdout)["error"]


def test_repaired_arguments_are_run_and_told():
    text = '{"num_layers": "32", "num_kv_heads": 8, "head_dim": 128, "seq_len": 8192.0}'
    with FakeServer(whole(message(None, call(text, name="kv_cache_gib"))), ANSWERS) as server:
        run = ask("--base-url", server.url, "--model", "m")
        assert "num_layers" in said(run).split("←")[1] and "改成了 32" in said(run)
        assert "GiB" in server.bodies()[1]["messages"][3]["content"]


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_do_no_harm(closed):
    with FakeServer(CALLS, ANSWERS) as server:
        line = f'"$0" "$1" --ask x --base-url {server.url} --model m {closed}'
        run = subprocess.run(
            ["sh", "-c", line, sys.executable, PROGRAM], capture_output=True, env=CLEAN, timeout=60
        )
        lost = " >&-" in f" {closed}"  # the answer has nowhere to go
        assert run.returncode == int(lost) and (run.stdout == b"395\n" or lost)
        assert len(server.requests) == (0 if lost else 2)


@pytest.mark.parametrize(
    "flags, sent",
    [
        (
            ["-o", "temperature=0.2", "-o", 'stop=["x"]', "-o", "user=me"],
            {"temperature": 0.2, "stop": ["x"], "user": "me"},
        ),
        (["-o", "a=NaN", "-o", "b=1e999", "-o", "c="], {"a": "NaN", "b": "1e999", "c": ""}),
        (["--max-tokens", "50"], {"max_tokens": 50}),
        (["--tool-choice", "required"], {"tool_choice": "required"}),
        (
            ["--tool-choice", "calculator"],
            {"tool_choice": {"type": "function", "function": {"name": "calculator"}}},
        ),
    ],
)
def test_what_the_user_asks_for_is_sent_as_given(flags, sent):
    with FakeServer(ANSWERS, allowed=frozenset(sent)) as server:
        assert ask("--base-url", server.url, "--model", "m", *flags).stdout == b"395\n"
        assert {key: server.bodies()[0].get(key) for key in sent} == sent


def test_no_stream_and_system():
    with FakeServer(ANSWERS) as server:
        ask("--base-url", server.url, "--model", "m", "--no-stream", "--system", "只说数字")
        body = server.bodies()[0]
        assert "stream" not in body and body["messages"][0]["content"] == "只说数字"


def test_a_model_is_not_told_that_a_users_notes_are_the_course(tmp_path):
    (tmp_path / "a.md").write_text("# 甲\n\n乙\n", "utf-8")
    for flags, words in (([], 3), (["--notes", str(tmp_path)], 0)):
        with FakeServer(ANSWERS) as server:
            assert ask("--base-url", server.url, "--model", "m", *flags).stdout == b"395\n"
            sent = json.dumps(server.bodies()[0], ensure_ascii=False)
        assert sum(word in sent for word in ("讲义", "CME295", "Week 1")) == words
        assert ("你是用户的助手" in sent) is (words == 0)


def test_user_tools_are_offered_and_run(tmp_path):
    tools = tmp_path / "mine.py"
    tools.write_text(
        'def flops(n: int, d: int) -> int:\n    """训练算力 6ND。\n\n'
        '    Args:\n        n: 参数量。\n        d: token 数。\n    """\n    return 6 * n * d\n',
        "utf-8",
    )
    with FakeServer(
        whole(message(None, call('{"n": 7, "d": 10}', name="flops"))), says("420")
    ) as server:
        assert (
            ask("--base-url", server.url, "--model", "m", "--tools", str(tools)).stdout == b"420\n"
        )
        assert server.bodies()[1]["messages"][3]["content"] == "420"


LETTERS = "abcdefghijklmnopqrst"


def many_tools(folder) -> str:
    path = folder / "many.py"
    path.write_text(
        "".join(f'def zq{n}() -> int:\n    """空。"""\n    return 1\n\n\n' for n in LETTERS)
    )
    return str(path)


@pytest.mark.parametrize(
    "question, flags, offered, told",
    [
        ("hi", ["--route", "2"], [], "4 个工具里按问题挑了 0 个"),
        ("hi", ["--tools"], [], "24 个工具里按问题挑了 0 个"),
        ("hi", ["--route", "2", "--tool-choice", "read_note"], ["read_note"], "挑了 1 个"),
        ("zqc", ["--tools"], ["zqc"], "24 个工具里按问题挑了 1 个"),
        ("zqc", ["--tools", "-q"], ["zqc"], ""),
        ("hi", ["--tools", "--no-route"], None, ""),
        ("hi", [], None, ""),
    ],
)
def test_what_routing_leaves_out_is_told(tmp_path, question, flags, offered, told):
    at = flags.index("--tools") + 1 if "--tools" in flags else 0
    flags = [*flags[:at], many_tools(tmp_path), *flags[at:]] if at else flags
    with FakeServer(ANSWERS, allowed=frozenset({"tool_choice"})) as server:
        run = ask("--base-url", server.url, "--model", "m", *flags, question=question)
        names = [tool["function"]["name"] for tool in server.bodies()[0]["tools"]]
    assert run.returncode == 0 and told in said(run)
    assert ("--no-route" in said(run)) is bool(told)
    if offered is None:
        assert len(names) == (24 if at else 4)
    else:
        assert names == [*offered, "search_tools"]


@pytest.mark.parametrize("question, answer", [("hi", "没有找到"), (QUESTION, "395")])
def test_the_mock_calls_what_routing_offers(tmp_path, question, answer):
    run = ask("--backend", "mock", "--tools", many_tools(tmp_path), question=question)
    assert run.returncode == 0 and answer in run.stdout.decode() and "没有工具" not in said(run)


# --- how it ends ---


def test_a_limit_ends_the_run_with_exit_code_1_and_the_reason():
    loop = [whole(message(None, call(f'{{"expression":"{n}+1"}}', id=f"id{n}"))) for n in range(3)]
    with FakeServer(*loop) as server:
        run = ask("--base-url", server.url, "--model", "m", "--max-turns", "3")
    assert run.returncode == 1 and run.stdout == b"" and "轮数上限" in said(run)
    assert "--max-turns" in said(run)
    with FakeServer(*[CALLS] * 3, strict=False) as server:
        run = ask("--base-url", server.url, "--model", "m")
    assert run.returncode == 1 and "换个问法" in said(run)


def test_an_answer_cut_at_the_limit_is_printed_and_fails():
    with FakeServer(whole(message("395 是", finish="length"))) as server:
        run = ask("--base-url", server.url, "--model", "m")
    assert run.stdout.decode() == "395 是\n" and run.returncode == 1
    assert "长度上限" in said(run) and "--max-tokens" in said(run)
    assert set(w.STOP_REASONS) - {"answered"} == set(w._WHAT_NEXT)


USAGE_ERRORS = {
    "no question": (["--ask"], "--ask"),
    "an empty question": (["--ask", "  "], "问题是空的"),
    "a question without quotes": (["--ask", "17*23", "是多少"], "引号"),
    "what to trace, but not where": (["--ask", "x", "--trace-args"], "--trace FILE"),
    "an unknown backend": (["--ask", "x", "--backend", "opena"], "--backend"),
    "-o without =": (["--ask", "x", "-o", "temperature"], "KEY=VALUE"),
    "-o with JSON that a shell has cut": (["--ask", "x", "-o", "stop=[a"], "JSON"),
    "-o with a number that is none": (["--ask", "x", "-o", "stop=[1e999]"], "JSON"),
    "-o too deep": (["--ask", "x", "-o", "a=" + "[" * 5000], "JSON"),
    "an unknown tool": (["--ask", "x", "--tool-choice", "calculater"], "calculator"),
    "no turns": (["--ask", "x", "--max-turns", "0"], "--max-turns"),
    "words for a number": (["--ask", "x", "--timeout", "soon"], "--timeout"),
    "approve without a terminal": (["--ask", "x", "--approve"], "终端"),
    "a trace that cannot be written": (
        ["--ask", "x", "--backend", "mock", "--trace", "/nowhere/t.jsonl"],
        "/nowhere/t.jsonl",
    ),
    "models of the mock": (["--models", "--backend", "mock"], "mock"),
    "transformers without a folder": (["--ask", "x", "--backend", "transformers"], "--model"),
}


@pytest.mark.parametrize("flags, words", USAGE_ERRORS.values(), ids=USAGE_ERRORS)
def test_a_wrong_command_line_is_exit_code_2_and_one_sentence(flags, words):
    run = subprocess.run(
        [sys.executable, PROGRAM, *flags],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**CLEAN, "PYTHONIOENCODING": "utf-8"},
        timeout=60,
    )
    assert (
        run.returncode == 2
        and words in said(run)
        and run.stdout == b""
        and "Traceback" not in said(run)
    )


def test_ctrl_c_while_waiting_is_prompt_and_exit_code_130():
    stay = threading.Event()
    asked = threading.Event()

    def slow(body):
        asked.set()
        return Reply(b"data: ", stay, type="text/event-stream")

    with FakeServer(slow) as server:
        child = asking(server, "--json")
        assert asked.wait(30)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=10)
        stay.set()
    assert child.returncode == 130 and b"Traceback" not in err
    assert [m["role"] for m in json.loads(out)["messages"]] == ["system", "user"]


def test_ctrl_c_during_a_call_repairs_the_history(tmp_path):
    tools = tmp_path / "slow.py"
    tools.write_text(
        'import time\n\ndef wait() -> str:\n    """等很久，返回 done。"""\n'
        '    print("begun", flush=True)\n    time.sleep(30)\n    return "done"\n',
        "utf-8",
    )
    with FakeServer(
        whole(message(None, call("{}", name="wait"), call("{}", id="b", name="wait")))
    ) as server:
        child = asking(server, "--json", "--tools", str(tools))
        line = child.stderr.readline()
        assert "wait()".encode() in line
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=10)
    assert child.returncode == 130
    text = out.decode()
    history = json.loads(text[text.index("{") :])["messages"]
    assert [m["role"] for m in history[2:]] == ["assistant", "tool", "tool"]
    assert all("中断" in m["content"] for m in history[3:])


# --- a new user's first minutes ---


def test_nothing_listening_says_what_to_start():
    with FakeServer() as server:
        url = server.url
    run = ask("--base-url", url)
    assert run.returncode == 1 and run.stdout == b"" and "没有程序在监听" in said(run)
    assert all(word in said(run) for word in ("ollama serve", "vllm serve", "llama-server"))


def test_the_address_comes_from_the_environment_and_localhost_needs_no_proxy():
    proxy = {
        "http_proxy": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5://127.0.0.1:9",
    }
    with FakeServer(ANSWERS) as server:
        assert ask("--model", "m", env={"OPENAI_BASE_URL": server.url, **proxy}).stdout == b"395\n"
    with FakeServer(ANSWERS) as server:
        host = server.origin.removeprefix("http://").replace("127.0.0.1", "0.0.0.0")
        assert ask("--model", "m", env={"OLLAMA_HOST": host, **proxy}).stdout == b"395\n"


def test_the_only_model_is_used_and_several_are_listed():
    with FakeServer(ANSWERS, models=("only-one",)) as server:
        assert ask("--base-url", server.url).returncode == 0
        assert server.bodies()[0]["model"] == "only-one"
    with FakeServer(models=("a:1", "b:2")) as server:
        run = ask("--base-url", server.url, "--model", " ", env={"OPENAI_MODEL": "  "})
        assert (
            run.returncode == 2
            and "a:1" in said(run)
            and "b:2" in said(run)
            and "--model" in said(run)
        )
    with FakeServer(ANSWERS) as server:
        ask("--base-url", server.url, env={"OPENAI_MODEL": "from-env"})
        assert server.bodies()[0]["model"] == "from-env"


def test_models_are_listed_one_a_line():
    with FakeServer(models=("a:1", "b:2")) as server:
        run = subprocess.run(
            [sys.executable, PROGRAM, "--models", "--base-url", server.url],
            capture_output=True,
            env=CLEAN,
            timeout=60,
        )
    assert run.stdout.split() == [b"a:1", b"b:2"] and run.returncode == 0


@pytest.mark.parametrize("command", [["--models"], ["--ask", "x"]])
def test_a_server_without_models_says_so(command):
    with FakeServer(models=()) as server:
        run = subprocess.run(
            [sys.executable, PROGRAM, *command, "--base-url", server.url],
            capture_output=True,
            env={**CLEAN, "PYTHONIOENCODING": "utf-8"},
            timeout=60,
        )
    assert run.returncode == 1 and run.stdout == b"" and "服务器上没有模型" in said(run)


def test_a_wrong_model_and_a_wrong_path_say_so():
    with FakeServer(
        error(404, "model 'qwen2.5:7' not found"), models=("qwen2.5:7b", "other")
    ) as server:
        run = ask("--base-url", server.url, "--model", "qwen2.5:7")
        assert run.returncode == 1 and "是不是想用 qwen2.5:7b" in said(run)
    with FakeServer(Reply(b"404 page not found", status=404)) as server:
        run = ask("--base-url", server.origin + "/v3", "--model", "m")
        assert (
            run.returncode == 1
            and "/v3/chat/completions" in said(run)
            and "--base-url" in said(run)
        )


def test_a_key_is_sent_only_where_it_belongs_and_never_shown(tmp_path):
    trace = tmp_path / "t.jsonl"
    refusal = error(401, "Incorrect API key provided: sk-very-secret-1")
    with FakeServer(refusal) as server:
        run = ask(
            "--base-url",
            server.url,
            "--model",
            "m",
            "--key",
            "sk-very-secret-1",
            "-v",
            "--json",
            "--trace",
            str(trace),
            "--trace-args",
        )
        assert server.requests[0][1]["Authorization"] == "Bearer sk-very-secret-1"
        assert b"very-secret" not in run.stdout + run.stderr + trace.read_bytes()
        assert "--key 给的密钥不对" in said(run)
    with FakeServer(refusal) as server:
        run = ask(
            "--base-url", server.url, "--model", "m", env={"OPENAI_API_KEY": "sk-very-secret-1"}
        )
        assert "Authorization" not in server.requests[0][1]
        assert "OPENAI_API_KEY" in said(run) and "--key" in said(run)


def test_the_mock_backend_needs_no_network():
    run = ask("--backend", "mock")
    assert "395" in run.stdout.decode() and run.returncode == 0
    assert ask("--backend", "mock", question="GRPO 在哪一节").returncode == 0


@pytest.mark.parametrize(
    "content, told",
    [
        ('{"message": "没有找到", "hits": []}', "没有找到"),
        ('{"hits": [], "ok": true}', '{"hits": [], "ok": true}'),
        ("[null]", "[null]"),
        ("没有这个工具", "没有这个工具"),
    ],
)
def test_the_mock_quotes_a_result_as_the_tool_wrote_it(content, told):
    model = w.mock_model("GRPO")
    model.chat([], [])
    assert (
        model.chat([{"role": "tool", "content": content}], []).text == f"没有查到。工具说：{told}"
    )


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": ""},
        {"PYTHONIOENCODING": "gbk"},
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""},
    ],
    ids=["C", "GBK", "ASCII", "C without UTF-8"],
)
def test_any_console_encoding_works(env):
    with FakeServer(CALLS, says("答案 395 \U0001f600 ｜▁")) as server:
        run = ask("--base-url", server.url, "--model", "m", env=env)
        assert run.returncode == 0 and b"395" in run.stdout and b"Traceback" not in run.stderr
        assert server.bodies()[0]["messages"][1]["content"] == QUESTION


def test_a_line_of_a_hundred_thousand_characters_is_cut_in_no_time():
    lines = []
    screen = w.LiveScreen(lines.append, w.Style(80, False))
    call_ = w.ToolCall("a", "x" * 100_000, {"q": "y" * 100_000})
    begin = time.monotonic()
    screen.event(w.CallStarted(call_))
    screen.event(w.CallFinished(call_, w.ToolResult("很" * 100_000), 0.1))
    screen.event(w.ModelAnswered(1, w.Turn("z" * 100_000, (call_,)), 0.1))
    assert all("……" in line and len(line) < 250 for line in lines) and len(lines) == 3
    assert time.monotonic() - begin < 5  # a hang is the failure: it took minutes


@pytest.mark.parametrize("width", [30, 80, 81, 100, 120])
@pytest.mark.parametrize("words", ["很" * 500, "x" * 500, "a很" * 500])
def test_a_long_call_or_result_takes_two_lines_of_the_screen(width, words):
    lines = []
    screen = w.LiveScreen(lines.append, w.Style(width, False))
    call_ = w.ToolCall("a", "search_notes", {"q": words})
    screen.event(w.CallStarted(call_))
    screen.event(w.CallFinished(call_, w.ToolResult(words), 0.1))
    # a wide character that does not fit leaves the last column of the first line free
    assert lines[1].endswith(" ……\n") and len(lines) == 2
    assert max(map(w.columns, lines)) <= 2 * width - 1


def test_a_refusal_is_no_interruption():
    lines: list[str] = []
    call_ = w.ToolCall("a", "calculator", {})
    refused = w.ToolResult("用户没有批准这次调用", "cancelled")
    w.LiveScreen(lines.append, w.Style()).event(w.CallFinished(call_, refused, 0.0))
    assert "已取消：用户没有批准" in lines[0] and "中断" not in lines[0]


def test_reasoning_that_was_shown_as_text_stays_on_a_line_of_its_own():
    lines: list[str] = []
    screen = w.LiveScreen(lines.append, w.Style(80, False), answer=lines.append)
    for kind, piece in (("text", "想"), ("again", ""), ("text", "答案")):
        screen.delta(kind, piece)
    assert lines == ["想", "\n", "答案"] and screen.shown == "答案"


def test_no_text_of_a_model_or_a_tool_steers_the_terminal():
    lines = []
    screen = w.LiveScreen(
        lines.append, w.Style(80, False), level=w.FULL, terminal=True, answer=lines.append
    )
    evil = "a\x1b]0;title\x07\x1b[2Jb\r\tc\n"
    screen.delta("text", evil)
    screen.delta("reasoning", evil)
    screen.notice(evil)
    screen.event(w.CallFinished(w.ToolCall("a", evil, {}), w.ToolResult(evil), 0.1))
    screen.close()
    assert not set("".join(lines)) & {"\x1b", "\x07", "\r"} and "\t" in "".join(lines)
    assert screen.shown == evil


# --- trace ---


def test_the_trace_is_appended_json_with_gen_ai_names(tmp_path):
    trace = tmp_path / "t.jsonl"
    usage = {"prompt_tokens": 812, "completion_tokens": 40}
    script = [
        error(429, "slow", Retry_After="0"),
        whole(message(None, call(), call("{}", id="b"), usage=usage)),
        says("395", usage=usage),
    ]
    for _ in range(2):
        with FakeServer(*script) as server:
            ask("--base-url", server.url, "--trace", str(trace))
    lines = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    assert len(lines) == 10
    first, good, bad, second, end = lines[:5]
    assert (
        first["gen_ai.operation.name"] == "chat"
        and first["attempts"] == 2
        and first["gen_ai.request.model"] == "fake-1"
    )
    assert first["gen_ai.usage.input_tokens"] == 812 and first[
        "gen_ai.response.finish_reasons"
    ] == ["tool_calls"]
    assert (
        good["gen_ai.tool.name"] == "calculator"
        and good["status"] == "ok"
        and good["duration_s"] >= 0
    )
    assert bad["status"] == "bad_arguments" and bad["error.type"] == "bad_arguments"
    assert second["tool_result_tokens"] > 0 and end["gen_ai.operation.name"] == "invoke_agent"
    assert not any(
        "arguments" in key or "result" == key.rsplit(".")[-1] for line in lines for key in line
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_costs_the_trace_not_the_answer():
    with FakeServer(CALLS, ANSWERS) as server:
        run = ask("--base-url", server.url, "--model", "m", "--trace", "/dev/full")
    assert run.stdout == b"395\n" and run.returncode == 0
    assert said(run).count("/dev/full") == 1


def test_trace_args_adds_arguments_and_results_without_secrets(tmp_path):
    trace = tmp_path / "t.jsonl"
    secret = '{"expression":"1+1","api_key":"hunter2hunter2"}'
    with FakeServer(whole(message(None, call(secret))), ANSWERS) as server:
        ask("--base-url", server.url, "--model", "m", "--trace", str(trace), "--trace-args")
    assert "1+1" in trace.read_text("utf-8") and "hunter2" not in trace.read_text("utf-8")


# --- on a terminal ---


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
def test_a_terminal_shows_the_text_as_it_comes_once_and_counts_the_seconds():
    import pty

    master, slave = pty.openpty()
    wait = threading.Event()
    body = events(delta(content="答案"), delta(content="是 395"), delta("stop")).pieces[0]
    with FakeServer(Reply(b": wait\n\n", wait, body, type="text/event-stream")) as server:
        child = subprocess.Popen(
            [sys.executable, PROGRAM, "--ask", QUESTION, "--base-url", server.url, "--model", "m"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**CLEAN, "PYTHONIOENCODING": "utf-8", "TERM": "xterm"},
        )
        os.close(slave)
        seen = b""
        while "1 秒".encode() not in seen:
            seen += os.read(master, 4096)
        wait.set()
        try:
            while piece := os.read(master, 4096):
                seen += piece
        except OSError:  # Linux: the other end has closed
            pass
        child.wait(10)
    os.close(master)
    assert seen.decode().count("答案是 395") == 1 and child.returncode == 0


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
@pytest.mark.parametrize(
    "reply, result", [(b"y\n", "395"), (b"n\n", "没有批准"), (b"\x04", "没有批准")]
)
def test_approve_asks_before_each_call(reply, result):
    import pty

    master, slave = pty.openpty()
    with FakeServer(CALLS, ANSWERS) as server:
        child = asking(server, "--approve", stdin=slave)
        os.close(slave)
        seen = ""
        while "[y/N]" not in seen:
            seen += child.stderr.readline().decode()
        os.write(master, reply)
        out, _ = child.communicate(timeout=20)
        os.close(master)
        assert out == b"395\n" and result in server.bodies()[1]["messages"][3]["content"]


# --- a real server, where one is named ---


@pytest.mark.skipif(
    not os.environ.get("W4D3_REAL_URL"), reason="W4D3_REAL_URL names no real server"
)
def test_a_real_server_calls_and_answers():
    run = ask(
        "--base-url",
        os.environ["W4D3_REAL_URL"],
        "--max-tokens",
        "300",
        question="What is 17*23+4? Use the calculator.",
    )
    assert run.returncode in (0, 1) and b"Traceback" not in run.stderr


def test_the_program_stands_alone(tmp_path):
    alone = tmp_path / "copied.py"
    alone.write_bytes(Path(PROGRAM).read_bytes())
    run = subprocess.run(
        [sys.executable, str(alone), "--ask", "1+1", "--backend", "mock"],
        capture_output=True,
        env=CLEAN,
        timeout=60,
    )
    assert run.returncode == 0

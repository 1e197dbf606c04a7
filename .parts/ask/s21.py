

# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 21  入口 Command line      uses everything above
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# One table of commands, one of options. A command is a function from the parsed flags to lines of
# text; `main` prints them and turns every failure into one line and an exit code.

DEBUG_VARIABLE = "W4D3_DEBUG"  # set to 1 to see tracebacks
WIDEST = 120  # columns; longer lines are hard to read
NARROWEST = 48
PIPED_WIDTH = 80  # columns when the output is no terminal


class UsageError(Exception):
    """The command line is wrong; the message says what to do. Exit code 2."""


def _user_functions(module: object) -> list[Callable]:
    return [
        value for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, type) and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]


def _line_in(path: str, error: BaseException) -> int | None:
    """The line of that file where the exception came from."""
    if isinstance(error, SyntaxError):
        return error.lineno
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == path), None)


def _import_file(path: str) -> object:
    import importlib.util

    name = "user_tools_" + re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not os.path.isfile(path):
        raise UsageError(f"--tools：找不到 Python 文件 {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and postponed annotations look their module up here
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its prints must not mix with our output
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line = _line_in(path, error)
        place = f"{path} 第 {line} 行" if line else path
        raise UsageError(f"--tools：{place}：{type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module


def add_user_tools(registry: ToolRegistry, path: str) -> None:
    """Register every public function defined in a Python file.

    Raises UsageError naming file, line and reason when the file or a function is unusable.
    """
    path = os.path.abspath(path)
    functions = _user_functions(_import_file(path))
    if not functions:
        raise UsageError(f"--tools：{path} 里没有公开的函数（名字不以 _ 开头，定义在该文件里）")
    from inspect import unwrap

    for fn in functions:
        try:
            registry.register(fn)
        except (SchemaError, TypeError) as error:
            code = getattr(unwrap(fn), "__code__", None)
            place = f"{path} 第 {code.co_firstlineno} 行" if code else path
            raise UsageError(f"--tools：{place}：{error}") from error


def chosen_tools(args) -> ToolRegistry:
    """The built-in tools and those of --tools, reading the notes of --notes."""
    registry = built_in_tools(NotesIndex(args.notes) if args.notes else None)
    for path in args.tools or ():
        add_user_tools(registry, path)
    return registry


def _pick_tools(registry: ToolRegistry, names: list[str]) -> ToolRegistry:
    for name in names:
        if name not in registry:
            near = closest(name, registry.names)
            hint = f"，是不是想写 {near}？" if near else "。"
            raise UsageError(f"没有工具 {name}{hint}可用：{'、'.join(registry.names)}")
    return registry.subset(dict.fromkeys(names)) if names else registry


def _lint(picked: ToolRegistry, everything: ToolRegistry, style: Style) -> Iterator[str]:
    found = 0
    for tool in picked:
        advice = review_tool(tool, everything)
        found += len(advice)
        yield style.paint(f"{tool.name}：{len(advice)} 条建议", "bad" if advice else "good")
        for item in advice:
            yield from wrap(f"  {item.where}：{item.what}", style.width)
            yield from wrap(style.paint(f"    为什么：{item.why}", "dim"), style.width)
    yield f"共检查 {len(picked)} 个工具，{found} 条建议。"


def run_schema(args, style: Style) -> Iterator[str]:
    """--schema: tool definitions as JSON, in one vendor's format, or a review of them."""
    registry = chosen_tools(args)
    picked = _pick_tools(registry, args.schema)
    if args.lint:
        yield from _lint(picked, registry, style)
        return
    yield json.dumps(tools_in_format(picked, args.format), ensure_ascii=False, indent=2)


def run_call(args, style: Style) -> Iterator[str]:
    """--call: one tool with the arguments a model would write; the text the model would read."""
    name, *texts = args.call
    tools = chosen_tools(args)
    _pick_tools(tools, [name])
    result = tools.call(ToolCall("call_0", name, " ".join(texts)))
    if result.is_error:
        raise ToolError(f"{RESULT_STATUS[result.status]}：{result.text}")
    yield result.text


def _demo_number(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= len(SCENARIOS):
        return int(text)
    raise UsageError(f"没有场景 {text}，可选 1 到 {len(SCENARIOS)}，例如 --demo 1 3")


def run_demo(args, style: Style) -> Iterator[str]:
    """--demo: scenarios with a scripted model; --json gives their raw message lists."""
    numbers = [_demo_number(text) for text in args.demo] or range(1, len(SCENARIOS) + 1)
    tools = chosen_tools(args)
    if args.json:
        runs = [play(SCENARIOS[number - 1], tools)[0] for number in numbers]
        yield json.dumps(runs[0] if len(runs) == 1 else runs, ensure_ascii=False, indent=2)
        return
    for number in numbers:
        yield from demo_text(number, tools, style)
        yield ""


def _is_whole(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def _read_question(text: str) -> str:
    """The question itself, or standard input for "-": UTF-8, else the console's encoding."""
    if text != "-":
        return os.fsencode(text).decode("utf-8", "replace") if not _is_whole(text) else text
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode(sys.stdin.encoding or "utf-8", "replace")


def _setting(text: str) -> tuple[str, object]:
    """(key, value) of -o KEY=VALUE; the value is JSON where it is JSON, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"-o 要写成 KEY=VALUE，例如 -o temperature=0.2，收到的是 {text}")
    with contextlib.suppress(ValueError):
        return key, json.loads(value, parse_constant=str)  # NaN stays a word
    return key, value


def _wanted_choice(text: str, tools: ToolRegistry) -> str | dict:
    if text in ("auto", "none", "required"):
        return text
    _pick_tools(tools, [text])
    return {"type": "function", "function": {"name": text}}


def _positive(args, *names: str) -> None:
    for name in names:
        value = getattr(args, name)
        if value is not None and not 0 < value < 1e9:
            raise UsageError(f"--{name.replace('_', '-')} 要大于 0，收到的是 {value}")


def _only_model(model: HttpModel) -> str:
    """The one model that the server lists. Raises UsageError with the list when it has several."""
    names = model.models()
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError("服务器上没有模型；Ollama 可以先 ollama pull qwen2.5:7b，再用 --model 指定")
    raise UsageError("请用 --model 选一个模型：\n" + "\n".join(f"  {name}" for name in names))


def _connect(args, notice: Callable[[str], None]):
    """The model that the flags and the environment choose, without its name if none is given."""
    backend = BACKENDS[args.backend]
    name = args.model or os.environ.get(backend.model_variable, "").strip()
    options = dict(map(_setting, args.o or ()))
    settings = Settings(name, options, args.max_tokens, not args.no_stream)
    if backend.make is TransformersLLM:
        if not name:
            raise UsageError("--backend transformers 要用 --model 给出本机的模型目录")
        return TransformersLLM(name, settings)
    place = find_place(backend, args.base_url or "", args.key or "", os.environ)
    patience = Patience()
    if args.timeout:
        patience = Patience(min(patience.connect, args.timeout), args.timeout, args.timeout)
    return backend.make(
        place.base_url, settings,
        key=place.key, key_hint=place.key_hint, patience=patience, notice=notice,
    )


def run_models(args, style: Style) -> Iterator[str]:
    """--models: the names of the models that the server offers, one a line."""
    if args.backend not in BACKENDS or args.backend == "transformers":
        raise UsageError(f"--models 要连服务器，--backend {args.backend} 没有")
    yield from _connect(args, _complain).models()


def _ask_before(screen: LiveScreen) -> Callable[[ToolCall], bool]:
    """For --approve: shows a call and asks on the terminal whether to run it."""
    if not sys.stdin.isatty():
        raise UsageError("--approve 每次调用前都要问一句，所以标准输入必须是终端")

    def approve(call: ToolCall) -> bool:
        screen.line(f"要运行 {call_text(call)} 吗？[y/N] ", "title")
        return sys.stdin.readline().strip().lower() in ("y", "yes", "是")

    return approve


@contextlib.contextmanager
def _trace_file(args, model):
    """The trace of --trace FILE, or None without the flag."""
    import time

    if not args.trace:
        yield None
        return
    try:
        file = open(args.trace, "a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--trace：写不了 {args.trace}：{error.strerror}") from error
    with file:
        def write(line: str) -> None:
            file.write(line)
            file.flush()

        yield Trace(
            write, model,
            provider=args.backend, address=host_of(getattr(model, "base_url", "")),
            arguments=args.trace_args,
            now=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )


def _write_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _write_answer(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _outcome(args, screen, messages, end, failure, seconds: float) -> Iterator[str]:
    """What a run leaves on stdout; raises what makes it a failure."""
    finished = end if isinstance(end, Finished) else Finished("", "failed", Usage(), 0)
    if args.json:
        yield json.dumps(
            {
                "answer": finished.text, "reason": finished.reason, "turns": finished.turns,
                "usage": finished.usage._asdict(), "messages": messages,
            },
            ensure_ascii=False, indent=2,
        )
    elif finished.text and screen.shown.strip() != finished.text.strip():
        yield finished.text
    if failure:
        raise failure
    if not args.q:
        screen.line(usage_text(finished, seconds))
    if finished.reason != "answered":
        raise BackendError(STOP_REASONS[finished.reason])


def run_ask(args, style: Style) -> Iterator[str]:
    """--ask: the answer of a model that may use the tools; everything else goes to stderr."""
    import time

    _positive(args, "max_turns", "max_tokens", "timeout")
    question = _read_question(args.ask).strip()
    if not question:
        raise UsageError("问题是空的，例如 --ask \"17*23+4 是多少？\"；--ask - 从标准输入读")
    both = sys.stdout.isatty() and sys.stderr.isatty() and not (args.json or args.q)
    screen = LiveScreen(
        _write_error, screen_style(sys.stderr),
        level=QUIET if args.q else FULL if args.v else NORMAL,
        terminal=sys.stderr.isatty(), answer=_write_answer if both else None,
    )
    tools = chosen_tools(args)
    choice = _wanted_choice(args.tool_choice, tools)
    approve = _ask_before(screen) if args.approve else None
    if args.backend == "mock":
        model = mock_model(question)
    else:
        model = _connect(args, screen.notice)
        if not model.settings.model:
            model.settings = model.settings._replace(model=_only_model(model))
    messages = opening(question)
    if args.system is not None:
        messages[0]["content"] = args.system
    limits = Limits(turns=args.max_turns)
    end, failure, begin = None, None, time.monotonic()
    with _trace_file(args, model) as trace:
        try:
            for event in run_tool_loop(
                model, tools, messages, limits=limits, tool_choice=choice,
                on_delta=screen.delta, approve=approve, clock=time.monotonic,
            ):
                end = event
                screen.event(event)
                if trace:
                    trace.event(event)
        except (BackendError, KeyboardInterrupt) as error:
            failure = error
            if trace:
                trace.failed(error)
        finally:
            screen.close()
    yield from _outcome(args, screen, messages, end, failure, time.monotonic() - begin)


class Command(NamedTuple):
    """One thing the program does. `run` takes the parsed flags and yields lines for stdout."""

    flag: str
    metavar: str
    help: str
    run: Callable[[object, Style], Iterator[str]]
    settings: dict  # for argparse


class Option(NamedTuple):
    """A flag that shapes commands; `commands` are those it goes with."""

    flag: str
    metavar: str
    help: str
    commands: tuple[str, ...]
    settings: dict = {}
    default: object = None


COMMANDS = (
    Command(
        "--demo", "[N …]", "离线演示：模拟模型走完整个工具调用过程；N 是场景编号，不写就全部演示",
        run_demo, {"nargs": "*"},
    ),
    Command(
        "--schema", "[NAME …]", "打印工具的 JSON Schema，由函数签名和 docstring 生成",
        run_schema, {"nargs": "*"},
    ),
    Command(
        "--call", "NAME [JSON]", "替模型调用一个工具，看参数校验和结果",
        run_call, {"nargs": "+"},
    ),
    Command(
        "--ask", "QUESTION", "问一个真实的模型，它可以用这些工具；写 - 从标准输入读问题",
        run_ask, {},
    ),
    Command("--models", "", "列出服务器上的模型", run_models, {"action": "store_true"}),
)

OPTIONS = (
    Option(
        "--format", "FORMAT", f"哪家的写法：{'、'.join(TOOL_FORMATS)}；默认 openai",
        ("--schema",), {"choices": tuple(TOOL_FORMATS)}, "openai",
    ),
    Option(
        "--lint", "", "检查工具定义写得好不好，逐条说明怎么改、为什么",
        ("--schema",), {"action": "store_true"}, False,
    ),
    Option(
        "--json", "", "只打印原始消息（JSON），不排版", ("--demo", "--ask"), {"action": "store_true"}, False,
    ),
    Option(
        "--tools", "FILE.py", "把这个文件里的公开函数也注册为工具，可写多次",
        ("--schema", "--demo", "--call", "--ask"), {"action": "append"},
    ),
    Option("--notes", "DIR", "讲义文件夹，默认是脚本旁边的 notes", ("--schema", "--demo", "--call", "--ask")),
    Option(
        "--backend", "NAME", f"接口：{'、'.join(BACKENDS)}，或不联网的 mock；默认 openai（含兼容服务）",
        ("--ask", "--models"), {"choices": (*BACKENDS, "mock")}, "openai",
    ),
    Option(
        "--base-url", "URL", "服务地址；不写就看 OPENAI_BASE_URL、OLLAMA_HOST，都没有就用本机的 Ollama",
        ("--ask", "--models"),
    ),
    Option(
        "--key", "KEY", "密钥；不写就看环境变量，那里的密钥只发给它所属的地址", ("--ask", "--models"),
    ),
    Option("--timeout", "SECONDS", "一次回复最多等多久", ("--ask", "--models"), {"type": float}),
    Option("--model", "NAME", "模型；不写就看 OPENAI_MODEL，再看服务器是否只有一个", ("--ask",)),
    Option("--system", "TEXT", "系统提示，代替默认的", ("--ask",)),
    Option(
        "-o", "KEY=VALUE", "原样放进请求的参数，可写多次，例如 -o temperature=0.2",
        ("--ask",), {"action": "append"},
    ),
    Option(
        "--tool-choice", "CHOICE", "auto、none、required 或一个工具名；默认 auto，不发送这个字段",
        ("--ask",), {}, "auto",
    ),
    Option("--max-tokens", "N", "一次回复最多多少 token，默认不限", ("--ask",), {"type": int}),
    Option("--max-turns", "N", "最多请求模型几次，默认 8", ("--ask",), {"type": int}, 8),
    Option("--no-stream", "", "不用流式", ("--ask",), {"action": "store_true"}, False),
    Option("--approve", "", "每次调用前先问我", ("--ask",), {"action": "store_true"}, False),
    Option("--trace", "FILE.jsonl", "每个事件追加一行 JSON（OpenTelemetry 的 gen_ai.* 字段）", ("--ask",)),
    Option("--trace-args", "", "同时记下参数和结果", ("--ask",), {"action": "store_true"}, False),
    Option("-q", "", "安静：除了答案和错误什么都不显示", ("--ask",), {"action": "store_true"}, False),
    Option("-v", "", "详细：思考过程、完整的参数和结果", ("--ask",), {"action": "store_true"}, False),
)

EXAMPLES = (
    ("--demo", "看五个场景，不联网，什么都不用装"),
    ("--schema kv_cache_gib --format anthropic", "一个工具的 Anthropic 写法"),
    ("--schema --tools my_tools.py --lint", "检查自己写的工具"),
    ("--call calculator '{\"expression\": \"2**10\"}'", "替模型调用一次计算器"),
    ('--ask "17*23+4 是多少？" --model qwen2.5:7b', "问本机 Ollama 里的模型"),
    ("--ask - --base-url https://api.deepseek.com --model deepseek-chat < question.txt", "问别处的模型，从文件读问题"),
)
HELP_WIDTH = 98
HELP_LEFT = 26  # columns for the flags


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _flag_lines(rows: Iterable[Command | Option]) -> Iterator[str]:
    for row in rows:
        left = f"  {row.flag} {row.metavar}".rstrip()
        first, *rest = wrap(row.help, HELP_WIDTH - HELP_LEFT)
        if columns(left) >= HELP_LEFT:
            yield left
            left = ""
        yield pad(left, HELP_LEFT) + first
        yield from (" " * HELP_LEFT + line for line in rest)


def short_help() -> Iterator[str]:
    """What a run without arguments prints."""
    yield "工具调用（tool calling）与 MCP 的参考实现，CME295 第 4 周第 3 天。只用标准库。"
    yield ""
    yield "用法：python3 w4d3_tools_mcp.py 命令 [选项]"
    yield ""
    yield "命令（选一个）"
    yield from _flag_lines(COMMANDS)
    yield ""
    yield "先试：python3 w4d3_tools_mcp.py --demo        全部选项：--help"


def full_help() -> Iterator[str]:
    """What --help prints: commands, options by the command they go with, examples."""
    yield from itertools.islice(short_help(), 4)
    yield "命令（选一个）"
    yield from _flag_lines(COMMANDS)
    for commands in dict.fromkeys(option.commands for option in OPTIONS):
        yield ""
        yield f"选项（用于 {' '.join(commands)}）"
        yield from _flag_lines(option for option in OPTIONS if option.commands == commands)
    yield ""
    yield "例子"
    for arguments, purpose in EXAMPLES:
        yield f"  # {purpose}"
        yield f"  python3 w4d3_tools_mcp.py {arguments}"
    yield ""
    yield f"退出码：0 成功，1 失败，2 命令写错，130 按了 Ctrl-C。{DEBUG_VARIABLE}=1 时出错会显示堆栈。"


# argparse's own words → one Chinese sentence that says what to do
_PARSER_ERRORS = (
    (r"argument (\S+): expected one argument", "{0} 后面要跟一个值"),
    (r"argument (\S+): expected at least one argument", "{0} 后面至少要跟一个值"),
    (r"argument (\S+): invalid choice: (.+?) \(choose from (.*)\)", "{0} 不能是 {1}，可选：{2}"),
    (r"argument (\S+): invalid (?:int|float|\w+) value: (.+)", "{0} 要的是数字，收到的是 {1}"),
    (r"argument (\S+): ignored explicit argument (.+)", "{0} 不带值，收到的是 {1}"),
)


def _make_parser():
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str):
            for pattern, sentence in _PARSER_ERRORS:
                if match := re.fullmatch(pattern, message):
                    raise UsageError(sentence.format(*match.groups()).replace("'", ""))
            raise UsageError(message)

    parser = Parser(add_help=False, allow_abbrev=False, usage="")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    for row in (*COMMANDS, *OPTIONS):
        parser.add_argument(row.flag, default=None, dest=_name(row.flag), **row.settings)
    return parser


def parse_command_line(argv: list[str]) -> tuple[Command | None, object]:
    """The chosen command (None: none given) and the flags. Raises UsageError."""
    args, rest = _make_parser().parse_known_args(argv)
    flags = [row.flag for row in (*COMMANDS, *OPTIONS)] + ["--help", "--version"]
    for word in rest[:1]:
        near = closest(word.split("=")[0], flags) if word.startswith("-") else None
        hint = f"是不是想写 {near}？" if near else "用 --help 看怎么写"
        raise UsageError(f"不认识 {word}，{hint}")
    if args.help or args.version:
        return None, args
    given = [command for command in COMMANDS if getattr(args, _name(command.flag)) is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0].flag} 和 {given[1].flag} 不能同时用，请分两次运行")
    for option in OPTIONS:
        if getattr(args, _name(option.flag)) is None:
            setattr(args, _name(option.flag), option.default)
        elif not given or given[0].flag not in option.commands:
            raise UsageError(f"{option.flag} 要和 {' 或 '.join(option.commands)} 一起用")
    return (given[0] if given else None), args


def screen_style(stream) -> Style:
    """Width and colour of an output stream; NO_COLOR, TERM=dumb and COLUMNS are respected."""
    terminal = stream.isatty()
    wanted = os.environ.get("COLUMNS", "")
    width = PIPED_WIDTH
    if wanted.isdecimal() and int(wanted) > 0:
        width = int(wanted)
    elif terminal:
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if colour and os.name == "nt":
        os.system("")  # switches a Windows console to understanding colour codes
    return Style(max(NARROWEST, min(width, WIDEST)), bool(colour))


def _lines(argv: list[str]) -> Iterator[str]:
    command, args = parse_command_line(argv)
    if args.version:
        yield f"w4d3_tools_mcp {VERSION}"
    elif args.help:
        yield from full_help()
    elif command is None:
        yield from short_help()
    else:
        yield from command.run(args, screen_style(sys.stdout))


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


def _run_command(argv: list[str]) -> int:
    try:
        for line in _lines(argv):
            print(line)
        sys.stdout.flush()
        return 0
    except UsageError as error:
        _complain(str(error))
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough, as in `… --schema | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code 0, 1 (failed), 2 (wrong usage) or 130 (Ctrl-C)."""
    codecs.register_error("typed_instead", typed_instead)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a GBK console must not crash on a rare character
            stream.reconfigure(errors="typed_instead")
    try:
        return _run_command(sys.argv[1:] if argv is None else argv)
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        known = isinstance(error, (ToolError, SchemaError, BackendError))
        reason = str(error) if known else error_text(error)
        _complain(f"没有完成：{reason}" + ("" if known else f"（设 {DEBUG_VARIABLE}=1 可看堆栈）"))
        return 1


if __name__ == "__main__":
    # A --tools file that imports ToolError must get this module, not a second copy of it.
    sys.modules.setdefault("w4d3_tools_mcp", sys.modules["__main__"])
    sys.exit(main())

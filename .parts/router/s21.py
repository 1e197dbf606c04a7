

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


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


def _show_progress(done: int, total: int) -> None:
    if total > PROGRESS_STEP:  # fewer files take no time
        _complain(f"正在为笔记建索引：{done}/{total} 个文件")


def user_notes(folder: str) -> NotesIndex:
    """The notes of a folder of any size; a large one is indexed in the user's cache directory."""
    cache = notes_cache(sys.platform, os.environ, os.path.expanduser("~"))
    return LargeNotesIndex(folder, cache, progress=_show_progress)


def chosen_tools(args) -> ToolRegistry:
    """The built-in tools and those of --tools, reading the notes of --notes."""
    registry = built_in_tools(user_notes(args.notes) if args.notes else None)
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


def run_router_demo(args, style: Style) -> Iterator[str]:
    """--router-demo: how a request is routed among the 40 tools of the catalogue."""
    yield from router_demo_text(args.router_demo, catalogue_tools(chosen_tools(args)), style)


ROUTE_ABOVE = 20  # --ask routes by itself when more tools are offered than this
ROUTE_TO = 5


def routed_tools(registry: ToolRegistry, question: str, args) -> ToolRegistry:
    """What --ask offers a model: all tools while they are few, else those that fit the question.

    With search_tools among them, so that what routing misses is one call away.
    """
    if args.no_route or (args.route is None and len(registry) <= ROUTE_ABOVE):
        return registry
    k = args.route or ROUTE_TO
    return registry if len(registry) <= k else with_tool_search(ToolRouter(registry), question, k=k)


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


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise ValueError(text)
    return int(text)


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
        "--router-demo", "[QUERY]", "演示工具路由：40 个工具里挑 5 个；写 QUERY 就看它怎么路由",
        run_router_demo, {"nargs": "?", "const": ""},
    ),
    Command(
        "--schema", "[NAME …]", "打印工具的 JSON Schema，由函数签名和 docstring 生成",
        run_schema, {"nargs": "*"},
    ),
    Command(
        "--call", "NAME [JSON]", "替模型调用一个工具，看参数校验和结果",
        run_call, {"nargs": "+"},
    ),
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
        "--json", "", "只打印原始消息（JSON），不排版", ("--demo",), {"action": "store_true"}, False,
    ),
    Option(
        "--tools", "FILE.py", "把这个文件里的公开函数也注册为工具，可写多次",
        ("--schema", "--demo", "--call", "--router-demo"), {"action": "append"},
    ),
    Option(
        "--route", "K", f"先挑出最合适的 K 个工具再问模型；多于 {ROUTE_ABOVE} 个时自动挑 {ROUTE_TO} 个",
        ("--ask",), {"type": _positive},
    ),
    Option(
        "--no-route", "", "不挑，全部工具都给模型", ("--ask",), {"action": "store_true"}, False,
    ),
    Option("--notes", "DIR", "讲义文件夹，默认是脚本旁边的 notes", ("--schema", "--demo", "--call", "--router-demo")),
)

EXAMPLES = (
    ("--demo", "看五个场景，不联网，什么都不用装"),
    ("--schema kv_cache_gib --format anthropic", "一个工具的 Anthropic 写法"),
    ("--schema --tools my_tools.py --lint", "检查自己写的工具"),
    ("--call calculator '{\"expression\": \"2**10\"}'", "替模型调用一次计算器"),
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

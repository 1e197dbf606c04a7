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

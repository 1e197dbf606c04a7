# --- routing: forty tools, five shown ---

ROUTED_REQUEST = "计算 KV Cache 占多少显存"
ROUTED_TO = 5

# request → the tool that should be found; the last two share no word with its description
REQUESTS = (
    ("GRPO 在讲义的哪一节？", "search_notes"),
    ("读一下第 1 周第 4 天的讲义", "read_note"),
    ("17*23+4 等于多少，帮我算一下", "calculator"),
    ("加载 13B 的参数要多大显存", "weights_gib"),
    ("明天上海会下雨吗", "get_forecast"),
    ("给导师发一封邮件，说作业交了", "send_email"),
    ("草拟一个回复，先别发", "draft_reply"),
    ("100 美元能换多少人民币", "convert_currency"),
    ("下周二下午大家都有空的时间", "find_free_time"),
    ("哪个文件里写了 API key", "search_files"),
    ("出门要不要带伞", "get_forecast"),
    ("How much is 200 dollars in euros?", "convert_currency"),
)
# what a model would write when it looks for a tool itself: synonyms, both languages
SECOND_TRIES = {
    "出门要不要带伞": "天气 下雨 weather forecast",
    "How much is 200 dollars in euros?": "货币 汇率 currency",
}


def schema_characters(tools: Iterable[Tool]) -> int:
    """The length of the tool definitions as they are sent in every request."""
    return len(json.dumps([tool.schema() for tool in tools], ensure_ascii=False))


def routing_text(query: str, router: ToolRouter, style: Style) -> Iterator[str]:
    """One request: the tools found with scores and matched words, and what leaving out saves."""
    yield heading(f"路由  {query}", style)
    picked = router.pick(query, ROUTED_TO)
    everything = schema_characters(router.tools)
    if not picked:
        yield from wrap(
            f"{len(router.tools)} 个工具里没有一个和它有共同的词：不猜，全部提供"
            f"（模式文本 {everything:,} 个字符）。", style.width,
        )
        return
    rows = [
        (rank, routed.name, f"{routed.score:.2f}", "、".join(routed.words))
        for rank, routed in enumerate(picked, 1)
    ]
    yield from table([("名次", "工具", "得分", "对上的词"), *rows], right=(0, 2))
    few = schema_characters(routed.tool for routed in picked)
    yield ""
    yield from wrap(
        f"提供 {len(picked)} 个而不是 {len(router.tools)} 个：模式文本从 {everything:,} 个字符"
        f"降到 {few:,} 个，每次请求省 {1 - few / everything:.0%}。", style.width,
    )


def _rank(router: ToolRouter, query: str, name: str) -> int | None:
    names = [routed.name for routed in router.pick(query, ROUTED_TO)]
    return names.index(name) + 1 if name in names else None


def requests_text(router: ToolRouter, style: Style) -> Iterator[str]:
    """The dozen REQUESTS: at which rank the right tool came, and how many were found."""
    ranks = [_rank(router, query, name) for query, name in REQUESTS]
    rows = [
        (query, name, f"第 {rank}" if rank else "没找到")
        for (query, name), rank in zip(REQUESTS, ranks)
    ]
    yield heading(f"{len(rows)} 个请求，排得准不准", style)
    yield from table([("请求", "该用的工具", "名次"), *rows])
    yield ""
    found = sum(rank is not None for rank in ranks)
    yield f"排第 1：{ranks.count(1)}/{len(rows)}    前 {ROUTED_TO}：{found}/{len(rows)}"


def misses_text(router: ToolRouter, style: Style) -> Iterator[str]:
    """The requests that miss, why, and how a model finds the tool by itself with search_tools."""
    yield heading("没找到的，为什么", style)
    tools = {tool.name: tool for tool in router.tools}
    for query, words in SECOND_TRIES.items():
        name = dict(REQUESTS)[query]
        search = ToolCall("call_0", "search_tools", {"words": words})
        found = with_tool_search(router, query, k=ROUTED_TO).call(search)
        yield from wrap(f"“{query}”该用 {name}，它的说明是：{tools[name].description}", style.width)
        yield from wrap("两边没有一个词相同。让模型自己换个说法查：", style.width)
        yield from wrap(f"  search_tools({search.arguments['words']}) → {found.text}", style.width)
        yield ""
    yield from wrap(
        "按词路由不懂同义词，也不会翻译。办法：说明里写上用户会用的词（中英都写）；让模型用 search_tools "
        "换个说法再查；或者改用向量检索、混合检索（Week 4 Day 2 §2）。", style.width,
    )


def few_or_all_text(router: ToolRouter, style: Style) -> Iterator[str]:
    """The loop of scenario 1 with every tool and with the routed ones: same answer, less sent."""
    yield heading("同一个循环，全部工具和路由后的工具", style)
    yield from wrap(f"问：{KV_QUESTION}", style.width)
    for tools in (ToolRegistry(router.tools), router.subset(KV_QUESTION, ROUTED_TO)):
        model = MockLLM((calling(("kv_cache_gib", KV_ARGUMENTS)), kv_answer))
        *_, end = run_tool_loop(model, tools, opening(KV_QUESTION))
        sent = len(model.asked) * schema_characters(tools)
        yield ""
        yield from wrap(
            f"带 {len(tools)} 个工具：请求模型 {len(model.asked)} 次，共发送模式文本 {sent:,} 个字符。",
            style.width,
        )
        yield from wrap(f"答：{end.text}", style.width)


def router_demo_text(query: str, tools: ToolRegistry, style: Style) -> Iterator[str]:
    """The whole demo, or with a query only how that one is routed."""
    router = ToolRouter(tools)
    yield from routing_text(query or ROUTED_REQUEST, router, style)
    if query:
        return
    for part in (requests_text, misses_text, few_or_all_text):
        yield ""
        yield from part(router, style)

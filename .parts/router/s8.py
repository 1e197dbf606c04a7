# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 8  路由 Router      uses §1, §4, §6, §7 · pure
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Forty schemas in every request cost tokens and confuse a model; five that fit do neither. A tool
# is ranked as a note is in §6: its words against those of the request (BM25). No network, no model,
# no training. It knows no synonyms and does not translate: where no word is shared it finds nothing
# and says so, never guesses. Weights were chosen on five public sets (make bench-router).

NAME_WEIGHT = 3.0  # a name is the shortest description; all other text counts 1
PAIR_WEIGHT = 0.6  # of two words that stand close together, in the tool as in the request
HAN_WEIGHT = 0.35  # of a single Chinese character; pairs of them are words already (§6)
HAN_CHARACTER = f"[{HAN}]"
SATURATION, LENGTH_SHARE = 1.5, 0.6  # k1 and b of BM25
MAX_REQUEST = 4_000  # characters; of a longer one the end counts, where the question stands

CAMEL_CASE = "(?<=[a-z])(?=[A-Z])"
# Tool names are full of doers and deeds: calculator, calculation and calculate meet in "calcul".
ROLE_ENDING = "(?<=[a-z]{3})(?:ator|ation|at|er|or|ion)$"


@functools.lru_cache(maxsize=2**16)
def _root(word: str) -> str:
    return re.sub(ROLE_ENDING, "", stem(word)) if word.isascii() else word


def _pairs(roots: list[str]) -> list[str]:
    """Each word with the next and the next but one; stop words between them are gone already."""
    return [f"{a} {b}" for step in (1, 2) for a, b in zip(roots, roots[step:])]


def _parameter_text(schema: object) -> str:
    """Names, descriptions and accepted values of all parameters, at any depth, in any dialect."""
    texts, nodes = [], [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            for key, kind in (("properties", Mapping), ("enum", list)):
                texts += node[key] if isinstance(node.get(key), kind) else ()
            texts.append(node.get("description"))
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return " . ".join(text for text in texts if isinstance(text, str))


def _tool_words(tool: Mapping) -> dict[str, float]:
    """The weighted words that stand for {"name", "description", "parameters"} in the ranking."""
    texts = tool["name"], tool.get("description") or "", _parameter_text(tool.get("parameters"))
    name, about, inputs = (
        [_root(word) for word in content_words(re.sub(CAMEL_CASE, " ", str(text)))]
        for text in texts
    )
    return weigh_fields(
        (name, NAME_WEIGHT),
        (about + inputs, 1.0),
        (_pairs(name) + _pairs(about), PAIR_WEIGHT),
        (re.findall(HAN_CHARACTER, " ".join(map(str, texts))), HAN_WEIGHT),
    )


class Routed(NamedTuple):
    """A tool for a request, how well it fits, and the words of the request that speak for it."""

    name: str
    score: float  # 0.0: not found, but kept
    words: tuple[str, ...]
    tool: Tool | dict


class ToolRouter:
    """Tools ranked for a request. Takes a registry, `Tool`s, or dicts with schemas of any dialect.

    >>> router = ToolRouter([{"name": "getWeather", "description": "天气预报 forecast"},
    ...                      {"name": "send_mail", "description": "发送邮件"}])
    >>> [(found.name, found.words) for found in router.pick("明天的天气怎么样", k=1)]
    [('getWeather', ('天气',))]
    """

    def __init__(self, tools: Iterable[Tool | dict]):
        self.tools = list(tools)
        self._coerce = getattr(tools, "coerce", False)
        schemas = [tool.schema() if isinstance(tool, Tool) else tool for tool in self.tools]
        self._names = [schema["name"] for schema in schemas]
        self._documents = [_tool_words(schema) for schema in schemas]
        self._ranking = BM25(self._documents, k1=SATURATION, b=LENGTH_SHARE)

    def pick(self, query: str, k: int = 5, keep: Iterable[str] = ()) -> list[Routed]:
        """The k tools that fit best, best first; [] when no tool shares a word with the request.

        Those named in `keep` follow beyond k. When there are no more than k tools, all are given.
        """
        text = re.sub(f"{CAMEL_CASE}|{QUESTION}", " ", query[-MAX_REQUEST:])
        roots = [_root(word) for word in query_words(text)]
        written = {_root(stem(word)): word for word in tokenize(text)}

        def evidence(position: int) -> tuple[str, ...]:
            found = (root for root in roots if root in self._documents[position])
            return tuple(dict.fromkeys(written.get(root, root) for root in found))

        terms = [*roots, *_pairs(roots), *re.findall(HAN_CHARACTER, text)]
        ranked = self._ranking.search(terms, max(k, 0))
        scores = {p: score for p, score in ranked if evidence(p)}  # lone characters are no match
        kept = set(self._names if len(self.tools) <= k else keep)
        places = enumerate(self._names) if kept else ()
        more = [p for p, name in places if name in kept and p not in scores]
        return [
            Routed(self._names[p], scores.get(p, 0.0), evidence(p), self.tools[p])
            for p in (*scores, *more)
        ]

    def subset(self, query: str, k: int = 5, keep: Iterable[str] = ()) -> ToolRegistry:
        """What to offer a model: the k best and those to keep, in the order of the registry.

        Not in the order of the ranking: equal sets make equal prompts, which servers cache. When
        nothing matches, all tools: leaving some out needs a reason.
        """
        picked = self.pick(query, k, keep)
        matched = any(routed.score for routed in picked)
        return self.registry([routed.name for routed in picked] if matched else self._names)

    def registry(self, names: Iterable[str]) -> ToolRegistry:
        """These tools in their own order. Raises SchemaError for dicts, which nobody can run."""
        wanted = set(names)
        chosen = [tool for tool, name in zip(self.tools, self._names) if name in wanted]
        return ToolRegistry(chosen, coerce=self._coerce)


def with_tool_search(
    router: ToolRouter, query: str, *, k: int = 5, keep: Iterable[str] = (),
) -> ToolRegistry:
    """The tools picked, and one more by which the model itself adds what was missed: search_tools.

    The remedy for words that do not match: a model knows synonyms and languages. What it finds is
    added at the end, so the part of the prompt that servers cache stays as it was.
    """
    registry = router.registry(routed.name for routed in router.pick(query, k, keep))

    def search_tools(words: str) -> list[str]:
        """查找没有列出的工具，返回找到的名字，下一轮就能调用；没有找到时返回空列表。

        Args:
            words: 要找的工具的关键词，中英文都写，例如 "天气 预报 weather forecast"。
        """
        found = [routed.tool for routed in router.pick(words, k) if routed.score]
        for tool in found:
            with contextlib.suppress(SchemaError):  # listed already
                registry.add(tool)
        return [tool.name for tool in found]

    registry.register(search_tools)
    return registry


def asked_lately(messages: Iterable[Mapping], *, turns: int = 2) -> str:
    """The last user turns in one text, to route by: "那明天呢？" alone says nothing."""
    asked = [str(message.get("content")) for message in messages if message["role"] == "user"]
    return "\n".join(asked[-turns:])


def tools_called(messages: Iterable[Mapping]) -> list[str]:
    """The tools that a conversation has used, to keep: their results are still talked about."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return list(dict.fromkeys(call["function"]["name"] for call in calls))


# What a working assistant may be offered: ten families of four, with siblings that are easy to
# confuse. The four of §7 are real; the others are entries to route among, and say so when called.
# Descriptions are Chinese with the English terms that people use in their requests.

# family → (name, description, "parameter text; parameter? kind text; …"); ? is optional, the kind
# is string unless given: integer, number, or the accepted values a/b/c
CATALOGUE = {
    "搜索 search": (
        "search_notes",
        ("web_search", "用搜索引擎查公开网页 web，返回标题和网址",
         "query 关键词; count? integer 条数"),
        ("search_papers", "查学术论文 paper（arXiv），返回题目和链接",
         "query 关键词; year? integer 最早年份"),
        ("search_news", "查最近的新闻 news，返回标题和时间",
         "query 关键词; days? integer 最近几天"),
    ),
    "文件 files": (
        ("list_files", "列出文件夹 folder 里的文件名和大小", "path 文件夹路径"),
        ("read_file", "读取一个文本文件 file 的内容", "path 文件路径; lines? integer 最多行数"),
        ("write_file", "把文本保存到文件 file，原有内容会被覆盖", "path 文件路径; text 内容"),
        ("search_files", "在文件夹里按内容查文件 grep，返回所在的行",
         "pattern 要找的文字; path 文件夹路径"),
    ),
    "邮件 mail": (
        ("send_email", "发送一封邮件 email，发出后不能撤回",
         "to 收件人地址; subject 主题; body 正文"),
        ("search_email", "在邮箱里查邮件 email，返回主题和编号", "query 关键词、发件人或日期"),
        ("read_email", "读取一封邮件 email 的正文和附件名", "id 邮件编号"),
        ("draft_reply", "起草对一封邮件的回复 reply，只存草稿，不发送",
         "id 邮件编号; tone? formal/casual 语气"),
    ),
    "日历 calendar": (
        ("list_events", "查看某天的日程和会议 calendar", "date 日期 YYYY-MM-DD"),
        ("create_event", "新建日程，或约一个会议 meeting",
         "title 标题; start 开始时间; minutes? integer 分钟数"),
        ("find_free_time", "找几个人都有空的时间 free time",
         "people 各人的邮箱; date 日期 YYYY-MM-DD"),
        ("set_reminder", "设置到点提醒 reminder 或闹钟 alarm", "text 提醒内容; time 时间 HH:MM"),
    ),
    "代码 code": (
        ("run_python", "在沙箱里运行一段 Python 代码，返回输出", "code 源代码"),
        ("run_tests", "运行项目的单元测试 pytest，返回失败的用例", "path 测试目录"),
        ("search_code", "在代码仓库 repo 里查函数或变量的定义", "query 名字或正则; language? 编程语言"),
        ("gpu_status", "查看本机 GPU 的显存占用和温度 nvidia-smi", "index? integer 第几块卡"),
    ),
    "数据 data": (
        "calculator",
        ("query_sql", "对数据库 database 执行只读 SQL，返回表格", "sql 查询语句"),
        ("plot_chart", "把数据画成图 chart", "data CSV 数据; kind? line/bar/scatter 种类"),
        ("describe_table", "统计 CSV 每一列的均值 mean、标准差和缺失", "path CSV 文件路径"),
    ),
    "天气与出行 weather and travel": (
        ("get_weather", "查城市现在的天气 weather：气温、湿度、风力", "city 城市"),
        ("get_forecast", "查未来几天的天气预报 forecast：是否下雨、最高气温",
         "city 城市; days? integer 天数"),
        ("search_flights", "查两地之间的航班 flight 和机票价格",
         "origin 出发城市; target 到达城市; date 日期"),
        ("search_trains", "查高铁、火车 train 的车次和余票",
         "origin 出发站; target 到达站; date 日期"),
    ),
    "财务 money": (
        ("convert_currency", "按当天汇率换算货币 currency，如美元换人民币",
         "amount number 金额; source 原货币; target 目标货币"),
        ("get_stock_price", "查股票 stock 的最新价格和涨跌幅", "symbol 股票代码"),
        ("add_expense", "记一笔支出 expense 到账本", "amount number 金额; category 类别，如交通"),
        ("loan_payment", "计算贷款 loan 的每月还款额和总利息",
         "principal number 本金; rate number 年利率 %; months integer 月数"),
    ),
    "文档 documents": (
        "read_note",
        ("translate_text", "把文字翻译 translate 成另一种语言",
         "text 原文; target zh/en/ja/fr 目标语言"),
        ("summarize_text", "把长文章缩写成摘要 summary", "text 原文; words? integer 摘要字数"),
        ("read_pdf", "提取 PDF 文档的文字", "path PDF 路径; pages? 页码，如 1-3"),
    ),
    "课程 course": (
        "kv_cache_gib",
        ("weights_gib", "计算模型参数 weights 占多少显存", "params number 参数量"),
        ("training_gib", "计算训练时梯度和优化器占多少显存", "params number 参数量"),
        ("training_flops", "计算训练大模型要多少算力 FLOPs（6ND）",
         "params number 参数量; tokens number token 数"),
    ),
}


def _row_parameters(text: str) -> dict:
    """The object schema of a row's parameters.

    >>> _row_parameters("n? integer 条数")["properties"]
    {'n': {'type': 'integer', 'description': '条数'}}
    """
    properties, required = {}, []
    for name, *words in (part.split() for part in text.split("; ")):
        kind = words.pop(0) if re.fullmatch(r"integer|number|\w+(/\w+)+", words[0]) else "string"
        choices = {"enum": kind.split("/")} if "/" in kind else {}
        properties[name.rstrip("?")] = {
            "type": "string" if choices else kind, **choices, "description": " ".join(words),
        }
        required += [] if name.endswith("?") else [name]
    return {"type": "object", "properties": properties, "required": required}


def _catalogue_entry(args: dict) -> object:
    raise ToolError("这只是演示目录里的一个条目，没有接真实的服务，什么也没有做。请如实告诉用户。")


def catalogue_tools(real: ToolRegistry | None = None) -> ToolRegistry:
    """The 40 tools of CATALOGUE, those of §7 from `real`; what else `real` has follows them."""
    real = built_in_tools() if real is None else real
    rows = [row for family in CATALOGUE.values() for row in family]
    return ToolRegistry([
        *(
            real[row] if isinstance(row, str)
            else Tool(row[0], row[1], _row_parameters(row[2]), _catalogue_entry)
            for row in rows
        ),
        *(tool for tool in real if tool.name not in rows),
    ])

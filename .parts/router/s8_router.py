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
        more = [p for p, name in enumerate(self._names) if name in kept and p not in scores]
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

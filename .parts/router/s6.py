# ─────────────────────────────────────────────────────────────────────────────────────────────────
# § 6  检索 Search      uses §1 · reads notes files
# ─────────────────────────────────────────────────────────────────────────────────────────────────
# Text becomes words, words become a ranking (BM25), and a folder of Markdown becomes sections that
# can be ranked and read. Chinese has no spaces, so a run of it counts as all its pairs of
# characters: 梯度消失 is found by 梯度 and by 消失. Only NotesIndex touches files, only below its
# folder, only to read, and not before the first question. Its errors never show machine paths.

# Patterns are kept as text: compiling them takes longer than importing the rest of this section,
# and `re` remembers what it compiled once.
HAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U000323af"  # no spaces
WORDS = (
    rf"([{HAN}]+)"
    r"|(\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)*)"  # 8,192 is 8192; §1.4 stays one word
    rf"|([^\W\d_{HAN}]+)"
)
HUMPS = "[A-Z]{2,}s?(?![a-z])|[A-Z]?[a-z]+|[A-Z]"  # of camelCase; GPUs is one
FULL_WIDTH = "[０-９Ａ-Ｚａ-ｚ]"
TO_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
# English words that say nothing about a topic; in Chinese notes they are rare, so idf cannot tell.
STOP_WORDS = frozenset(
    "a about all also am an and any are as at be been but by can could did do does for from had has"
    " have how i if in into is it its may me more most my no not of on one or our out please should"
    " so some such than that the their them then there these they this to too up us use used using"
    " was we were what when where which while who why will with would you your".split()
)
# What makes a Chinese sentence a question; cut out of it, so that 显存怎么算 leaves no 存怎.
QUESTION = (
    "为什么|什么时候|什么|怎么办|怎么样|怎么|怎样|如何|多少|哪些|哪一节|哪个|哪里|是否|能否|可以|应该"
    "|有没有|是不是|能不能|要不要|请问|吗|呢|的|了"
)


def _fold(text: str) -> str:
    return text.translate(TO_HALF_WIDTH) if re.search(FULL_WIDTH, text) else text


@functools.lru_cache(maxsize=2**14)  # a text has few words, often
def _split_word(word: str) -> tuple[str, ...]:
    """A name in camelCase is itself and its parts: LoRA is looked up as lora, KVCache as cache."""
    if word.islower() or word.isupper() or not word.isascii():
        return (word.lower(),)
    parts = re.findall(HUMPS, word)
    return tuple(part.lower() for part in ([word, *parts] if len(parts) > 1 else parts))


def tokenize(text: str) -> list[str]:
    """The words of a text in order, for documents and queries alike.

    >>> tokenize("num_kv_heads 占显存，Llama3 §1.4")
    ['num', 'kv', 'heads', '占显', '显存', 'llama', '3', '1.4']
    """
    words = []
    for han, number, word in re.findall(WORDS, _fold(text)):
        if han:
            words += map(operator.add, han, han[1:]) if len(han) > 1 else [han]
        elif number:
            words.append(number.replace(",", ""))
        else:
            words += _split_word(word)
    return words


SUFFIXES = (("sses", "ss"), ("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))


@functools.lru_cache(4096)  # texts repeat their words
@functools.lru_cache(maxsize=2**14)
def stem(word: str) -> str:
    """An English word without its ending, so that caches, cached and caching meet in "cach"."""
    if not (word.isascii() and word.isalpha()) or word.endswith(("ss", "us", "is")):
        return word
    for suffix, instead in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            base = word.removesuffix(suffix)
            doubled = suffix in ("ing", "ed") and base[-1] == base[-2] and base[-1] not in "ls"
            return base[:-1] if doubled else base + instead
    return word


def content_words(text: str) -> list[str]:
    """The words of a text that say what it is about, stemmed."""
    return [
        stem(word) if word.isascii() else word
        for word in tokenize(text) if word not in STOP_WORDS
    ]


def query_words(text: str) -> list[str]:
    """The words to look for. What only makes it a question is left out, unless nothing remains.

    >>> query_words("显存怎么算？"), query_words("注"), query_words("为什么")
    (['显存'], ['注'], ['为什', '什么'])
    """
    words = content_words(re.sub(QUESTION, " ", text)) or content_words(text)
    return [word for word in words if not re.fullmatch(f"[{HAN}]", word)] or words


def weigh_fields(*fields: tuple[Iterable[str], float]) -> dict[str, float]:
    """Weighted word counts of one document from (words, weight) pairs, as `BM25` takes them."""
    counts: dict[str, float] = {}
    for words, weight in fields:
        for word in words:
            counts[word] = counts.get(word, 0.0) + weight
    return counts


def inverse_frequency(documents: int, having: int) -> float:
    """How much a word tells that `having` of the documents contain (formula 3.3).

    The 1 + keeps a word that most documents contain from counting against them.
    """
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


K1, B = 1.2, 0.75  # how soon a repeated word stops counting; how far long documents pay for it


class BM25:
    """Documents ranked by the words of a query (Robertson and Zaragoza 2009, formula 3.15).

    A document is a list of words, or a dict of word → weighted count when its fields differ in
    weight (`weigh_fields`; their section 3.6). What a word adds to a document is worked out when
    the index is built, so that a query touches only the documents that hold its words.

    >>> BM25([["kv", "cache"], ["beam", "search"]]).search(["cache"])
    [(0, 0.693...)]
    """

    def __init__(self, documents: Iterable[Iterable[str] | Mapping[str, float]], *, k1=K1, b=B):
        counts = [
            document if isinstance(document, Mapping) else weigh_fields((document, 1.0))
            for document in documents
        ]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self.size = len(counts)
        self.postings: dict[str, dict[int, float]] = {}  # word → document → share, below k1 + 1
        for position, (count, length) in enumerate(zip(counts, lengths)):
            damping = k1 * (1 - b + b * length / mean)
            for word, n in count.items():
                self.postings.setdefault(word, {})[position] = n * (k1 + 1) / (n + damping)

    def search(self, query: Iterable[str], top_k: int = 5) -> list[tuple[int, float]]:
        """(position, score) of the best documents, best first; on a tie the earlier one leads.

        Documents that share no word with the query are left out. A repeated word counts once.
        """
        from heapq import nsmallest

        scores: dict[int, float] = {}
        for word in dict.fromkeys(query):
            posting = self.postings.get(word, {})
            idf = inverse_frequency(self.size, len(posting))
            for position, share in posting.items():
                scores[position] = scores.get(position, 0.0) + idf * share
        best = nsmallest(top_k, ((-score, position) for position, score in scores.items()))
        return [(position, -score) for score, position in best]


class Note(NamedTuple):
    """One section of the notes: what stands between two headings."""

    name: str  # the file below the notes folder, without .md: "week1-day4", "llm/attention"
    section: str  # its unique id: "Week 1 Day 4 §1.4", "llm/attention > Setup"
    title: str  # the heading without its number
    line: int  # of the heading, from 1
    text: str  # Markdown below the heading
    level: int = 0  # number of # of the heading; 0 for the file as a whole
    number: str = ""  # "1.4", where the heading has one

    @property
    def heading(self) -> str:
        return f"§{self.number} {self.title}" if self.number else self.title


class Hit(NamedTuple):
    """One answer of a search."""

    note: Note
    score: float
    snippet: str  # one line of the text around the best match


MAX_NOTE_BYTES = 2_000_000  # a longer .md file is data, not notes
FENCE = r"[\s>]*(?:(?:[-*+]|\d+[.)])\s+)*(`{3,}|~{3,})(.*)"  # may stand in a list item
HEADING = r" {0,3}(#{1,6})[ \t]+(\S.*)"
MAX_TITLE = 120  # characters; a longer heading is cut
NUMBERED = r"§\s*(\d+(?:\.\d+)*)[.、:：]?\s*(.*)"
DAY_TITLE = r"(?i)week\s*(\d+)\s*day\s*(\d+)[\s·:：|—–-]*(.*)"


def _front_matter_end(lines: list[str]) -> int:
    """How many lines a YAML head takes; a lone --- is a rule across the page, not a head."""
    if lines[0].rstrip() != "---":
        return 0
    ends = (i for i, line in enumerate(lines[1:], 2) if line.rstrip() in ("---", "..."))
    return next(ends, 0)


def _heading_text(written: str) -> str:
    """The words of a heading without the closing #s it may have; the one of "C#" stays."""
    text = written.rstrip()
    bare = text.rstrip("#")
    return (bare.rstrip() if bare[-1:] in ("", " ", "\t") else text)[:MAX_TITLE]


def _cut_at_headings(text: str) -> list[tuple[int, int, str, str]]:
    """(line, level, heading, text) of each section, the first being what stands before a heading.

    A # inside a code fence is a comment. A fence ends with its own sign, at least as often
    (CommonMark 0.31, section 4.5). Underlined headings are not cut at: --- has too many meanings.
    """
    lines = text.split("\n")
    parts: list[tuple[int, int, str, list[str]]] = [(1, 0, "", [])]
    fence = ""
    skipped = _front_matter_end(lines)
    for number, line in enumerate(lines[skipped:], skipped + 1):
        mark = re.match(FENCE, line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and "`" not in mark[2]:
            fence = mark[1]
        elif (heading := re.match(HEADING, line)) and (title := _heading_text(heading[2])):
            parts.append((number, len(heading[1]), title, []))
            continue
        parts[-1][3].append(line)
    return [(line, level, heading, "\n".join(body).strip()) for line, level, heading, body in parts]


def _notes_of_file(name: str, text: str) -> list[Note]:
    """The file as a whole (its title, the text before the first section), then each section."""
    parts = _cut_at_headings(text)
    if not parts[0][3] and len(parts) > 1 and parts[1][1] == 1:
        del parts[0]
    line, _, title, body = parts[0]
    day = re.fullmatch(DAY_TITLE, title)
    label, title = (f"Week {day[1]} Day {day[2]}", day[3]) if day else (name, title)
    notes = [Note(name, label, title or label, line, body)]
    above = [(0, label)]  # the headings that the current one stands under
    for line, level, heading, body in parts[1:]:
        while above[-1][0] >= level:
            above.pop()
        numbered = re.fullmatch(NUMBERED, heading)
        number, title = numbered.groups() if numbered else ("", heading)
        section = f"{label} §{number}" if number else f"{above[-1][1]} > {title}"
        above.append((level, section))
        notes.append(Note(name, section, title or section, line, body, level, number))
    # A heading with nothing under it, not even a further heading, is no section.
    levels = [note.level for note in notes[1:]] + [0]
    return [note for note, after in zip(notes, levels) if note.text or after > note.level]


def _with_unique_sections(notes: Iterable[Note]) -> list[Note]:
    """The notes, the second of two equal ids marked (2)."""
    unique: dict[str, Note] = {}
    counts: dict[str, int] = {}  # so that ten thousand equal headings take no time
    for note in notes:
        section = note.section
        while section in unique:
            counts[note.section] = counts.get(note.section, 1) + 1
            section = f"{note.section} ({counts[note.section]})"
        unique[section] = note._replace(section=section)
    return list(unique.values())


def _markdown_files(folder: str, notices: list[str]) -> Iterator[tuple[str, str]]:
    """(name, path) of each .md file below the folder, sorted, nothing hidden, nothing outside."""
    import os

    def shown(path: str) -> str:
        relative = path[len(os.path.join(folder, "")):].replace(os.sep, "/")
        return " ".join(relative.encode("utf-8", "replace").decode().split())  # may be any bytes

    def unreadable(error: OSError) -> None:
        notices.append(f"跳过读不了的文件夹 {shown(error.filename)}")

    root = os.path.join(os.path.realpath(folder), "")
    for place, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            path = os.path.join(place, file)
            if file.startswith(".") or not file.lower().endswith(".md"):
                continue
            if os.path.islink(path) and not os.path.realpath(path).startswith(root):
                notices.append(f"跳过指向文件夹外面的链接 {shown(path)}")
            elif os.path.isfile(path):  # a pipe called x.md would block the reader
                yield shown(path)[:-3], path


def _read_file(name: str, path: str) -> list[Note]:
    """The sections of one file. Raises ToolError for one that is no notes, OSError as `open`."""
    import os

    if os.path.getsize(path) > MAX_NOTE_BYTES:
        raise ToolError(f"跳过太大的文件 {name}.md（超过 {MAX_NOTE_BYTES:,} 字节）")
    try:
        with open(path, encoding="utf-8-sig") as file:  # -sig drops a byte order mark
            return _notes_of_file(name, file.read())
    except UnicodeDecodeError:
        raise ToolError(f"跳过不是 UTF-8 的文件 {name}.md") from None


def _unreadable(name: str) -> str:
    return f"跳过读不了的文件 {name}.md"  # vanished since it was listed, or not ours to read


def _check_folder(folder: str) -> None:
    import os

    if not os.path.isdir(folder):
        raise ToolError("没有找到笔记文件夹，请用 --notes DIR 指定一个放着 .md 文件的文件夹")


NOTHING_TO_READ = "笔记文件夹里没有可读的 .md 文件，请用 --notes DIR 换一个文件夹"


def _read_notes(folder: str) -> tuple[list[Note], list[str]]:
    """(sections, notices) of all Markdown files below a folder.

    Raises:
        ToolError: there is no such folder, or nothing to read in it.
    """
    _check_folder(folder)
    notes: list[Note] = []
    notices: list[str] = []
    for name, path in _markdown_files(folder, notices):
        try:
            notes += _read_file(name, path)
        except ToolError as notice:
            notices.append(str(notice))
        except OSError:
            notices.append(_unreadable(name))
    if not notes:
        raise ToolError(NOTHING_TO_READ)
    return _with_unique_sections(notes), notices


MAX_QUERY = 1_000  # characters
SNIPPET_WIDTH = 160  # characters
SNIPPET_MATCHES = 100  # places looked at in one section; a page of data may have thousands


def _word_edge(line: str, at: int, step: int) -> int:
    """The nearest place in direction `step` that cuts no Latin word, or `at` if that is far."""
    near = range(at, at + 20 * step, step)
    return next((i for i in near if not re.fullmatch("[!-~]{2}", line[max(0, i - 1) : i + 1])), at)


def _snippet(text: str, words: Iterable[str]) -> str:
    """One line of about SNIPPET_WIDTH characters around the place where most words stand."""
    rows = (row for row in text.split("\n") if not re.match(FENCE, row))
    line = " ".join(" ".join(rows).split())
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "$^"
    matches = list(re.finditer(pattern, _fold(line), re.IGNORECASE))[:SNIPPET_MATCHES]

    def variety(start: int) -> int:
        near = (match for match in matches if start <= match.start() < start + SNIPPET_WIDTH)
        return len({match[0].lower() for match in near})

    best = max((match.start() for match in matches), key=variety, default=0)
    start = max(0, min(best - SNIPPET_WIDTH // 4, len(line) - SNIPPET_WIDTH))
    start, end = _word_edge(line, start, -1), _word_edge(line, start + SNIPPET_WIDTH, 1)
    return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")


CHINESE_DIGITS = str.maketrans("一二三四五六七八九", "123456789")
CHINESE_DAY = r"第\s*(\w)\s*周\s*第?\s*(\w)\s*[天日]"
DAY_ADDRESS = (
    r"\b(?:week|w)[\s_-]*(\d+)[\s_-]*(?:day|d)[\s_-]*(\d+)(?:\.md)?"  # Week 1 Day 4, w1d4
    r"(?:[\s,:#§第]*(\d+(?:\.\d+)*)节?)?"  # §1.4, 1.4, 第1.4节
)


def _address(text: str) -> str:
    """What a reader wrote for a section, in the one form in which addresses are compared.

    >>> {_address(name) for name in ("Week 1 Day 4 §1.4", "week1-day4 1.4", "第一周第4天 § １.４")}
    {'week1day4§1.4'}
    """
    text = _fold(text).lower().strip()
    if "周" in text:
        text = re.sub(CHINESE_DAY, lambda day: day[0].translate(CHINESE_DIGITS), text)
        text = re.sub(CHINESE_DAY, r"week\1day\2", text)
    if "w" in text:
        text = re.sub(DAY_ADDRESS, r"week\1day\2§\3 ", text)
    return re.sub(r"[^\w.§]+|§(?!\s*\d)", "", text)


# How much a word counts for, measured on the bundled notes: where it stands …
TITLE_WEIGHT = 3.0
ABOVE_WEIGHT = 1.0  # in a heading further up, or in the section's id
TEXT_WEIGHT = 1.0
# … and what it is. A single character says little, but decides between sections with equal words.
CHARACTER_WEIGHT = 0.2
# A few words of opening must not lead over the sections that they introduce.
OPENING_WEIGHT = 0.5


def _characters(text: str) -> str:
    return re.sub(f"[^{HAN}]+", "", text)


def _placed(notes: list[Note]) -> Iterator[tuple[Note, str, float]]:
    """Each section with its id and the headings above it in one text, and how much it counts."""
    above: list[Note] = []  # the headings that the current section stands under
    for note, after in zip(notes, [*notes[1:], None]):
        above = [upper for upper in above if upper.level < note.level]
        is_opening = note.level == 0 and after is not None and after.level > 0
        context = " ".join([note.section, *(upper.title for upper in above)])
        yield note, context, OPENING_WEIGHT if is_opening else 1.0
        above.append(note)


def _weighted_words(note: Note, context: str, scale: float) -> dict[str, float]:
    """The document that stands for a section in the ranking."""
    fields = ((note.heading, TITLE_WEIGHT), (context, ABOVE_WEIGHT), (note.text, TEXT_WEIGHT))
    return weigh_fields(
        *((content_words(text), weight * scale) for text, weight in fields),
        *((_characters(text), weight * scale * CHARACTER_WEIGHT) for text, weight in fields),
    )


def _addresses_of(note: Note) -> set[str]:
    """All that a section may be called by, as addresses."""
    names = {note.section, note.title, note.heading, f"{note.section} {note.title}"}
    if note.number:
        names.add(f"§{note.number}")
    if note.level == 0:
        file = note.name.rpartition("/")[2]
        names |= {note.name, file, f"{note.name}.md", f"{file}.md"}
    return {_address(name) for name in names}


class NotesIndex:
    """The sections of a folder of Markdown files, searched and looked up; read on first use."""

    def __init__(self, folder: str):
        self.folder = folder

    @functools.cached_property
    def _store(self) -> tuple[list[Note], list[str]]:
        return _read_notes(self.folder)

    @property
    def sections(self) -> list[Note]:
        """All sections in reading order, each with its own text only."""
        return self._store[0]

    @property
    def notices(self) -> list[str]:
        """What was skipped and why, one sentence each."""
        return self._store[1]

    def days(self) -> list[Note]:
        """The files, each as the note of level 0 that stands for the whole day."""
        return [note for note in self.sections if note.level == 0]

    @functools.cached_property
    def _ranking(self) -> BM25:
        return BM25([_weighted_words(*placed) for placed in _placed(self.sections)])

    def _best(self, words: list[str], characters: Iterable[str], top_k: int) -> list[tuple[Note, float]]:
        """(section, score) of the sections that hold one of the words, best first."""
        ranking = self._ranking
        matched = set().union(*(ranking.postings.get(word, ()) for word in words))
        ranked = ranking.search([*words, *characters], len(self.sections))
        best = [hit for hit in ranked if hit[0] in matched][:top_k]
        return [(self.sections[position], score) for position, score in best]

    def search(self, query: str, top_k: int = 5) -> list[Hit]:
        """The best sections for a question in Chinese or English, best first; [] if no word fits.

        Raises:
            ToolError: the query is blank, or there are no notes.
        """
        if not query.strip():
            raise ToolError("query 是空的，请写要查的词，如 KV Cache 显存")
        if len(query) > MAX_QUERY:
            raise ToolError(f"query 有 {len(query)} 个字符，最多 {MAX_QUERY} 个，请只写要查的词")
        words = query_words(query)
        best = self._best(words, _characters(query), top_k)
        return [Hit(note, score, _snippet(note.text, words)) for note, score in best]

    @functools.cached_property
    def _addresses(self) -> dict[str, list[Note]]:
        """Address → the sections that may be called so."""
        addresses: dict[str, list[Note]] = {}
        for note in self.sections:
            for address in _addresses_of(note):
                addresses.setdefault(address, []).append(note)
        return addresses

    def _called(self, name: str) -> list[Note]:
        """The sections with this id, else at this address, else with it in their title."""
        address = _address(name)
        found = [note for note in self.sections if note.section == name]
        found = found or self._addresses.get(address, [])
        if found or len(address) < 2:
            return found
        return [note for note in self.sections if address in _address(note.title)]

    def _after(self, note: Note) -> Iterable[Note]:
        """The sections that follow in reading order."""
        return itertools.islice(self.sections, self.sections.index(note) + 1, None)

    def _nearest(self, name: str) -> list[Note]:
        from difflib import get_close_matches

        close = get_close_matches(_address(name)[:MAX_TITLE], self._addresses, n=3)
        near = [self._addresses[address][0] for address in close]
        near += [note for note, _ in self._best(query_words(name), [], 3)]
        return list(dict.fromkeys(near))

    def _whole(self, note: Note) -> Note:
        """The section with everything that stands under its heading."""
        texts = [note.text]
        for below in self._after(note):
            if below.level <= note.level:
                break
            texts.append(f"{'#' * below.level} {below.heading}\n\n{below.text}")
        return note._replace(text="\n\n".join(text.strip() for text in texts).strip())

    def find(self, name: str) -> Note:
        """The section that a search hit or a reader calls by `name`, with all its subsections.

        Accepted: an id (`Week 1 Day 4 §1.4`, `week1-day4 1.4`, `第1周第4天 §1.4`), a file or day
        (`week1-day4`), a heading, or a part of a heading that no other section has.

        Raises:
            ToolError: unknown or ambiguous, with the nearest sections.
        """
        found = self._called(name[:MAX_QUERY].strip())
        if len(found) == 1:
            return self._whole(found[0])
        reason = "有好几节符合" if found else "没有这一节"
        near = found or self._nearest(name[:MAX_QUERY])
        listed = "；".join(f"{note.section} {note.title}" for note in near[:5])
        how = "请写编号（如 Week 1 Day 4 §1.4）、文件名（如 week1-day4）或标题"
        raise ToolError(f"{reason}，{how}" + (f"。相近的有：{listed}" if listed else ""))

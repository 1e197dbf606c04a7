# A folder of ten thousand sections takes seconds to index, so it is done once: a SQLite file in the
# user's cache directory keeps words and texts, and a later start reads only files that changed (by
# time and size, as make does). FTS5 proposes sections, then BM25 as above scores them, so both ways
# rank alike. The file is only a cache: a damaged one is made anew, and where there can be none (no
# FTS5, a read-only disk) the notes are held in memory as before.

LARGE_FOLDER = 2_000_000  # bytes of Markdown, about 2,000 sections; memory is faster below that
STORE_VERSION = 1  # of the tables and of tokenize; raise it when either changes
CANDIDATES = 50  # sections that FTS5 proposes for scoring
COMMON = 1_000  # a word in more sections, and in a tenth of all, proposes none if others can
PATIENCE = 120.0  # seconds to wait while another process builds the same index
WORDS_IN_MEMORY = 8_000_000  # bytes that FTS5 collects before it writes them; the default is 1 MB
PROGRESS_STEP = 100  # files between two calls of `progress`

# The sections of a file have the ids from `first` up to, not with, `last`, in reading order.
STORE_TABLES = """
    CREATE TABLE IF NOT EXISTS files(
        name TEXT PRIMARY KEY, time INTEGER, bytes INTEGER, first INTEGER, last INTEGER,
        length REAL, notice TEXT);
    CREATE TABLE IF NOT EXISTS sections(
        id INTEGER PRIMARY KEY, addresses TEXT, titled TEXT, scale REAL, length REAL, context TEXT,
        name TEXT, section TEXT, title TEXT, line INTEGER, text TEXT, level INTEGER, number TEXT);
    CREATE INDEX IF NOT EXISTS by_section ON sections(section);
    CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
        heading, context, text, characters, tokenize = "ascii tokenchars '.'");
    CREATE VIRTUAL TABLE IF NOT EXISTS counts USING fts5vocab(words, row);
"""
NOTE_COLUMNS = ", ".join(f"s.{field}" for field in Note._fields)
FIELD_WEIGHTS = (TITLE_WEIGHT, ABOVE_WEIGHT, TEXT_WEIGHT)
PROPOSED = f"""
    SELECT s.scale, s.length, s.context, w.heading, w.context, w.text, {NOTE_COLUMNS}
    FROM words AS w JOIN sections AS s ON s.id = w.rowid
    WHERE w.rowid IN (SELECT rowid FROM words WHERE words MATCH ?
        ORDER BY bm25(words, {TITLE_WEIGHT}, {ABOVE_WEIGHT}, {TEXT_WEIGHT}, 0) LIMIT ?)
"""


def notes_cache(platform: str, variables: Mapping[str, str], home: str) -> str:
    """Where index files belong by the custom of the system (`sys.platform`, `os.environ`)."""
    customs = {
        "win32": variables.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"),
        "darwin": os.path.join(home, "Library", "Caches"),
    }
    common = variables.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(customs.get(platform, common), "w4d3_tools_mcp")


def _open_store(path: str):
    """A connection to the index file, made with its tables where it is new."""
    import sqlite3

    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # notes may be private
    base = sqlite3.connect(
        path, timeout=PATIENCE, isolation_level=None, check_same_thread=False,
    )
    try:
        base.execute("PRAGMA page_size = 16384")  # texts are long: a fifth less work than with 4096
        base.execute("PRAGMA journal_mode = WAL")  # others read on while one process writes
        base.execute("PRAGMA synchronous = NORMAL")
        base.executescript(f"BEGIN IMMEDIATE; {STORE_TABLES} COMMIT;")
    except BaseException:
        base.close()
        raise
    return base


def _store_section(base, id: int, note: Note, context: str, scale: float) -> float:
    """Put one section into the store; returns its weighted length as BM25 counts it."""
    texts = (note.heading, context, note.text)
    words, characters = [*map(content_words, texts)], [*map(_characters, texts)]
    length = scale * sum(
        weight * (len(has) + CHARACTER_WEIGHT * len(single))
        for weight, has, single in zip(FIELD_WEIGHTS, words, characters)
    )
    addresses = f" {' '.join(_addresses_of(note))} "
    row = (id, addresses, _address(note.title), scale, length, context, *note)
    base.execute(f"INSERT INTO sections VALUES ({', '.join('?' * len(row))})", row)
    row = (id, *map(" ".join, words), " ".join(set().union(*characters)))
    columns = "rowid, heading, context, text, characters"
    base.execute(f"INSERT INTO words({columns}) VALUES (?, ?, ?, ?, ?)", row)
    return length


def _store_file(base, name: str, path: str, stamp: tuple[int, int]) -> None:
    """Read one file into the store. One that is no notes keeps its notice instead of sections."""
    notes, notice = [], ""
    try:
        notes = _with_unique_sections(_read_file(name, path))
        day = "SELECT 1 FROM sections WHERE section = ?"
        if notes and base.execute(day, (notes[0].section,)).fetchone():  # two files of one title
            notes = [note._replace(section=f"{note.section} ({name})") for note in notes]
    except ToolError as error:
        notice = str(error)
    first = base.execute("SELECT COALESCE(MAX(last), 1) FROM files").fetchone()[0]
    placed = enumerate(_placed(notes), first)
    length = sum(_store_section(base, id, *section) for id, section in placed)
    row = (name, *stamp, first, first + len(notes), length, notice)
    base.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _forget_file(base, name: str) -> None:
    row = "SELECT first, last - 1 FROM files WHERE name = ?"
    first, last = base.execute(row, (name,)).fetchone()
    base.execute("DELETE FROM words WHERE rowid BETWEEN ? AND ?", (first, last))
    base.execute("DELETE FROM sections WHERE id BETWEEN ? AND ?", (first, last))
    base.execute("DELETE FROM files WHERE name = ?", (name,))


def _changes(base, listed: dict) -> tuple[set[str], list[str]]:
    """(files to forget, files to read) until the store fits the folder."""
    known = {name: (*stamp,) for name, *stamp in base.execute("SELECT name, time, bytes FROM files")}
    changed = [name for name, (_, stamp) in listed.items() if known.get(name) != stamp]
    return (known.keys() - listed.keys()) | (known.keys() & {*changed}), changed


def _update_store(base, listed: dict, notices: list[str], progress: Callable | None) -> None:
    """Bring the store up to date in one transaction: all of it, or nothing when we are stopped."""
    if not any(_changes(base, listed)):
        return
    with base:
        base.execute("BEGIN IMMEDIATE")
        gone, changed = _changes(base, listed)  # again: another process may have done it meanwhile
        base.execute("INSERT INTO words(words, rank) VALUES ('hashsize', ?)", (WORDS_IN_MEMORY,))
        for name in gone:
            _forget_file(base, name)
        for done, name in enumerate(changed, 1):
            try:
                _store_file(base, name, *listed[name])
            except OSError:
                notices.append(_unreadable(name))
            if progress and (done % PROGRESS_STEP == 0 or done == len(changed)):
                progress(done, len(changed))


@functools.lru_cache(maxsize=2**14)
def _having(base, term: str) -> int:
    """How many sections hold a word; counted once, since FTS5 reads a whole list for it."""
    return (base.execute("SELECT doc FROM counts WHERE term = ?", (term,)).fetchone() or [0])[0]


def _stored_best(base, words: list[str], characters: Iterable[str], top_k: int) -> list[tuple]:
    """What NotesIndex._best gives, with the same scores."""
    sections, length = base.execute("SELECT SUM(last - first), SUM(length) FROM files").fetchone()
    singles = set(characters)
    counts = {term: _having(base, term) for term in [*words, *singles]}
    telling = {term: inverse_frequency(sections, count) for term, count in counts.items()}
    rare = [word for word in words if 0 < counts[word] <= max(COMMON, sections // 10)]

    def scored(row: tuple) -> tuple[float, Note]:
        scale, size, context, *stored = row[:6]
        note = Note(*row[6:])
        damping = K1 * (1 - B + B * size * sections / length)
        lists, texts = [text.split() for text in stored], (note.heading, context, note.text)
        score = 0.0
        for term, tells in telling.items():
            n = sum(weight * has.count(term) for weight, has in zip(FIELD_WEIGHTS, lists))
            if term in singles:
                single = (weight * text.count(term) for weight, text in zip(FIELD_WEIGHTS, texts))
                n += CHARACTER_WEIGHT * sum(single)
            score += tells * scale * n * (K1 + 1) / (scale * n + damping)
        return score, note

    match = " OR ".join(f'"{word}"' for word in rare or words)  # quoted, so that no word is an operator
    rows = base.execute(PROPOSED, (match, max(CANDIDATES, 2 * top_k))) if words else ()
    best = sorted(map(scored, rows), key=lambda hit: (-hit[0], hit[1].name, hit[1].line))
    return [(note, score) for score, note in best[:top_k]]


class LargeNotesIndex(NotesIndex):
    """Notes of any number: a large folder is searched in a file below `cache`, a small one in memory.

    progress(done, total) is told how many files have been read, where any had to be.
    """

    def __init__(
        self, folder: str, cache: str, *, large: int = LARGE_FOLDER,
        progress: Callable[[int, int], None] | None = None,
    ):
        super().__init__(folder)
        self.cache, self.large, self.progress = cache, large, progress
        self._lock = threading.RLock()
        self._base = None  # the open store
        self._skipped: list[str] = []  # what is no part of it, and why

    @functools.cached_property
    def path(self) -> str:
        """The index file of this folder."""
        from hashlib import sha256

        mark = sha256(os.fsencode(os.path.realpath(self.folder))).hexdigest()[:16]
        return os.path.join(self.cache, f"notes-{mark}-v{STORE_VERSION}.sqlite")

    @functools.cached_property
    def _listed(self) -> dict[str, tuple[str, tuple[int, int]]]:
        """Name → path and (time, size) of each file; {} when notes are held in memory."""
        _check_folder(self.folder)
        listed = {}
        for name, path in _markdown_files(self.folder, self._skipped):
            with contextlib.suppress(OSError):  # vanished since
                status = os.stat(path)
                listed[name] = path, (status.st_mtime_ns, status.st_size)
        return listed if sum(stamp[1] for _, stamp in listed.values()) >= self.large else {}

    def _ask(self, work: Callable, in_memory: Callable) -> Any:
        """work(store), or in_memory() where there is no store."""
        with self._lock:
            if self._listed:
                try:
                    return self._with_store(work)
                except (ImportError, OSError):
                    self._listed = {}
                    self._skipped.append("建不了索引文件，这么多笔记只好放在内存里，每次启动都要重新读")
        return in_memory()

    def _with_store(self, work: Callable) -> Any:
        """work(store), on a new one if the file is damaged. Raises OSError when there can be none."""
        import sqlite3

        for _ in range(2):
            try:
                if self._base is None:
                    self._base = _open_store(self.path)
                    _update_store(self._base, self._listed, self._skipped, self.progress)
                if not self._base.execute("SELECT 1 FROM sections").fetchone():
                    raise ToolError(NOTHING_TO_READ)
                return work(self._base)
            except sqlite3.OperationalError as error:  # no FTS5, no right to write, locked for ever
                raise OSError(str(error)) from error
            except sqlite3.DatabaseError:
                self._discard()
        raise OSError("damaged again")

    def _discard(self) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.remove(self.path + end)

    def _notes(self, condition: str, *values: object) -> Callable[[Any], list[Note]]:
        query = f"SELECT {NOTE_COLUMNS} FROM sections AS s WHERE {condition} ORDER BY s.name, s.id"
        return lambda base: [Note(*row) for row in base.execute(query, values)]

    @property
    def sections(self) -> list[Note]:
        """All sections in reading order. Of a large folder that is much: prefer search and find."""
        return self._ask(self._notes("1"), lambda: super(LargeNotesIndex, self).sections)

    @property
    def notices(self) -> list[str]:
        """What was skipped and why, one sentence each."""
        stored = "SELECT notice FROM files WHERE notice <> '' ORDER BY name"
        found = self._ask(
            lambda base: [notice for notice, in base.execute(stored)],
            lambda: super(LargeNotesIndex, self).notices,
        )
        return list(dict.fromkeys([*self._skipped, *found]))

    def days(self) -> list[Note]:
        """The files, each as the note of level 0 that stands for the whole."""
        return self._ask(self._notes("s.level = 0"), super().days)

    def _best(self, words, characters, top_k):
        return self._ask(
            lambda base: _stored_best(base, words, characters, top_k),
            lambda: super(LargeNotesIndex, self)._best(words, characters, top_k),
        )

    def _called(self, name):
        name = name.encode("utf-8", "replace").decode()  # half a character is in no database
        address = _address(name)

        def stored(base) -> list[Note]:
            found = self._notes("s.section = ?", name)(base)
            found = found or self._notes("instr(s.addresses, ?)", f" {address} ")(base)
            if found or len(address) < 2:
                return found
            return self._notes("instr(s.titled, ?)", address)(base)

        return self._ask(stored, lambda: super(LargeNotesIndex, self)._called(name))

    def _after(self, note):
        later = self._notes("s.name = ? AND s.line > ?", note.name, note.line)
        return self._ask(later, lambda: super(LargeNotesIndex, self)._after(note))

    def _nearest(self, name):
        return self._ask(
            lambda base: [note for note, _ in _stored_best(base, query_words(name), [], 3)],
            lambda: super(LargeNotesIndex, self)._nearest(name),
        )

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

#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = []
# ///
"""工具调用（tool calling）与 MCP 的参考实现：一个文件，只用标准库。CME295 第 4 周第 3 天。

    python3 w4d3_tools_mcp.py --demo         离线看懂工具调用
    python3 w4d3_tools_mcp.py --schema       由函数生成的 JSON Schema
    python3 w4d3_tools_mcp.py --help         其余命令

Map. A section refers only to sections above it; `grep -n '^# §'` prints this list from the code.

    A  pure core
    § 1  词汇 Vocabulary
    § 2  模式 Schema
    § 3  参数 Arguments
    § 4  注册表 Registry
    B  tools
    § 5  计算器 Calculator
    § 6  检索 Search
    § 7  内置工具 Built-in tools
    C  models
    § 9  消息格式 Wire formats
    § 12  循环 Loop
    § 13  模拟模型 Mock
    F  command line
    § 19  呈现 Rendering
    § 20  演示 Demos
    § 21  入口 Command line

§1 knows nothing. §2–§3 know types. §4 knows tools, not models. §12 knows models only as something
that answers. §21 knows everything and decides nothing.

How to read it: the first half of the lecture is §1, §4, §12, §13, about 800 lines; take §2 and §3
when you want to know how a schema is made and how arguments are checked. The rest can wait.

Extend it in one place: a tool is one function (§7, or your own file with --tools), a schema keyword
one row in §3, an operation of the calculator one row in §5, a command one row in §21.

Limits: lexical search only; arguments are validated, never guessed; tools run in threads of this
process, so a tool that hangs is abandoned, not killed.

Sources: JSON Schema 2020-12; OpenAI Chat Completions, Anthropic Messages and Gemini API references;
Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import enum
import functools
import itertools
import json
import marshal
import math
import operator
import os
import re
import sys
import threading
import types
import typing
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

VERSION = "1.0.0"

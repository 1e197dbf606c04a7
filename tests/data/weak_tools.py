"""Tools with weak definitions, for the reviewer."""


def hello(who: str) -> str:
    """说你好。

    Args:
        who: 名字
    """
    return f"你好，{who}"


def add(a, b, mode: str = "int"):
    """把两个数相加。

    Args:
        mode: 模式，可选 int 或 float
    """
    return a + b

"""The same small server with whichever official package this environment has."""

try:
    from mcp.server import MCPServer as Server  # mcp 2.x
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server  # mcp 1.x
try:
    from fastmcp import FastMCP as Server
except ImportError:
    pass

app = Server("peer")


@app.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("broken on purpose")


@app.resource("test://one")
def one() -> str:
    return "text"


@app.prompt()
def ask(topic: str) -> str:
    return topic


app.run("stdio", **({"show_banner": False} if Server.__module__.startswith("fastmcp") else {}))

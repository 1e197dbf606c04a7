// @modelcontextprotocol/sdk 1.x as a server: node ts_server.mjs FOLDER
import path from "node:path";
import { pathToFileURL } from "node:url";

const root = path.resolve(process.argv[2], "node_modules");
const load = (name) => import(pathToFileURL(path.join(root, name)).href);
const { McpServer } = await load("@modelcontextprotocol/sdk/dist/esm/server/mcp.js");
const { StdioServerTransport } = await load("@modelcontextprotocol/sdk/dist/esm/server/stdio.js");
const { z } = await load("zod/index.js");

const app = new McpServer({ name: "peer", version: "1" });
const text = (value) => ({ content: [{ type: "text", text: String(value) }] });
const numbers = { a: z.number(), b: z.number() };
const annotations = { readOnlyHint: true };
app.registerTool("add", { description: "Add two numbers.", inputSchema: numbers, annotations }, ({ a, b }) => text(a + b));
app.registerTool("fail", { description: "Always fails." }, () => { throw new Error("broken on purpose"); });
app.registerResource("one", "test://one", {}, (uri) => ({ contents: [{ uri: uri.href, text: "text" }] }));
app.registerPrompt("ask", { argsSchema: { topic: z.string() } }, ({ topic }) =>
  ({ messages: [{ role: "user", content: { type: "text", text: topic } }] }));
await app.connect(new StdioServerTransport());

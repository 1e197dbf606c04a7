// @modelcontextprotocol/client 2.4.0: node ts_v2.mjs FOLDER MODE COMMAND …
import path from "node:path";
import { pathToFileURL } from "node:url";
import { play } from "./session.mjs";

const [folder, mode, command, ...args] = process.argv.slice(2);
const root = path.resolve(folder, "node_modules/@modelcontextprotocol/client/dist");
const load = (name) => import(pathToFileURL(path.join(root, name)).href);
const { Client } = await load("index.mjs").catch(() => load("index.js"));
const { StdioClientTransport } = await load("stdio.mjs").catch(() => load("stdio.js"));

const negotiation = { default: undefined, auto: { mode: "auto" }, pin: { mode: { pin: "2026-07-28" } } }[mode];
const client = new Client({ name: "peer", version: "0" }, negotiation && { versionNegotiation: negotiation });
await client.connect(new StdioClientTransport({ command, args }));
await play(client, () => client.getProtocolEra?.() ?? "");

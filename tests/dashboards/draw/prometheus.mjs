// A Prometheus with the made-up series, and with the series of the chart's recording rules and alerts.

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parse } from "yaml";
import { END, HISTORY, WINDOW } from "./clusters.mjs";
import { write } from "./series.mjs";

const MINUTE = 60;

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

export class Prometheus {
  // `programs` is the directory of `prometheus` and `promtool`, `directory` an empty one for the data.
  constructor(programs, directory) {
    this.programs = programs;
    this.directory = directory;
    this.blocks = join(directory, "tsdb");
    this.text = join(directory, "series.om");
  }

  // Makes the blocks, and starts Prometheus on all of them.
  async fill(rules) {
    mkdirSync(this.blocks, { recursive: true });
    writeFileSync(join(this.directory, "prometheus.yml"), "{}");
    await write(this.text);
    this.store();
    await this.start();
    const all = readdirSync(rules)
      .sort()
      .flatMap((file) => parse(readFileSync(join(rules, file), "utf8")).groups.flatMap((group) => group.rules));
    for (const layer of layers(all)) await this.add(layer, (rule) => this.recorded(rule));
    await this.add(
      all.filter(({ alert }) => alert),
      (rule) => this.fired(rule),
    );
  }

  // Stores the series of rules, and restarts Prometheus, which looks for new blocks only once a minute.
  async add(rules, made) {
    const lines = [];
    for (const rule of rules) lines.push(...(await made(rule)));
    writeFileSync(this.text, [...lines, "# EOF\n"].join("\n"));
    this.store();
    await this.stop();
    await this.start();
  }

  // Returns the series of a recording rule, evaluated at whole minutes. `promtool tsdb create-blocks-from rules` chooses
  // another second for each group, by the path of the file, and so would give other numbers in another directory.
  async recorded({ record, expr, labels }) {
    const series = await this.range(expr, END - HISTORY * MINUTE, MINUTE);
    return series.flatMap(({ metric, values }) =>
      values.map(([time, value]) => `${named(record, { ...metric, ...labels })} ${value} ${time}`),
    );
  }

  // Returns the series `ALERTS` of an alert, for the minutes in which it fires.
  async fired({ alert, expr, for: duration, labels }) {
    const pending = duration ? Number(/^(\d+)m$/.exec(duration)[1]) * MINUTE : 0;
    const series = await this.range(expr, END - (WINDOW + 50) * MINUTE, MINUTE);
    return series.flatMap(({ metric, values }) => {
      const name = named("ALERTS", { ...metric, ...labels, alertname: alert, alertstate: "firing" });
      let since;
      return values.flatMap(([time], at) => {
        if (at === 0 || time - values[at - 1][0] > MINUTE) since = time;
        return time - since >= pending ? [`${name} 1 ${time}`] : [];
      });
    });
  }

  // Makes blocks of the text. An empty text makes none.
  store() {
    const args = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", this.text, this.blocks];
    execFileSync(join(this.programs, "promtool"), args, { stdio: ["ignore", "ignore", "pipe"] });
  }

  async start() {
    this.url = `http://127.0.0.1:${await freePort()}`;
    this.child = spawn(
      join(this.programs, "prometheus"),
      [
        `--config.file=${join(this.directory, "prometheus.yml")}`,
        `--storage.tsdb.path=${this.blocks}`,
        "--storage.tsdb.retention.time=100y",
        `--web.listen-address=${this.url.slice("http://".length)}`,
        // Blocks that promtool makes have no marks where a series ends. Panels and rules ask at whole minutes, for which each
        // series has a sample. Without this, a pod would count for five minutes after its end.
        "--query.lookback-delta=29s",
        "--log.level=error",
      ],
      { stdio: ["ignore", "inherit", "inherit"] },
    );
    for (let tries = 0; tries < 3000; tries += 1) {
      if (this.child.exitCode !== null) throw new Error("prometheus ended");
      if (
        await fetch(`${this.url}/-/ready`).then(
          (answer) => answer.ok,
          () => false,
        )
      )
        return;
      await sleep(100);
    }
    throw new Error("prometheus is not ready after five minutes");
  }

  async stop() {
    if (!this.child || this.child.exitCode !== null) return;
    const gone = new Promise((done) => this.child.once("exit", done));
    this.child.kill("SIGTERM");
    await gone;
  }

  async query(path, parameters) {
    const answer = await (
      await fetch(`${this.url}/api/v1/${path}`, { method: "POST", body: new URLSearchParams(parameters) })
    ).json();
    if (answer.status !== "success") throw new Error(`${answer.error}: ${parameters.query}`);
    return answer.data.result;
  }

  range(query, start, step) {
    return this.query("query_range", { query, start, end: END, step });
  }

  instant(query) {
    return this.query("query", { query, time: END });
  }
}

const named = (name, { __name__, ...labels }) =>
  `${name}{${Object.entries(labels).map(([key, value]) => `${key}=${JSON.stringify(value)}`)}}`;

// Returns the recording rules in layers. Each layer reads series of the layers before it alone.
function layers(all) {
  const rules = new Map(all.filter(({ record }) => record).map((rule) => [rule.record, rule]));
  const depths = new Map();
  const depth = (record) => {
    if (!depths.has(record)) {
      const read = rules.get(record).expr.match(/\w+:\w+(:\w+)?/g) ?? [];
      depths.set(record, 1 + Math.max(0, ...read.filter((name) => rules.has(name)).map(depth)));
    }
    return depths.get(record);
  };
  const found = [];
  for (const [record, rule] of rules) (found[depth(record) - 1] ??= []).push(rule);
  return found;
}

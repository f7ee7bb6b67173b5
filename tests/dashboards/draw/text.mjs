// Writes series as OpenMetrics text. Each run writes the same text: noise is a hash of the series and the time.

import { createWriteStream } from "node:fs";
import { once } from "node:events";
import { END, HISTORY, WINDOW } from "./clusters.mjs";

export const SCRAPE = 0.5; // Minutes.
const SPARSE = 1; // Minutes between the samples of the history, of which the rules take rates over five minutes.
const BEGIN = -WINDOW - 60;

export const hash = (text) => [...text].reduce((sum, char) => Math.imul(sum ^ char.charCodeAt(0), 16777619) >>> 0, 2166136261);
export const mixed = (seed, step) => {
  let x = Math.imul(seed ^ Math.imul(step, 0x9e3779b1), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return ((x ^ (x >>> 16)) >>> 0) / 2 ** 31 - 1;
};
// Returns noise between -1 and 1, which reaches its next point every three minutes.
const wave = (seed) => (at) => {
  const place = at / 3;
  const step = Math.floor(place);
  return mixed(seed, step) * (1 - (place - step)) + mixed(seed, step + 1) * (place - step);
};

const times = (from, to, history) => {
  const list = [];
  if (history) for (let at = -HISTORY; at < BEGIN; at += SPARSE) list.push(at);
  for (let at = BEGIN; at <= 0; at += SCRAPE) list.push(at);
  return list.filter((at) => at >= from && at < to);
};

export class Text {
  constructor(path) {
    this.file = createWriteStream(path);
    this.lines = [];
  }

  // Writes a series with the value at each time.
  gauge(name, labels, value, { from = -Infinity, to = Infinity, history = false } = {}) {
    const text = Object.entries(labels).map(([key, label]) => `${key}=${JSON.stringify(label)}`);
    const series = `${name}{${text.join(",")}}`;
    for (const at of times(from, to, history)) this.lines.push(`${series} ${Number(value(at).toPrecision(12))} ${END + at * 60}`);
  }

  // Writes a counter that begins with 0 and grows by `rate` a second, with noise of the given share.
  counter(name, labels, rate, { noise = 0.05, resets, ...when } = {}) {
    const sway = wave(hash(name + JSON.stringify(labels)));
    let total = 0;
    let last;
    this.gauge(
      name,
      labels,
      (at) => {
        const middle = last === undefined ? at : (last + at) / 2;
        if (last !== undefined) total += Math.max(0, rate(middle) * (1 + noise * sway(middle))) * (at - last) * 60;
        if (resets !== undefined && last < resets && at >= resets) total = 0;
        last = at;
        return total;
      },
      when,
    );
  }

  async end() {
    this.file.end(`${this.lines.join("\n")}\n# EOF\n`);
    await once(this.file, "finish");
  }
}

export const constant = (value) => () => value;
export const swaying = (key, value, share) => {
  const sway = wave(hash(key));
  return (at) => (typeof value === "function" ? value(at) : value) * (1 + share * sway(at));
};

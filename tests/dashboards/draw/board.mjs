// Asks Prometheus for all that a board shows: the answers to the queries of its panels, and its annotations.

import { END, WINDOW } from "./clusters.mjs";

const STEP = 60; // Seconds: the smallest interval of the panels. Grafana takes it for three hours.
const RATE = "4m"; // Grafana's $__rate_interval is four times that.

// Opens the folded rows: their panels push down what is below them.
function panelsOf(panels) {
  let down = 0;
  return panels.flatMap((row) => {
    const inside = row.panels ?? [];
    const shown = [row, ...inside].map((panel) => ({
      ...panel,
      gridPos: { ...panel.gridPos, y: panel.gridPos.y + down },
    }));
    down += Math.max(0, ...inside.map(({ gridPos: { y, h } }) => y + h - row.gridPos.y - 1));
    return shown;
  });
}

// Returns a function that replaces each variable by its choice, or by its value for all.
function filler(board, choices) {
  const values = {
    __rate_interval: RATE,
    __range: `${WINDOW}m`,
    __interval: `${STEP}s`,
    datasource: "prometheus",
    pyroscope: "pyroscope",
  };
  for (const { name, allValue } of board.templating.list) values[name] ??= choices[name] ?? allValue;
  return (text) =>
    text.replace(/\$(?:\{(\w+)\}|(\w+))/g, (_, braced, plain) => {
      const value = values[braced ?? plain];
      if (value === undefined) throw new Error(`${board.title}: no choice for the variable ${braced ?? plain}`);
      return value;
    });
}

async function answer(prometheus, fill, panel) {
  const answers = [];
  for (const { refId, expr, legendFormat, instant, format } of panel.targets ?? []) {
    if (!expr) continue; // A profile.
    const query = fill(expr);
    const series = instant ? await prometheus.instant(query) : await prometheus.range(query, END - WINDOW * 60, STEP);
    const values = series.flatMap((one) => one.values ?? [one.value]);
    if (!values.some(([, value]) => Number.isFinite(Number(value))))
      throw new Error(`panel "${panel.title}": query ${refId} returns nothing: ${query}`);
    answers.push({ refId, legendFormat, format, series });
  }
  return answers;
}

// Returns the beginnings of an annotation's events.
async function marks(prometheus, fill, { name, iconColor, target }) {
  const begin = END - WINDOW * 60;
  const series = await prometheus.range(fill(target.expr), begin, STEP);
  const times = series.flatMap(({ values }) =>
    values.filter(([time], at) => time > begin && (at === 0 || time - values[at - 1][0] > STEP)).map(([time]) => time),
  );
  return { name, color: iconColor, times: [...new Set(times)].sort() };
}

export async function answered(prometheus, board, choices) {
  const fill = filler(board, choices);
  const panels = [];
  for (const panel of panelsOf(board.panels))
    panels.push({ ...panel, panels: undefined, answers: await answer(prometheus, fill, panel) });
  const annotations = [];
  for (const annotation of board.annotations.list) annotations.push(await marks(prometheus, fill, annotation));
  const named = { datasource: "Prometheus", pyroscope: "Pyroscope" };
  const variables = board.templating.list.map(({ name, label }) => ({ label, value: named[name] ?? choices[name] ?? "All" }));
  return {
    title: board.title,
    variables,
    panels,
    annotations,
    from: (END - WINDOW * 60) * 1000,
    to: END * 1000,
    step: STEP * 1000,
  };
}

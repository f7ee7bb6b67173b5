// Draws a heat map, since Grafana publishes no part for it. Its rows are series, or buckets of their values.

import { getValueFormat } from "@grafana/data";
import { interpolateOranges, interpolateRdYlGn } from "d3-scale-chromatic";
import React from "react";

const schemes = { RdYlGn: interpolateRdYlGn, Oranges: interpolateOranges };
const MOST_COLUMNS = 30; // Of buckets in time.

// Returns the rows, the lowest first, with their label and their cells: begin, end and value.
function ofSeries(frames, step) {
  return frames.map(({ fields: [time, number] }) => ({
    label: number.state.displayName,
    cells: time.values.map((begin, at) => [begin, begin + step, number.values[at]]),
  }));
}

function ofBuckets(frames, { from, to }, size, text) {
  const width = (to - from) / MOST_COLUMNS;
  const counts = new Map();
  for (const {
    fields: [time, number],
  } of frames) {
    time.values.forEach((moment, at) => {
      if (moment >= to) return;
      const cell = [Math.floor(number.values[at] / size), Math.floor((moment - from) / width)];
      counts.set(String(cell), [cell, (counts.get(String(cell))?.[1] ?? 0) + 1]);
    });
  }
  const cells = [...counts.values()];
  const highest = Math.max(...cells.map(([[row]]) => row));
  return Array.from({ length: highest + 1 }, (_, row) => ({
    // The lower border of a bucket.
    border: text(row * size),
    cells: cells
      .filter(([[of]]) => of === row)
      .map(([[, column], count]) => [from + column * width, from + (column + 1) * width, count]),
  }));
}

export function Heatmap({ frames, panel, board, width, height, theme }) {
  const { color, cellGap, calculate, calculation, yAxis, cellValues } = panel.options;
  const number = (decimals) => (value) => getValueFormat("none")(value, decimals).text;
  const rows = calculate
    ? ofBuckets(frames, board, Number(calculation.yBuckets.value), number(yAxis.decimals))
    : ofSeries(frames, board.step);
  const values = rows.flatMap(({ cells }) => cells.map(([, , value]) => value));
  const [lowest, highest] = [color.min ?? Math.min(...values), Math.max(...values)];
  const share = (value) => (highest > lowest ? (value - lowest) / (highest - lowest) : 1);
  const shade = (part) => schemes[color.scheme](Math.min(1, Math.floor(part * color.steps) / (color.steps - 1)));

  const left = calculate ? 44 : 74;
  const [plotWidth, plotHeight] = [width - left - 10, height - 62];
  const x = (time) => left + ((time - board.from) / (board.to - board.from)) * plotWidth;
  const rowHeight = plotHeight / rows.length;
  const y = (row) => plotHeight - (row + 1) * rowHeight;
  const half = 30 * 60 * 1000;
  const ticks = [];
  for (let time = Math.ceil(board.from / half) * half; time <= board.to; time += half) ticks.push(time);
  const text = { fill: theme.colors.text.primary, fontSize: 12 };
  const parts = Array.from({ length: color.steps }, (_, part) => part / color.steps);
  return (
    <svg width={width} height={height} fontFamily={theme.typography.fontFamily}>
      {rows.map(({ label, border, cells }, row) => (
        <g key={row}>
          {label && (
            <text x={left - 8} y={y(row) + rowHeight / 2 + 4} textAnchor="end" {...text}>
              {label}
            </text>
          )}
          {border && row % 2 === 0 && (
            <text x={left - 8} y={y(row) + rowHeight + 4} textAnchor="end" {...text}>
              {border}
            </text>
          )}
          {cells
            .filter(([begin, , value]) => begin < board.to && Number.isFinite(value))
            .map(([begin, end, value]) => (
              <rect
                key={begin}
                x={x(begin)}
                y={y(row)}
                width={x(Math.min(end, board.to)) - x(begin) - cellGap}
                height={rowHeight - cellGap}
                fill={shade(share(value))}
              />
            ))}
        </g>
      ))}
      {ticks.map((time) => (
        <text key={time} x={x(time)} y={plotHeight + 18} textAnchor="middle" {...text}>
          {new Date(time).toISOString().slice(11, 16)}
        </text>
      ))}
      {parts.map((part) => (
        <rect
          key={part}
          x={left + part * 200}
          y={plotHeight + 34}
          width={200 / color.steps + 0.5}
          height={8}
          fill={shade(part)}
        />
      ))}
      <text x={left} y={plotHeight + 56} {...text}>
        {number(cellValues?.decimals)(lowest)}
      </text>
      <text x={left + 200} y={plotHeight + 56} textAnchor="end" {...text}>
        {number(cellValues?.decimals)(highest)}
      </text>
    </svg>
  );
}

// Draws a panel of each type with the parts that Grafana publishes.

import { dateTimeForTimeZone, FieldType, getFieldDisplayValues, toDataFrame } from "@grafana/data";
import { FlameGraph } from "@grafana/flamegraph";
import { BigValue, Table, TimeSeries } from "@grafana/ui";
import { marked } from "marked";
import React, { useLayoutEffect } from "react";
import { Heatmap } from "./heatmap.jsx";

// Draws the annotations of a board over a plot.
function Marks({ config, board, theme }) {
  useLayoutEffect(() => {
    config.addHook("draw", (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.setLineDash([5, 4]);
      ctx.lineWidth = 1.5;
      for (const { color, times } of board.annotations) {
        ctx.strokeStyle = theme.visualization.getColorByName(color);
        for (const time of times) {
          const x = Math.round(plot.valToPos(time * 1000, "x", true)) + 0.5;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
      }
      ctx.restore();
    });
  }, []);
  return null;
}

function Lines({ frames, panel, board, width, height, theme }) {
  const range = { from: dateTimeForTimeZone("utc", board.from), to: dateTimeForTimeZone("utc", board.to) };
  const legend = { showLegend: true, ...panel.options.legend };
  return (
    <TimeSeries
      frames={frames}
      timeRange={{ ...range, raw: range }}
      timeZone="utc"
      width={width}
      height={height}
      legend={legend}
      options={panel.options}
    >
      {(config) => <Marks config={config} board={board} theme={theme} />}
    </TimeSeries>
  );
}

function Stat({ frames, panel, width, height, theme }) {
  const { reduceOptions, colorMode, graphMode, textMode } = panel.options;
  const values = getFieldDisplayValues({
    data: frames,
    fieldConfig: panel.fieldConfig,
    reduceOptions,
    replaceVariables: (text) => text,
    theme,
    timeZone: "utc",
  });
  const each = {
    width: width / values.length,
    height,
    colorMode,
    graphMode,
    textMode,
    justifyMode: "auto",
    count: values.length,
    theme,
  };
  return (
    <div style={{ display: "flex" }}>
      {values.map(({ display }, at) => (
        <BigValue key={at} value={display} {...each} />
      ))}
    </div>
  );
}

function Rows({ frames: [frame], panel, width, height }) {
  return (
    <Table
      data={frame}
      width={width}
      height={height}
      columnMinWidth={60}
      initialSortBy={panel.options.sortBy}
      fieldConfig={panel.fieldConfig}
      resizable={false}
    />
  );
}

const Text = ({ panel }) => (
  <div className="markdown-html" dangerouslySetInnerHTML={{ __html: marked.parse(panel.options.content) }} />
);

function Flames({ panel, theme }) {
  const column = (name, type, config = {}) => ({ name, type, config, values: panel.profile.map((row) => row[name]) });
  const unit = { unit: panel.fieldConfig.defaults.unit };
  const data = toDataFrame({
    fields: [
      column("level", FieldType.number),
      column("value", FieldType.number, unit),
      column("self", FieldType.number, unit),
      column("label", FieldType.string),
    ],
  });
  return <FlameGraph data={data} getTheme={() => theme} />;
}

export const kinds = { timeseries: Lines, stat: Stat, table: Rows, text: Text, heatmap: Heatmap, flamegraph: Flames };

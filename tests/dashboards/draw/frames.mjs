// Makes Grafana's frames of the answers of Prometheus, with the configuration of the panel's fields.

import {
  FieldType,
  getDisplayProcessor,
  getFieldDisplayName,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from "@grafana/data";
import { firstValueFrom } from "rxjs";

standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer].map((transformation) => ({
    id: transformation.id,
    name: transformation.name,
    transformation,
  })),
);

// The defaults of Grafana's own panels.
const defaults = {
  timeseries: {
    color: { mode: "palette-classic" },
    custom: {
      drawStyle: "line",
      lineInterpolation: "linear",
      lineWidth: 1,
      fillOpacity: 0,
      gradientMode: "none",
      spanNulls: false,
      pointSize: 5,
      axisPlacement: "auto",
      axisColorMode: "text",
      axisBorderShow: false,
      axisCenteredZero: false,
      scaleDistribution: { type: "linear" },
      hideFrom: { legend: false, tooltip: false, viz: false },
      thresholdsStyle: { mode: "off" },
      barAlignment: 0,
      barWidthFactor: 0.6,
    },
  },
  stat: { color: { mode: "thresholds" } },
  table: { color: { mode: "thresholds" }, custom: { align: "auto", inspect: false, cellOptions: { type: "auto" } } },
};

const named = (format, metric) => format?.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? "").trim();

const lines = ({ refId, legendFormat, series }, step) =>
  series.map(({ metric, value, values = [value] }) =>
    toDataFrame({
      refId,
      fields: [
        { name: "Time", type: FieldType.time, config: { interval: step }, values: values.map(([time]) => time * 1000) },
        {
          name: "Value",
          type: FieldType.number,
          labels: metric,
          config: { displayNameFromDS: named(legendFormat, metric) },
          values: values.map(([, number]) => Number(number)),
        },
      ],
    }),
  );

function rows({ refId, series }, many) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].sort();
  return toDataFrame({
    refId,
    fields: [
      { name: "Time", type: FieldType.time, values: series.map(({ value }) => value[0] * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: series.map(({ metric }) => metric[label]) })),
      { name: many ? `Value #${refId}` : "Value", type: FieldType.number, values: series.map(({ value }) => Number(value[1])) },
    ],
  });
}

const matches = ({ id, options }, field, name) =>
  ({
    byName: () => name === options,
    byType: () => field.type === options,
    byRegexp: () => new RegExp(options.slice(1, -1)).test(name),
  })[id]();

function put(config, [first, ...rest], value) {
  return { ...config, [first]: rest.length > 0 ? put(config[first] ?? {}, rest, value) : value };
}

// Adds the defaults and overrides of a panel to its frames, and the functions that format their values.
function configured(frames, panel, theme) {
  const { defaults: own = {}, overrides = [] } = panel.fieldConfig ?? {};
  const base = defaults[panel.type] ?? {};
  let seriesIndex = 0;
  for (const frame of frames) {
    for (const field of frame.fields) {
      const name = getFieldDisplayName(field, frame, frames);
      let config = {
        ...base,
        ...own,
        ...field.config,
        custom: field.type === FieldType.number || panel.type === "table" ? { ...base.custom, ...own.custom } : {},
      };
      for (const { matcher, properties } of overrides.filter((override) => matches(override.matcher, field, name))) {
        for (const { id, value } of properties) config = put(config, id.split("."), value);
      }
      // Grafana's editor adds the group.
      if (config.custom.stacking) config = put(config, ["custom", "stacking", "group"], "A");
      field.config = config;
      field.state = { ...field.state, displayName: name };
      if (field.type === FieldType.number) field.state.seriesIndex = seriesIndex++;
      field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
      field.getLinks = () => (config.links ?? []).map(({ title }) => ({ title, href: "#", target: "_self", origin: field }));
    }
  }
  return frames;
}

export async function framesOf(panel, step, theme) {
  const { answers } = panel;
  const raw = answers.flatMap((answer) => (answer.format === "table" ? [rows(answer, answers.length > 1)] : lines(answer, step)));
  const done = panel.transformations ? await firstValueFrom(transformDataFrame(panel.transformations, raw)) : raw;
  return configured(done, panel, theme);
}

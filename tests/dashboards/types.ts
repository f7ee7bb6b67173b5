// Grafana's types, as JSON has them: the members of its enumerations are written as their values there, and Grafana fills
// in what is left out of options.

import type { Dashboard, FieldConfigSource, Panel, RowPanel, VariableModel, AnnotationQuery, DashboardLink } from "GRAFANA/dashboard";
import type { Options as Text } from "GRAFANA/text";
import type { Options as Stat } from "GRAFANA/stat";
import type { FieldConfig as TableCell, Options as Table } from "GRAFANA/table";
import type { FieldConfig as Lines, Options as TimeSeries } from "GRAFANA/timeseries";
import type { FieldConfig as Cells, Options as Heatmap } from "GRAFANA/heatmap";

type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined | ((...args: never[]) => unknown)
    ? T
    : T extends readonly (infer U)[]
      ? Json<U>[]
      : { [K in keyof T]?: Json<T[K]> };

// A property of one of these types that Grafana does not have is an error, since all values are literals.
type Of<Type extends string, Options, Custom> = Json<Omit<Panel, "type" | "options" | "fieldConfig" | "targets">> & {
  type: Type;
  title: string;
  options: Json<Options>;
  targets?: Query[];
  fieldConfig?: { defaults: Json<Omit<FieldConfigSource["defaults"], "custom">> & { custom?: Json<Custom> }; overrides: Json<FieldConfigSource["overrides"]> };
};

// The data sources' own queries are in no published package; these are the fields in use.
interface Query {
  refId: string;
  datasource: { type: "prometheus" | "grafana-pyroscope-datasource"; uid: string };
  expr?: string;
  legendFormat?: string;
  instant?: boolean;
  range?: boolean;
  format?: "table" | "time_series" | "heatmap";
  queryType?: "profile";
  profileTypeId?: string;
  labelSelector?: string;
  groupBy?: string[];
}

// The published type knows the annotations of Grafana's own store alone.
type Annotation = Json<Omit<AnnotationQuery, "target">> & {
  target: { refId: string; expr: string; interval: string };
  titleFormat: string;
  textFormat: string;
};

type None = Record<string, never>;
export type AnyPanel =
  | Of<"text", Text, None>
  | Of<"stat", Stat, None>
  | Of<"table", Table, TableCell>
  | Of<"timeseries", TimeSeries, Lines>
  | Of<"heatmap", Heatmap, Cells>
  | Of<"flamegraph", None, None>;
export type Row = Omit<Json<RowPanel>, "panels"> & { type: "row"; panels: AnyPanel[] };

export type Board = Omit<Json<Dashboard>, "panels" | "templating" | "annotations" | "links" | "schemaVersion"> & {
  schemaVersion: number;
  uid: string;
  title: string;
  annotations: { list: Annotation[] };
  links: Json<DashboardLink>[];
  templating: { list: Json<VariableModel>[] };
  panels: (AnyPanel | Row)[];
};

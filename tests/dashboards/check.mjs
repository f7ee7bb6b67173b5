// Holds each dashboard of the chart against the types of Grafana that @grafana/schema publishes: of the oldest version that
// the dashboards are for, and of the newest one. A dashboard becomes a literal of TypeScript, so that a misspelt property is
// an error, too. The rendering of panels is no part of it.

import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
// The first argument is where the packages are installed: outside of the sources. The second is for other dashboards.
const installed = resolve(process.argv[2] ?? here);
const boards = process.argv[3] ?? join(here, "../../charts/podperf/files/dashboards");
const modules = join(installed, "node_modules/@grafana");
const ts = createRequire(join(installed, "package.json"))("typescript");
const name = (kind) => ({ stat: "Stat", text: "Text", table: "Table", timeseries: "TimeSeries", heatmap: "Heatmap" })[kind];
const kinds = ["text", "stat", "table", "timeseries", "heatmap"];
// Where the two versions keep the same types.
const versions = {
  "schema-oldest": (part) =>
    part === "dashboard"
      ? "dist/esm/raw/dashboard/x/dashboard_types.gen"
      : `dist/esm/raw/composable/${part}/panelcfg/x/${name(part)}PanelCfg_types.gen`,
  schema: (part) =>
    part === "dashboard" ? "dist/types/raw/dashboard/x/types.gen" : `dist/types/raw/composable/${part}/panelcfg/x/types.gen`,
};
const options = { noEmit: true, strict: true, skipLibCheck: true, target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler };

let failed = 0;
for (const [version, path] of Object.entries(versions)) {
  const published = JSON.parse(readFileSync(join(modules, version, "package.json"), "utf8")).version;
  const directory = mkdtempSync(join(tmpdir(), "podperf-dashboards-"));
  symlinkSync(join(installed, "node_modules"), join(directory, "node_modules"));
  let types = readFileSync(join(here, "types.ts"), "utf8");
  for (const part of ["dashboard", ...kinds]) {
    types = types.replace(`"GRAFANA/${part}"`, JSON.stringify(join(modules, version, path(part))));
  }
  // A type that cannot be found would be `any`, which everything fits.
  writeFileSync(join(directory, "types.ts"), types);
  const files = readdirSync(boards).filter((file) => file.endsWith(".json"));
  const roots = files.map((file) => {
    const json = readFileSync(join(boards, file), "utf8");
    const target = join(directory, file.replace(/\.json$/, ".ts"));
    writeFileSync(target, `import type { Board } from "./types";\nexport const board: Board = ${json.trim()};\n`);
    return target;
  });
  const program = ts.createProgram([join(directory, "types.ts"), ...roots], options);
  const found = ts.getPreEmitDiagnostics(program);
  for (const problem of found) {
    const at = problem.file ? problem.file.getLineAndCharacterOfPosition(problem.start) : { line: 0 };
    const file = (problem.file?.fileName ?? "").replace(`${directory}/`, "");
    console.error(`@grafana/schema ${published}: ${file}:${at.line}: ${ts.flattenDiagnosticMessageText(problem.messageText, "\n  ")}`);
  }
  failed += found.length;
  console.log(`@grafana/schema ${published}: ${files.length} dashboards, ${found.length} errors`);
  rmSync(directory, { recursive: true });
}
process.exit(failed ? 1 : 0);

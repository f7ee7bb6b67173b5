// Draws the pictures of the dashboards, from made-up series in a real Prometheus with the chart's rules. It runs the boards' own
// queries, and draws the answers with the parts that Grafana publishes on npm. These packages are installed for the drawing
// alone, and nothing of them is in this repository.
//
//     draw.mjs REPOSITORY PROMETHEUS_DIRECTORY BROWSER
//
// The packages of package.json must be installed beside this file. `make dashboard-pictures` copies this directory to
// target/dashboard-pictures, and installs them there.

import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import UPNG from "upng-js";
import { answered } from "./board.mjs";
import { Browser } from "./browser.mjs";
import { choices } from "./clusters.mjs";
import { profile } from "./profiles.mjs";
import { Prometheus } from "./prometheus.mjs";

const WIDTH = 1496;
const COLORS = 256;

const here = dirname(fileURLToPath(import.meta.url));
const [repository, programs, browserProgram] = process.argv.slice(2);
const files = join(repository, "charts/podperf/files");
const types = {
  ".js": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".html": "text/html",
};

// Serves the page, its boards, and the icons of Grafana's package.
async function serve(pages) {
  const icons = join(here, "node_modules/@grafana/ui/dist/public");
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    try {
      const body =
        pages[pathname] ??
        (pathname.startsWith("/public/") ? readFileSync(join(icons, pathname.slice("/public/".length))) : undefined);
      response.writeHead(body ? 200 : 404, { "content-type": types[extname(pathname)] ?? "text/html" }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return server;
}

async function bundle() {
  const { outputFiles } = await build({
    entryPoints: [join(here, "page.jsx")],
    bundle: true,
    minify: true,
    write: false,
    outdir: "/",
    format: "esm",
    // The other builds of these packages do not find the defaults of CommonJS packages.
    alias: Object.fromEntries(
      ["@grafana/data", "@grafana/ui"].map((name) => [name, join(here, `node_modules/${name}/dist/cjs/index.cjs`)]),
    ),
    // An editor, which no panel has.
    external: ["monaco-editor"],
    define: { "process.env.NODE_ENV": '"production"', global: "window" },
    loader: { ".ttf": "dataurl", ".woff": "dataurl", ".woff2": "dataurl" },
    logLevel: "error",
  });
  return Object.fromEntries(outputFiles.map(({ path, text }) => [path, text]));
}

async function boards(prometheus) {
  const pages = {};
  await prometheus.fill(join(files, "rules"));
  for (const [uid, chosen] of Object.entries(choices)) {
    const board = await answered(prometheus, JSON.parse(readFileSync(join(files, `dashboards/${uid}.json`), "utf8")), chosen);
    for (const panel of board.panels.filter(({ type }) => type === "flamegraph"))
      panel.profile = profile(panel.targets[0].profileTypeId);
    pages[`/${uid}.json`] = JSON.stringify(board);
  }
  return pages;
}

// Returns the picture with a palette, which makes it several times smaller.
function smaller(png) {
  const image = UPNG.decode(png);
  return Buffer.from(UPNG.encode(UPNG.toRGBA8(image), image.width, image.height, COLORS));
}

const work = mkdtempSync(join(here, "data-"));
const prometheus = new Prometheus(programs, work);
let browser;
let server;
try {
  const html =
    '<!doctype html><meta charset="utf-8"><style>body { margin: 0 }</style><link rel="stylesheet" href="/page.css"><div id="board"></div><script type="module" src="/page.js"></script>';
  server = await serve({ "/": html, ...(await bundle()), ...(await boards(prometheus)) });
  mkdirSync(join(work, "browser"));
  browser = new Browser(browserProgram, join(work, "browser"));
  for (const uid of Object.keys(choices)) {
    const png = smaller(await browser.picture(`http://127.0.0.1:${server.address().port}/?board=${uid}`, WIDTH));
    const file = join(repository, `docs/dashboards/${uid.slice("podperf-".length)}.png`);
    writeFileSync(file, png);
    console.log(`${file}: ${png.length} bytes`);
  }
} finally {
  server?.close();
  await browser?.stop();
  await prometheus.stop();
  rmSync(work, { recursive: true, force: true });
}

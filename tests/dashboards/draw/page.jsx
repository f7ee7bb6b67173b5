// Draws the board that the query string names, and then sets `window.drawn`.

import "@fontsource/inter/400.css";
import "@fontsource/inter/500.css";
import "@fontsource/roboto-mono/400.css";
import { createTheme, ThemeContext } from "@grafana/data";
import { GlobalStyles } from "@grafana/ui";
import React from "react";
import { createRoot } from "react-dom/client";
import { framesOf } from "./frames.mjs";
import { kinds } from "./panels.jsx";

// Grafana's grid.
const COLUMNS = 24;
const ROW = 30;
const GAP = 8;
const HEADER = 40;
const TITLE = 32;
const PADDING = 8;

const theme = createTheme({ colors: { mode: "light" } });
const border = `1px solid ${theme.colors.border.weak}`;

function place({ x, y, w, h }) {
  const column = (window.innerWidth - GAP) / COLUMNS;
  return {
    position: "absolute",
    left: GAP + x * column,
    top: HEADER + y * (ROW + GAP),
    width: w * column - GAP,
    height: h * (ROW + GAP) - GAP,
  };
}

function Panel({ panel, board }) {
  const box = place(panel.gridPos);
  if (panel.type === "row") return <div style={{ ...box, padding: "6px 0", fontWeight: 500 }}>⌄ {panel.title}</div>;
  const Kind = kinds[panel.type];
  const inside = { width: box.width - 2 * PADDING - 2, height: box.height - TITLE - PADDING - 2 };
  return (
    <div style={{ ...box, border, borderRadius: 2, background: theme.colors.background.primary, overflow: "hidden" }}>
      <div style={{ height: TITLE, padding: `${PADDING}px`, lineHeight: "16px", fontWeight: 500, whiteSpace: "nowrap" }}>
        {panel.title}
      </div>
      <div style={{ ...inside, marginLeft: PADDING, overflow: "hidden" }}>
        <Kind frames={panel.frames} panel={panel} board={board} theme={theme} {...inside} />
      </div>
    </div>
  );
}

function Board({ board }) {
  const end = Math.max(...board.panels.map(({ gridPos: { y, h } }) => y + h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: "relative", height: HEADER + end * (ROW + GAP), fontSize: 14 }}>
        <div style={{ padding: `10px ${GAP}px` }}>
          <span style={{ fontSize: 18 }}>{board.title}</span>
          {board.variables.map(({ label, value }) => (
            <span key={label} style={{ marginLeft: 18, color: theme.colors.text.secondary }}>
              {label}: <b style={{ fontWeight: 500 }}>{value}</b>
            </span>
          ))}
        </div>
        {board.panels.map((panel) => (
          <Panel key={panel.id} panel={panel} board={board} />
        ))}
      </div>
    </ThemeContext.Provider>
  );
}

const board = await (await fetch(`/${new URLSearchParams(location.search).get("board")}.json`)).json();
for (const panel of board.panels) panel.frames = await framesOf(panel, board.step, theme);
// Grafana's parts measure text before they draw it.
for (const font of ["400 14px Inter", "500 14px Inter", "400 12px 'Roboto Mono'"]) await document.fonts.load(font);
createRoot(document.getElementById("board")).render(<Board board={board} />);
// Sizes are observed, and plots are drawn, in the frames that follow.
setTimeout(() => requestIdleCallback(() => (window.drawn = true)), 3000);

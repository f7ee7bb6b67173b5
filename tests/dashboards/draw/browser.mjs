// A headless Chromium on a pipe. Messages of its DevTools protocol are JSON, and end with a zero byte. It shows our own page
// alone, so it needs no sandbox, which root cannot have.

import { spawn } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";

export class Browser {
  constructor(program, profile) {
    const flags = [
      "--headless=new",
      "--no-sandbox",
      "--disable-gpu",
      "--hide-scrollbars",
      "--force-color-profile=srgb",
      "--font-render-hinting=none",
    ];
    this.child = spawn(program, [...flags, "--remote-debugging-pipe", `--user-data-dir=${profile}`], {
      stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
    });
    this.calls = new Map();
    this.problems = [];
    let rest = "";
    this.child.stdio[4].setEncoding("utf8").on("data", (data) => {
      const parts = (rest + data).split("\0");
      rest = parts.pop();
      for (const part of parts) this.take(JSON.parse(part));
    });
    this.child.once("exit", () => this.calls.forEach(({ reject }) => reject(new Error("the browser ended"))));
  }

  take({ id, result, error, method, params }) {
    if (id !== undefined) {
      const { resolve, reject } = this.calls.get(id);
      this.calls.delete(id);
      return error ? reject(new Error(error.message)) : resolve(result);
    }
    if (method === "Runtime.exceptionThrown")
      this.problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  }

  call(method, params = {}, sessionId = undefined) {
    const id = this.calls.size === 0 ? 1 : Math.max(...this.calls.keys()) + 1;
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.calls.set(id, { resolve, reject }));
  }

  // Returns the PNG of a whole page, once its `window.drawn` is true.
  async picture(url, width) {
    const { targetId } = await this.call("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.call("Target.attachToTarget", { targetId, flatten: true });
    const call = (method, params) => this.call(method, params, sessionId);
    const size = (height) => call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
    const value = async (expression) => (await call("Runtime.evaluate", { expression })).result.value;
    await call("Runtime.enable");
    await size(1000);
    await call("Page.navigate", { url });
    for (let tries = 0; !(await value("window.drawn")); tries += 1) {
      if (tries > 3000 || this.problems.length > 0) throw new Error(`${url}: not drawn: ${this.problems.join("\n")}`);
      await sleep(200);
    }
    await size(await value("document.documentElement.scrollHeight"));
    await sleep(1000);
    if (this.problems.length > 0) throw new Error(`${url}: ${this.problems.join("\n")}`);
    const { data } = await call("Page.captureScreenshot", { format: "png", captureBeyondViewport: true });
    await call("Target.closeTarget", { targetId });
    return Buffer.from(data, "base64");
  }

  async stop() {
    if (this.child.exitCode !== null) return;
    const gone = new Promise((done) => this.child.once("exit", done));
    this.child.kill("SIGTERM");
    await gone;
  }
}

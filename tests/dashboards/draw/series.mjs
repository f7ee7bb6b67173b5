// Writes all series of the made-up clusters to a file.

import { addAgent, addNode } from "./agents.mjs";
import { nodes } from "./clusters.mjs";
import { Text } from "./text.mjs";
import { addWorkloads } from "./workloads.mjs";

export async function write(path) {
  const text = new Text(path);
  addWorkloads(text);
  nodes.forEach((each, number) => {
    const { cluster, node } = each;
    const labels = { job: "podperf", cluster, instance: node, node };
    addNode(text, each, labels);
    addAgent(text, each, labels, number);
  });
  await text.end();
}

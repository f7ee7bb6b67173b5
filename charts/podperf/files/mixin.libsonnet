// A monitoring mixin: the rules and dashboards of the chart, for those who deploy with jsonnet. It holds none itself.
// `jb install github.com/podperf/podperf/charts/podperf/files@main` installs it with the files that it reads.
local groups(files) = { groups: std.flattenArrays([std.parseYaml(file).groups for file in files]) };

// A dashboard as grafana.com takes it: with the list of what it needs. Its data source is a variable, so it has no inputs.
local forGrafanaCom(board) =
  local panels = board.panels + std.flattenArrays([std.get(panel, 'panels', []) for panel in board.panels]);
  local sources = std.set([
    target.datasource.type
    for panel in panels
    for target in std.get(panel, 'targets', [])
  ]);
  local needs(kind, ids) = [{ type: kind, id: id, name: id, version: '' } for id in ids];
  board {
    __inputs: [],
    __elements: {},
    __requires: [{ type: 'grafana', id: 'grafana', name: 'Grafana', version: '11.6.0' }]
                + needs('panel', std.set([panel.type for panel in panels if panel.type != 'row']))
                + needs('datasource', sources),
  };

{
  prometheusRules+:: groups([
    importstr 'rules/podperf-rules.yaml',
    importstr 'rules/podperf-workload-rules.yaml',
  ]),

  prometheusAlerts+:: groups([
    importstr 'rules/podperf-agent-alerts.yaml',
    importstr 'rules/podperf-workload-alerts.yaml',
  ]),

  grafanaDashboards+:: {
    'podperf-agent.json': import 'dashboards/podperf-agent.json',
    'podperf-cluster.json': import 'dashboards/podperf-cluster.json',
    'podperf-namespace.json': import 'dashboards/podperf-namespace.json',
    'podperf-node.json': import 'dashboards/podperf-node.json',
    'podperf-pod.json': import 'dashboards/podperf-pod.json',
    'podperf-workload.json': import 'dashboards/podperf-workload.json',
  },

  // Not part of a mixin: `jsonnet --multi . --exec "(import 'mixin.libsonnet').grafanaCom"` writes the files.
  grafanaCom:: std.mapWithKey(function(name, board) forGrafanaCom(board), self.grafanaDashboards),
}

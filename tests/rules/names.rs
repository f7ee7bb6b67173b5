//! Every metric that a rule, a dashboard or a page names is one of the agent's metrics, and vice versa.

use std::{collections::BTreeSet, fs};

use anyhow::{Result, ensure};
use podperf::model::sensors;
use podperf_tests::{
    dashboards, golden,
    reference::{details, print, reference},
    rules::{self, files_in, promql, root},
    suite::{Test, tell},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    the_reference_is_generated_by_the_agent,
    rules_and_dashboards_name_metrics_that_there_are,
    pages_name_metrics_that_there_are,
    every_family_is_in_a_rule_or_a_dashboard,
    rules_and_dashboards_of_pods_and_nodes_need_no_details_of_the_agent,
    no_panel_takes_a_state_without_series_for_an_absent_agent,
];

/// Metrics of other exporters, and of Prometheus itself: kube-state-metrics, cAdvisor, the scrape, its alerts.
pub(crate) const OF_OTHERS: &[&str] = &[
    "kube_node_info",
    "kube_node_labels",
    "kube_node_spec_taint",
    "kube_node_status_condition",
    "kube_node_status_allocatable",
    "kube_pod_container_resource_limits",
    "kube_pod_container_resource_requests",
    "kube_pod_container_status_restarts_total",
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_throttled_seconds_total",
    "container_pressure_cpu_waiting_seconds_total",
    "up",
    "ALERTS",
];

/// Families that neither a rule nor a dashboard uses; `*` stands for any end.
const UNUSED: &[(&str, &str)] = &[
    ("podperf_pod_*", "the recording rules take what they need of them; the rest is for `metrics.level: pod`"),
    ("podperf_cgroup_*", "machines without a cluster have dashboards of their own"),
    ("podperf_container_cpu_migrations_total", "off by default"),
    ("podperf_container_page_faults_total", "off by default"),
    ("podperf_container_profile_samples_total", "off by default"),
    ("podperf_container_waits_total", "off by default"),
    ("podperf_container_cpu_branch_*", "off by default"),
    ("podperf_container_cpu_bus_cycles_total", "off by default"),
    ("podperf_container_cpu_stalled_cycles_*", "off by default"),
    ("podperf_container_cpu_ref_cycles_total", "off by default"),
    ("podperf_container_cpu_clock_seconds_total", "off by default"),
    ("podperf_container_task_clock_seconds_total", "off by default"),
    ("podperf_container_l1d_*", "off by default"),
    ("podperf_container_llc_*", "off by default"),
    ("podperf_container_dtlb_*", "off by default"),
    ("podperf_container_itlb_*", "off by default"),
    ("podperf_container_perf_events_total", "off by default"),
    ("podperf_node_workqueue_latency_seconds", "off by default"),
    ("podperf_node_workqueue_runs_total", "off by default"),
    ("podperf_pmu_event_info", "for people who ask what was counted"),
    ("podperf_node_bpf_program_run*", "only while somebody enables the kernel's statistics"),
    ("podperf_bpf_holders_unread", "for who misses a holder"),
    ("podperf_bpf_program_loaded", "always 1: a program that is not loaded is in no series"),
    ("podperf_bpf_program_verified_instructions", "a property of the build"),
    ("podperf_stack_cut_samples_total", "for who looks for the reason of stacks that are cut"),
    ("podperf_stack_kernel_walks_total", "for who measures podperf itself"),
    ("podperf_stack_shadow_*", "of a mode that measures podperf itself"),
    ("podperf_config_last_reload_success_timestamp_seconds", "the alert says whether it failed"),
    ("podperf_reading_timestamp_seconds", "for who holds counts against another clock"),
    ("podperf_http_requests_total", "for who asks what became of a scrape"),
    ("podperf_http_refusals_total", "the same, by reason"),
    ("podperf_access_reviews_total", "the same, of tokens"),
    ("podperf_debuginfod_*", "off by default"),
    ("process_virtual_memory_bytes", "says nothing where memory is not overcommitted"),
];

/// Words in pages that look like metrics.
const NO_METRICS: &[&str] = &[
    "podperf_drop",
    "podperf_cgroup",
    "process_gone",
    // Names of pushed metrics in a Prometheus that receives OTLP.
    "podperf_container_oncpu_time_seconds_total",
    "podperf_container_offcpu_time_seconds_total",
    "podperf_container_wait_time_seconds_total",
    "podperf_offcpu_state",
    "podperf_offcpu_reason",
];

fn recorded() -> Result<BTreeSet<String>> {
    let files = rules::read()?;
    let rules = files.iter().flat_map(|file| &file.rules).filter(|rule| !rule.is_alert);
    Ok(rules.map(|rule| rule.name.clone()).collect())
}

/// Returns each expression with its source.
fn expressions() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for file in rules::read()? {
        found.extend(file.rules.iter().map(|rule| (rule.name.clone(), file.expression(rule))));
    }
    for dashboard in dashboards::read()? {
        for panel in &dashboard.panels {
            let place = format!("{}: {}", dashboard.uid, panel.title);
            found.extend(panel.queries.iter().map(|query| (place.clone(), query.clone())));
        }
        let variables = dashboard.variables.iter().filter_map(|variable| variable.label_values.clone());
        found.extend(variables.map(|(selector, _)| (dashboard.uid.clone(), selector)));
        let annotations = dashboard.json["annotations"]["list"].as_array().into_iter().flatten();
        let annotations = annotations.filter_map(|annotation| annotation["target"]["expr"].as_str());
        found.extend(annotations.map(|query| (dashboard.uid.clone(), query.to_owned())));
    }
    Ok(found)
}

fn the_reference_is_generated_by_the_agent() -> Result<()> {
    golden::expect(&root().join("docs/metrics.md"), &print("markdown")?)
}

fn rules_and_dashboards_name_metrics_that_there_are() -> Result<()> {
    let (reference, recorded) = (reference()?, recorded()?);
    for (place, expression) in expressions()? {
        let selectors = promql::selectors(&expression);
        ensure!(!selectors.is_empty(), "{place} asks for nothing: {expression}");
        for selector in selectors {
            let name = selector.metric.as_str();
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            let known = reference.contains_key(family) || recorded.contains(name) || OF_OTHERS.contains(&name);
            ensure!(known, "{place} names `{name}`, which nobody has");
        }
    }
    Ok(())
}

fn rules_and_dashboards_of_pods_and_nodes_need_no_details_of_the_agent() -> Result<()> {
    let details = details()?;
    ensure!(details.len() > 20, "only {details:?}");
    for (place, expression) in expressions()?.iter().filter(|(place, _)| !place.starts_with("podperf-agent")) {
        for selector in promql::selectors(expression) {
            ensure!(!details.contains(&selector.metric), "{place} needs `metrics.own: all`: `{}`", selector.metric);
        }
    }
    for runbook in files_in(&root().join("docs/runbooks"), ".md")? {
        let text = fs::read_to_string(&runbook)?;
        let unsaid = details.iter().find(|name| text.contains(*name) && !text.contains("metrics.own: all"));
        ensure!(unsaid.is_none(), "{} does not say what {unsaid:?} needs", runbook.display());
    }
    Ok(())
}

/// With `metrics.own: brief`, only the state that a part is in has a series.
fn no_panel_takes_a_state_without_series_for_an_absent_agent() -> Result<()> {
    let mut found = 0;
    for board in dashboards::read()? {
        for query in board.panels.iter().flat_map(|panel| &panel.queries) {
            let mut selectors = promql::selectors(query).into_iter();
            let of_some = selectors.any(|it| it.metric == "podperf_part_state" && it.matchers.contains("state="));
            found += usize::from(of_some);
            ensure!(!of_some || query.contains(" or "), "{}: empty while all is well: {query}", board.uid);
        }
    }
    ensure!(found > 0, "no panel shows the parts that do not work");
    Ok(())
}

fn pages_name_metrics_that_there_are() -> Result<()> {
    let (reference, recorded) = (reference()?, recorded()?);
    let names: Vec<&str> =
        reference.keys().chain(&recorded).map(String::as_str).chain(OF_OTHERS.iter().copied()).collect();
    let mut pages = vec![root().join("README.md"), root().join("config/holmesgpt.yaml")];
    for directory in ["docs", "docs/runbooks"] {
        pages.extend(files_in(&root().join(directory), ".md")?);
    }
    let mut count = 0;
    for page in pages {
        let text = fs::read_to_string(&page)?;
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        for word in words.map(|word| word.trim_matches(':')) {
            let ours =
                ["podperf_", "process_"].iter().any(|prefix| word.starts_with(prefix)) || word.contains(":podperf_");
            if !ours || word.starts_with("process_cpu:") || NO_METRICS.contains(&word) {
                continue;
            }
            count += 1;
            // `podperf_cgroup_*` stands for many metrics.
            let known = names.contains(&word) || word.ends_with('_') && names.iter().any(|name| name.starts_with(word));
            ensure!(known, "{} names `{word}`, which nobody has", page.display());
        }
    }
    ensure!(count > 100, "only {count} names in all pages");
    Ok(())
}

fn every_family_is_in_a_rule_or_a_dashboard() -> Result<()> {
    let used: BTreeSet<String> = expressions()?
        .iter()
        .flat_map(|(_, expression)| promql::selectors(expression))
        .map(|selector| selector.metric)
        .collect();
    // Sensors are off by default.
    let of_sensors: Vec<String> = sensors::ALL
        .iter()
        .filter(|sensor| !sensor.is_default)
        .flat_map(|sensor| sensor.families)
        .map(|family| format!("podperf_container_{}_", family.name))
        .collect();
    let excused = |name: &str| {
        UNUSED.iter().any(|(row, _)| row.strip_suffix('*').map_or(name == *row, |prefix| name.starts_with(prefix)))
            || of_sensors.iter().any(|family| format!("{name}_").starts_with(family))
    };
    let reference = reference()?;
    for name in reference.keys() {
        ensure!(used.contains(name) || excused(name), "`{name}` is in no rule and no dashboard");
    }
    for (row, reason) in UNUSED.iter().filter(|(row, _)| !row.ends_with('*')) {
        ensure!(reference.contains_key(*row), "`{row}` ({reason}) is no family");
        ensure!(!used.contains(*row), "`{row}` is used, though it should not be: {reason}");
    }
    for recorded in recorded()? {
        ensure!(used.contains(&recorded), "`{recorded}` is recorded for nobody");
    }
    tell(&format!(
        "{} families, {} of them in rules or dashboards",
        reference.len(),
        reference.keys().filter(|name| used.contains(*name)).count()
    ));
    Ok(())
}

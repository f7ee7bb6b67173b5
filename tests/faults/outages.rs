//! The API server and the receiver fail at once and repeatedly, and the clock jumps.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context as _, Result};
use podperf_tests::{
    clock,
    cluster::{BURN, Cluster, ONCPU, SHOP, ensure_close, wait_for_part},
    control_plane::NEEDS,
    kubelet::Qos,
    suite::{Test, long, within},
    tests,
};

use crate::table::{nothing_was_lost, row, serves_and_counts};

pub(crate) const TESTS: &[Test] = tests![
    an_api_server_and_a_receiver_that_flap_at_once_cost_no_count: NEEDS,
];

pub(crate) const OF_OTHERS: &[Test] = tests![
    a_clock_that_jumps_a_day_and_back_costs_no_count: clock::CLOCK_NEEDS,
];

/// The time limit of the first lost profile. The queue holds two profiles, and the agent makes one each second.
const LOST_WITHIN: Duration = Duration::from_secs(60);

fn an_api_server_and_a_receiver_that_flap_at_once_cost_no_count() -> Result<()> {
    let rounds = if long() { 5 } else { 1 };
    // The receiver's port is closed, or open without answers.
    let mut receiver = Some(TcpListener::bind(("127.0.0.1", 0))?);
    let address = receiver.as_ref().context("no receiver")?.local_addr()?;
    let otlp = format!(
        "stacks: {{enabled: true}}\notlp: {{endpoint: 'http://{address}', interval: 1s, timeout: 300ms, queue: 2}}"
    );
    let mut cluster = Cluster::start_own("", &otlp)?;
    let pod = |round| cluster.kubelet.pod(SHOP, &format!("flap-{round}"), Qos::Burstable, &["app"]);
    let mut handles = (0..rounds).map(pod).collect::<Result<Vec<_>>>()?;
    let mut truths = Vec::new();
    let (mut pods, mut export) = (String::new(), String::new());
    for pod in &mut handles {
        cluster.plane.stop_api();
        receiver = match receiver.take() {
            Some(_) => None,
            None => Some(TcpListener::bind(address)?),
        };
        pods = wait_for_part(&cluster.agent, "pods", "degraded", &["failed to reach the API server"])?;
        export = wait_for_part(&cluster.agent, "profile export", "degraded", &[&address.to_string()])?;
        // The container lives in the outage, and has its name after it.
        let running = pod.start("app", BURN)?;
        truths.push((pod.name().to_owned(), pod.finish(running)?.cpu));
        cluster.plane.start_api()?;
        pod.report()?;
        cluster.wait_for_connection()?;
    }
    let mut metrics = cluster.agent.metrics()?;
    for (pod, truth) in &truths {
        metrics = cluster.wait_for_cpu(pod, "app", *truth)?;
        let seconds = metrics.get(ONCPU, &[("namespace", SHOP), ("pod", pod)]).context("no series")?;
        ensure_close(pod, seconds, *truth)?;
    }
    nothing_was_lost(&metrics)?;
    // The receiver accepts no profiles, and the queue is short.
    let lost = within(LOST_WITHIN, "profiles are counted as lost", || {
        let metrics = cluster.agent.metrics()?;
        let lost =
            metrics.sum("podperf_otlp_dropped_total", &[]) + metrics.sum("podperf_otlp_lost_requests_total", &[]);
        Ok((lost > 0.0).then_some(lost))
    })?;
    serves_and_counts(&mut cluster.agent)?;
    drop(receiver);
    row(
        &format!("API server and receiver away at once, {rounds} times"),
        &format!("`pods degraded {pods}`, `profile export degraded {export}`"),
        &format!("0 counts; {lost} profiles, in `podperf_otlp_dropped_total` and `podperf_otlp_lost_requests_total`"),
    );
    Ok(())
}

fn a_clock_that_jumps_a_day_and_back_costs_no_count() -> Result<()> {
    clock::a_clock_that_jumps_a_day_and_back_costs_no_count_and_no_series()?;
    row("the clock jumps a day ahead, back, and a day behind", "timestamps that jump with it; the watch goes on", "0");
    Ok(())
}

//! A connection to the API server that is slow, breaks in the middle, or is dead without an error.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    cluster::{BURN, Cluster, NODE, RECOVERY, SHOP, Spoilt, wait_for_part},
    control_plane::NEEDS,
    kubelet::{self, Qos},
    suite::{Test, tell, within},
    tests,
};

use crate::line::{Line, Way};

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_list_over_a_slow_line_arrives: NEEDS,
    #[land] #[beside] an_event_that_is_cut_in_the_middle_is_not_lost: NEEDS,
    #[beside] a_line_that_is_dead_at_the_start_is_told_and_tried_again: NEEDS,
    #[land] #[beside] a_watch_whose_answer_hesitates_is_not_called_connected: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
const CONNECTED: &str = "podperf_kube_watch_connected";
const FAILURES: &str = "podperf_kube_watch_failures_total";

/// Starts a cluster whose agent connects over `line`. It does not wait for the connection.
fn over(line: &Line, spoilt: Spoilt) -> Result<Cluster> {
    line.lead(&spoilt)?;
    Cluster::join(spoilt, "", "")
}

fn a_list_over_a_slow_line_arrives() -> Result<()> {
    let spoilt = Spoilt::start(AN_HOUR)?;
    // Each pod has two kilobytes or more.
    for number in 0..30 {
        let mut pod = kubelet::pod(SHOP, &format!("pod-{number}"), Qos::Burstable, &["app", "proxy"])?;
        pod.spec.get_or_insert_default().node_name = Some(NODE.into());
        pod.metadata.annotations = Some([("note".to_owned(), random_text()?)].into());
        spoilt.plane.admin().create_pod(&pod)?;
    }
    let line = Line::to(spoilt.plane.address())?;
    line.set(Way::Slow);
    let start = Instant::now();
    let cluster = over(&line, spoilt)?;
    ensure!(cluster.agent.get("/readyz", &[])?.0 == 503, "ready at once: the line is not slow");
    let finished = cluster.run_once("early", "app")?;
    let metrics = cluster.wait_for_connection()?;
    tell(&format!("a list of {} bytes over the slow line: {:.1?}", line.carried(), start.elapsed()));
    ensure!(start.elapsed() > Duration::from_secs(3), "the line is not slow");
    ensure!(metrics.get("podperf_kube_pods", &[]).is_some_and(|pods| pods >= 30.0), "not all pods");
    ensure!(metrics.get(FAILURES, &[]) == Some(0.0), "tried more than once:\n{}", cluster.agent.log());
    cluster.wait_for_cpu("early", "app", finished.cpu)?;
    Ok(())
}

fn an_event_that_is_cut_in_the_middle_is_not_lost() -> Result<()> {
    let spoilt = Spoilt::start(AN_HOUR)?;
    let line = Line::to(spoilt.plane.address())?;
    let mut cluster = over(&line, spoilt)?;
    cluster.wait_for_connection()?;
    for (turn, bytes) in [1, 30, 200, 700].into_iter().enumerate() {
        let name = format!("cut-{turn}");
        let mut pod = cluster.kubelet.pod(SHOP, &name, Qos::Burstable, &["app", "proxy"])?;
        let running = pod.start("app", BURN)?;
        // Waits for the remaining events of the pod's creation.
        cluster.wait_for("podperf_kube_pods", &[], |pods| pods > f64::from(u32::try_from(turn).unwrap_or(0)))?;
        line.set(Way::CutAfter(bytes));
        pod.report()?;
        within(RECOVERY, "the line is cut", || Ok((line.way() == Way::Open).then_some(())))?;
        let cut = Instant::now();
        let finished = pod.finish(running)?;
        // The container's id was in that event only. The agent resumes an older watch without an error, and a younger
        // one after a wait. The name must come in both cases.
        cluster.wait_for_connection()?;
        cluster.wait_for_cpu(&name, "app", finished.cpu)?;
        tell(&format!("cut after {bytes} bytes of an event: its name has come {:.1?} later", cut.elapsed()));
        if turn == 1 {
            // Each agent gets only two cuts, because its wait grows with each cut.
            cluster = Cluster::join(cluster.into_spoilt(), "", "")?;
            cluster.wait_for_connection()?;
        }
    }
    wait_for_part(&cluster.agent, "pods", "healthy", &["4 pods of node"])?;
    Ok(())
}

fn a_line_that_is_dead_at_the_start_is_told_and_tried_again() -> Result<()> {
    let spoilt = Spoilt::start(AN_HOUR)?;
    let line = Line::to(spoilt.plane.address())?;
    line.set(Way::Dead);
    let start = Instant::now();
    let cluster = over(&line, spoilt)?;
    let finished = cluster.run_once("early", "app")?;
    let address = format!("failed to reach the API server at `https://{}`", line.address());
    let says = [&*address, "(is there a NetworkPolicy or a firewall between?)"];
    let detail = wait_for_part(&cluster.agent, "pods", "degraded", &says)?;
    tell(&format!("a dead line is told after {:.1?}: {detail}", start.elapsed()));
    let (code, _, reason) = cluster.agent.get("/readyz", &[])?;
    let reason = String::from_utf8(reason)?;
    ensure!(code == 503 && reason.contains(&detail), "/readyz answered {code}: {reason}");
    line.set(Way::Open);
    let opened = Instant::now();
    cluster.wait_for_connection()?;
    tell(&format!("connected {:.1?} after the line was open", opened.elapsed()));
    cluster.wait_for_cpu("early", "app", finished.cpu)?;

    // The same failure while the agent runs: all open connections end, and new ones get no data.
    line.set(Way::Dead);
    line.cut();
    wait_for_part(&cluster.agent, "pods", "degraded", &[&address])?;
    let later = cluster.run_once("later", "app")?;
    thread::sleep(Duration::from_secs(1));
    ensure!(cluster.agent.metrics()?.get(CONNECTED, &[]) == Some(0.0), "connected over a dead line");
    line.set(Way::Open);
    cluster.wait_for_connection()?;
    cluster.wait_for_cpu("later", "app", later.cpu)?;
    Ok(())
}

fn a_watch_whose_answer_hesitates_is_not_called_connected() -> Result<()> {
    let spoilt = Spoilt::start(AN_HOUR)?;
    let line = Line::to(spoilt.plane.address())?;
    let cluster = over(&line, spoilt)?;
    cluster.wait_for_connection()?;
    // The agent can connect, and its requests never get an answer.
    line.set(Way::Deaf);
    line.cut();
    let detail = wait_for_part(&cluster.agent, "pods", "degraded", &["failed to hear from", "is it overloaded?"])?;
    tell(&format!("a watch that does not begin: {detail}"));
    let finished = cluster.run_once("meanwhile", "app")?;
    ensure!(cluster.agent.fresh_metrics()?.get(CONNECTED, &[]) == Some(0.0), "connected without an answer");
    line.set(Way::Open);
    line.cut();
    cluster.wait_for_connection()?;
    cluster.wait_for_cpu("meanwhile", "app", finished.cpu)?;
    Ok(())
}

/// Returns text that no compression makes shorter.
fn random_text() -> Result<String> {
    (0..8).map(|_| kubelet::random_id()).collect::<Result<String>>().context("no random text")
}

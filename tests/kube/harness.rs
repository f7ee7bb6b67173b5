//! What the other tests of this ring stand on: the control plane refuses and forgets, the played kubelet is believed.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use podperf_tests::{
    control_plane::{Client, ControlPlane, NEEDS, SharedPlane, code_of},
    kubelet::{self, Driver, Kubelet, Qos, Runtime},
    suite::{Test, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    the_service_account_may_only_read_pods: NEEDS,
    what_a_test_leaves_is_gone_for_the_next_one: NEEDS,
    a_revoked_role_is_refused_until_it_is_granted: NEEDS,
    a_pod_is_created_patched_and_deleted: NEEDS,
    a_container_is_reported_through_its_lives: NEEDS,
    each_kind_of_container_has_a_status_of_its_own: NEEDS,
    cgroups_are_named_as_by_each_driver: NEEDS,
    an_expired_token_is_refused_and_a_new_one_taken: NEEDS,
    a_watch_at_a_compacted_version_is_gone: NEEDS,
    a_paused_server_answers_late: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
const BURN: Duration = Duration::from_millis(50);
const PODS: &str = "/api/v1/pods";

/// What the server's default roles give to every service account: to ask about itself, and to read the versions, the
/// health, the list of the APIs, and the keys of tokens.
const EVERY_SERVICE_ACCOUNT: &[&str] = &[
    "selfsubjectreviews.authentication.k8s.io [] [] [create]",
    "selfsubjectaccessreviews.authorization.k8s.io [] [] [create]",
    "selfsubjectrulesreviews.authorization.k8s.io [] [] [create]",
    "[/.well-known/openid-configuration/] [] [get]",
    "[/.well-known/openid-configuration] [] [get]",
    "[/api/*] [] [get]",
    "[/api] [] [get]",
    "[/apis/*] [] [get]",
    "[/apis] [] [get]",
    "[/healthz] [] [get]",
    "[/livez] [] [get]",
    "[/openapi/*] [] [get]",
    "[/openapi] [] [get]",
    "[/openid/v1/jwks/] [] [get]",
    "[/openid/v1/jwks] [] [get]",
    "[/readyz] [] [get]",
    "[/version/] [] [get]",
    "[/version] [] [get]",
];

fn the_service_account_may_only_read_pods() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let agent = control_plane.agent_credentials(AN_HOUR)?;
    for namespace in ["podperf", "kube-system"] {
        let list = control_plane.kubectl(&agent, &["auth", "can-i", "--list", "--no-headers", "-n", namespace])?;
        let rules: BTreeSet<_> =
            list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let mut allowed: BTreeSet<_> = EVERY_SERVICE_ACCOUNT.iter().map(ToString::to_string).collect();
        allowed.insert("pods [] [] [get list watch]".to_owned());
        ensure!(rules == allowed, "in {namespace}, the service account may\n{list}");
    }
    Ok(())
}

fn what_a_test_leaves_is_gone_for_the_next_one() -> Result<()> {
    let left = SharedPlane::take()?;
    Kubelet::new("a-node", left.admin())?.pod("shop", "cart", Qos::Burstable, &["web"])?;
    left.revoke()?;
    let address = left.address();
    drop(left);
    let found = SharedPlane::take()?;
    ensure!(found.address() == address, "it is another control plane");
    let agent = Client::new(&found.agent_credentials(AN_HOUR)?.kubeconfig())?;
    let pods = agent.get(PODS)?;
    ensure!(!pods.contains("\"cart\""), "there is a pod: {pods}");
    Ok(())
}

fn a_revoked_role_is_refused_until_it_is_granted() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let agent = control_plane.agent_credentials(AN_HOUR)?;
    let client = Client::new(&agent.kubeconfig())?;
    client.get(PODS)?;
    control_plane.revoke()?;
    refused(&client, 403)?;
    control_plane.grant()?;
    client.get(PODS).map(drop)
}

fn a_pod_is_created_patched_and_deleted() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let admin = control_plane.admin();
    let kubelet = Kubelet::new("a-node", admin)?;
    let pod = kubelet.pod("shop", "cart", Qos::Burstable, &["web"])?;
    kubelet.pod("shop", "stock", Qos::BestEffort, &["web"])?;
    Kubelet::new("another-node", admin)?.pod("shop", "till", Qos::BestEffort, &["web"])?;
    ensure!(names(&admin.pods_of("a-node")?) == ["cart", "stock"], "{:?}", admin.pods_of("a-node")?);

    admin.patch_pod("shop", "cart", &serde_json::json!({"metadata": {"labels": {"app": "cart"}}}))?;
    admin.patch_status("shop", "cart", &serde_json::json!({"phase": "Running"}))?;
    let patched = admin.pod("shop", "cart")?;
    ensure!(patched.metadata.uid.as_deref() == Some(pod.uid()), "another pod: {patched:?}");
    ensure!(patched.metadata.labels.is_some_and(|labels| labels["app"] == "cart"), "no label");
    ensure!(patched.status.is_some_and(|status| status.phase.as_deref() == Some("Running")), "no phase");

    pod.delete()?;
    ensure!(names(&admin.pods_of("a-node")?) == ["stock"], "still there");
    Ok(())
}

fn a_container_is_reported_through_its_lives() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let kubelet = Kubelet::new("a-node", control_plane.admin())?;
    let mut pod = kubelet.pod("shop", "cart", Qos::Burstable, &["web"])?;
    let first = pod.start("web", BURN)?;
    first.burnt()?;
    pod.report()?;
    let status = web_of(&pod)?;
    ensure!(status.container_id == Some(format!("containerd://{}", first.id())), "{status:?}");
    ensure!(status.state.is_some_and(|state| state.running.is_some()), "not running");

    let directory = first.cgroup().path().to_owned();
    let finished = pod.finish(first)?;
    ensure!(finished.status.success() && finished.cpu >= BURN, "{finished:?}");
    ensure!(!directory.exists(), "`{}` is still there", directory.display());
    pod.wait("web", "CrashLoopBackOff");
    pod.report()?;
    let status = web_of(&pod)?;
    let ended = |status: &ContainerStatus| status.last_state.clone().and_then(|state| state.terminated);
    ensure!(ended(&status).is_some_and(|ended| ended.exit_code == 0), "{status:?}");

    let second = pod.start("web", BURN)?;
    ensure!(second.id() != finished.id, "the same id");
    let killed = pod.kill(second)?;
    let third = pod.start("web", BURN)?;
    pod.report()?;
    let status = web_of(&pod)?;
    ensure!(status.restart_count == 2, "{status:?}");
    let ended = ended(&status).context("no last state")?;
    ensure!(ended.exit_code == 137, "{ended:?}");
    ensure!(ended.container_id.is_some_and(|id| id.ends_with(&killed.id)), "another life than {}", killed.id);
    pod.finish(third).map(drop)
}

fn each_kind_of_container_has_a_status_of_its_own() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let kubelet = Kubelet::new("a-node", control_plane.admin())?;
    let mut specification = kubelet::pod("shop", "cart", Qos::Guaranteed, &["web"])?;
    let mut setup = kubelet::pod("shop", "cart", Qos::Guaranteed, &["setup"])?;
    let spec = specification.spec.as_mut().context("no spec")?;
    spec.init_containers = setup.spec.take().map(|spec| spec.containers);
    let mut pod = kubelet.run(specification)?;
    let setup = pod.start("setup", BURN)?;
    pod.finish(setup)?;
    let _web = pod.start("web", BURN)?;
    pod.add_ephemeral("debug")?;
    let _debug = pod.start("debug", BURN)?;
    pod.report()?;
    let status = pod.pod().status.clone().context("no status")?;
    for (statuses, name) in [
        (status.init_container_statuses, "setup"),
        (status.container_statuses, "web"),
        (status.ephemeral_container_statuses, "debug"),
    ] {
        let names: Vec<_> = statuses.into_iter().flatten().map(|status| status.name).collect();
        ensure!(names == [name], "{names:?} instead of `{name}`");
    }
    Ok(())
}

fn cgroups_are_named_as_by_each_driver() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let hash = "0123456789abcdef0123456789abcdef";
    for (number, (driver, runtime, qos, expected)) in [
        (
            Driver::Systemd,
            Runtime::Containerd,
            Qos::Burstable,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope",
        ),
        (
            Driver::Systemd,
            Runtime::CriO,
            Qos::BestEffort,
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/crio-ID.scope",
        ),
        (Driver::Systemd, Runtime::Docker, Qos::Guaranteed, "/kubepods.slice/kubepods-podUID.slice/docker-ID.scope"),
        (Driver::Cgroupfs, Runtime::Containerd, Qos::Burstable, "/kubepods/burstable/podUID/ID"),
        (Driver::Cgroupfs, Runtime::CriO, Qos::Guaranteed, "/kubepods/podUID/crio-ID"),
    ]
    .into_iter()
    .enumerate()
    {
        let kubelet = Kubelet::with("a-node", control_plane.admin(), driver, runtime)?;
        let mut mirror = kubelet::pod("shop", &format!("mirror-{number}"), qos, &["web"])?;
        let annotations = ["mirror", "hash"].map(|kind| (format!("kubernetes.io/config.{kind}"), hash.to_owned()));
        mirror.metadata.annotations = Some(annotations.into());
        let plain = kubelet::pod("shop", &format!("plain-{number}"), qos, &["web"])?;
        for specification in [plain, mirror] {
            let is_mirror = specification.metadata.annotations.is_some();
            let mut pod = kubelet.run(specification)?;
            let running = pod.start("web", BURN)?;
            let uid = if is_mirror { hash } else { pod.uid() };
            let uid = if driver == Driver::Systemd { uid.replace('-', "_") } else { uid.to_owned() };
            let expected = expected.replace("UID", &uid).replace("ID", running.id());
            let path = running.cgroup().kernel_path();
            ensure!(path.strip_prefix(kubelet.kernel_path()) == Some(&expected), "{path} instead of {expected}");
            ensure!(fs::exists(pod.sandbox().path())?, "no sandbox");
        }
    }
    Ok(())
}

fn an_expired_token_is_refused_and_a_new_one_taken() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let agent = control_plane.agent_credentials(Duration::from_secs(5))?;
    // It keeps the token, so what changes is what the server thinks of it.
    let client = Client::new(&agent.kubeconfig())?;
    client.get(PODS)?;
    within(Duration::from_secs(30), "the token is refused", || match client.get(PODS) {
        Err(error) if code_of(&error) == Some(401) => Ok(Some(())),
        answer => answer.map(|_| None),
    })?;
    agent.write_token(&control_plane.agent_token(AN_HOUR)?)?;
    Client::new(&agent.kubeconfig())?.get(PODS).map(drop)
}

fn a_watch_at_a_compacted_version_is_gone() -> Result<()> {
    let mut control_plane = ControlPlane::start()?;
    let kubelet = Kubelet::new("a-node", control_plane.admin())?;
    let cart = kubelet.pod("shop", "cart", Qos::BestEffort, &["web"])?;
    let version = cart.pod().metadata.resource_version.clone().context("no version")?;
    kubelet.pod("shop", "stock", Qos::BestEffort, &["web"])?;
    let watch = format!("{PODS}?watch=true&timeoutSeconds=1&resourceVersion={version}");
    let events = control_plane.admin().get(&watch)?;
    ensure!(events.contains("\"ADDED\"") && events.contains("stock"), "{events}");
    ensure!(!events.contains("cart"), "{events}");

    control_plane.forget_history()?;
    // The stream opens well; its first event is the refusal.
    let events = control_plane.admin().get(&watch)?;
    ensure!(events.contains("\"ERROR\"") && events.contains("\"code\":410"), "{events}");
    let list = format!("{PODS}?resourceVersion={version}&resourceVersionMatch=Exact");
    let answer = control_plane.admin().get(&list);
    ensure!(answer.as_ref().is_err_and(|error| code_of(error) == Some(410)), "{answer:?}");
    Ok(())
}

fn a_paused_server_answers_late() -> Result<()> {
    let mut control_plane = ControlPlane::start()?;
    control_plane.pause_api()?;
    let answer = control_plane.admin().with_deadline(Duration::from_secs(3)).get(PODS);
    ensure!(answer.is_err(), "{answer:?}");
    control_plane.resume_api()?;
    control_plane.admin().get(PODS)?;
    control_plane.stop_api();
    ensure!(control_plane.admin().get(PODS).is_err(), "it answers");
    control_plane.start_api()?;
    control_plane.admin().get(PODS).map(drop)
}

/// The server must refuse to list pods with this code.
fn refused(client: &Client, code: u16) -> Result<()> {
    match client.get(PODS) {
        Err(error) if code_of(&error) == Some(code) => Ok(()),
        Err(error) => Err(error),
        Ok(pods) => bail!("not refused: {pods}"),
    }
}

fn names(pods: &[Pod]) -> Vec<&str> {
    pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect()
}

fn web_of(pod: &kubelet::PodHandle) -> Result<ContainerStatus> {
    let status = pod.pod().status.as_ref().and_then(|status| status.container_statuses.as_ref());
    status.and_then(|statuses| statuses.iter().find(|status| status.name == "web")).cloned().context("no status")
}

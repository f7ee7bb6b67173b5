use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;

use super::{
    super::{
        case::{
            Case, TOKEN, bookmark, event, is_watch, kubeconfig_for, list, pace, pod, quiet_watch, refusal, refused,
        },
        played::{Answer, End, Played},
    },
    Pace,
};
use crate::model::status::State;

#[tokio::test]
async fn a_list_comes_first_and_then_every_change() {
    let server = Played::start(|_, head| {
        if !is_watch(head) {
            return list("10", &["web"]);
        }
        let events =
            [event("ADDED", pod("db", "11")), event("MODIFIED", pod("db", "12")), event("DELETED", pod("web", "13"))];
        Answer::Lines(events.into(), End::Stay)
    })
    .await;
    let case = Case::watch(server.address);
    assert_eq!(case.part().detail, "waiting for the first list of pods");
    case.sends(&["all web", "connected", "applied db", "applied db", "deleted web"]).await;
    assert_eq!((case.part().state, &*case.part().detail), (State::Healthy, "1 pods of node `node-1` by watch"));
    let stats = case.source.stats();
    assert!(stats.connected && stats.last_sync.is_some(), "{stats:?}");
    assert_eq!((stats.pods, stats.restarts, stats.failures, stats.last_error), (1, 0, 0, None));
    let heads = server.seen("GET /api/v1/pods?");
    assert_eq!(heads.len(), 2);
    assert!(heads.iter().all(|head| head.contains("fieldSelector=spec.nodeName%3Dnode-1")), "{heads:?}");
    assert!(heads[0].contains("resourceVersion=0&"), "the first list is the cache's: {}", heads[0]);
    assert!(heads[1].contains("allowWatchBookmarks=true") && heads[1].contains("resourceVersion=10 "), "{}", heads[1]);
}

#[tokio::test]
async fn a_watch_that_ends_is_taken_up_where_it_was_in_silence() {
    let server = Played::start(|number, head| match number {
        0 => list("10", &["web"]),
        1 => Answer::Lines(vec![bookmark("20")], End::Close),
        2 => Answer::Lines(vec![event("ADDED", pod("db", "21"))], End::Close),
        _ => {
            assert!(is_watch(head));
            quiet_watch()
        }
    })
    .await;
    let case = Case::watch(server.address);
    case.until("watched again", |_| server.seen("watch=true").len() == 3).await;
    case.sends(&["all web", "connected", "applied db"]).await;
    let watches = server.seen("watch=true");
    for (watch, version) in watches.iter().zip(["10", "20", "21"]) {
        assert!(watch.contains(&format!("resourceVersion={version} ")), "{watch}");
    }
    let stats = case.source.stats();
    assert_eq!((stats.connected, stats.restarts, stats.failures), (true, 0, 0));
}

#[tokio::test]
async fn a_watch_that_always_ends_at_once_is_no_watch() {
    let server =
        Played::start(
            |_, head| {
                if is_watch(head) { Answer::Lines(Vec::new(), End::Close) } else { list("10", &["web"]) }
            },
        )
        .await;
    let case = Case::watch_with(Pace { brief: Duration::from_secs(1), ..pace() }, server.address);
    case.until("failing", |case| case.source.stats().failures >= 2).await;
    let error = case.source.stats().last_error.unwrap();
    assert!(error.ends_with("it ends as soon as it begins"), "{error}");
}

#[tokio::test]
async fn a_watch_that_breaks_is_taken_up_where_it_was_and_said_so() {
    let server = Played::start(|number, _| match number {
        0 => list("10", &["web"]),
        1 => Answer::Lines(vec![event("ADDED", pod("db", "11"))], End::Break),
        2 => refused(500, "InternalError", "etcd is away"),
        _ => Answer::Lines(vec![event("DELETED", pod("web", "12"))], End::Stay),
    })
    .await;
    let case = Case::watch(server.address);
    case.sends(&["all web", "connected", "applied db", "disconnected", "connected", "deleted web"]).await;
    let stats = case.source.stats();
    assert_eq!((stats.connected, stats.restarts, stats.pods), (true, 1, 1), "{stats:?}");
    assert!(stats.failures >= 1);
    let watches = server.seen("watch=true");
    assert!(watches.last().unwrap().contains("resourceVersion=11 "), "{watches:?}");
    assert_eq!(server.seen("").len() - watches.len(), 1, "one list");
    assert_eq!(case.part().state, State::Healthy);
}

#[tokio::test]
async fn a_forgotten_version_is_listed_again_whether_an_event_or_the_answer_reports_it() {
    let gone = |number| match number {
        1 => {
            Answer::Lines(vec![event("ERROR", refusal(410, "Expired", "too old resource version: 1 (2)"))], End::Close)
        }
        _ => refused(410, "Expired", "too old resource version: 1 (2)"),
    };
    let server = Played::start(move |number, _| match number {
        0 => list("10", &["web"]),
        2 => list("20", &["web", "db"]),
        4 => list("30", &["db"]),
        1 | 3 => gone(number),
        _ => quiet_watch(),
    })
    .await;
    let case = Case::watch(server.address);
    case.sends(&["all web", "connected", "disconnected", "all web db", "all db", "connected"]).await;
    let stats = case.source.stats();
    assert_eq!((stats.connected, stats.restarts, stats.failures, stats.pods), (true, 2, 2, 1));
    let lists: Vec<_> = server.seen("").into_iter().filter(|head| !is_watch(head)).collect();
    assert!(!lists[1].contains("resourceVersion"), "a later list is not the cache's: {}", lists[1]);
}

#[tokio::test]
async fn a_version_that_was_forgotten_in_the_meantime_costs_no_further_wait() {
    let server = Played::start(move |number, _| match number {
        0 => list("10", &["web"]),
        1 => Answer::Lines(vec![], End::Close),
        2 => refused(410, "Expired", "too old resource version: 10 (20)"),
        3 => list("20", &["db"]),
        _ => quiet_watch(),
    })
    .await;
    let an_hour = Duration::from_secs(3600);
    let case = Case::watch_with(Pace { first: an_hour, most: an_hour, ..pace() }, server.address);
    case.sends(&["all web", "connected", "disconnected", "all db", "connected"]).await;
}

#[tokio::test]
async fn a_denied_list_names_what_to_grant_and_is_tried_again() {
    let denied = r#"pods is forbidden: User "system:serviceaccount:podperf:podperf" cannot list resource "pods" in API group "" at the cluster scope"#;
    let granted = Arc::new(AtomicBool::new(false));
    let server = {
        let granted = Arc::clone(&granted);
        Played::start(move |_, head| match granted.load(Ordering::Relaxed) {
            false => refused(403, "Forbidden", denied),
            true if is_watch(head) => quiet_watch(),
            true => list("10", &["web"]),
        })
        .await
    };
    let case = Case::watch(server.address);
    case.until("failing", |case| case.source.stats().failures >= 3).await;
    let detail = "may not list `pods` at the cluster scope (grant `get`, `list` and `watch` on `pods` to service account \
                  `podperf/podperf`: see config/rbac.yaml)";
    assert_eq!((case.part().state, &*case.part().detail), (State::Degraded, detail));
    assert_eq!(case.source.stats().last_error.as_deref(), Some(detail));
    assert_eq!(case.source.stats().last_sync, None);
    assert!(case.sent().is_empty());
    granted.store(true, Ordering::Relaxed);
    case.sends(&["all web", "connected"]).await;
    assert_eq!(case.source.stats().restarts, 0, "there was nothing to start anew");
}

#[tokio::test]
async fn a_refused_token_is_read_anew() {
    let server = Played::start(|_, head| match head.contains("Bearer renewed") {
        false => refused(401, "Unauthorized", "Unauthorized"),
        true if is_watch(head) => quiet_watch(),
        true => list("10", &["web"]),
    })
    .await;
    let case = Case::watch(server.address);
    case.until("refused", |case| case.source.stats().failures >= 2).await;
    assert_eq!(server.seen(&format!("Bearer {TOKEN}")).len(), server.seen("").len());
    let detail = case.part().detail;
    assert!(detail.ends_with("token not accepted (expired, or of another cluster?)"), "{detail}");
    assert!(!detail.contains("secret"), "{detail}");
    fs::write(&case.kubeconfig, kubeconfig_for(server.address, "renewed")).unwrap();
    case.sends(&["all web", "connected"]).await;
}

#[tokio::test]
async fn garbage_is_said_to_be_garbage_and_asked_for_again() {
    let html = || Answer::Body(200, "<html><body>Log in to the proxy</body></html>".into());
    let server = Played::start(move |number, head| match number {
        0 | 6 => html(),
        1 => Answer::Body(502, "<html>Bad gateway</html>".into()),
        2 => Answer::Body(200, "{}".into()),
        3 => Answer::Body(200, r#"{"kind": "PodList", "items": 7}"#.into()),
        4 => list("10", &["web"]),
        5 => Answer::Lines(vec![event("ADDED", json!("a pod")), "{".into()], End::Stay),
        7 => list("20", &["db"]),
        8 => Answer::Lines(vec![event("ADDED", json!({}))], End::Stay),
        _ if is_watch(head) => quiet_watch(),
        _ => list("30", &["db"]),
    })
    .await;
    let case = Case::watch(server.address);
    case.sends(&["all web", "connected", "disconnected", "all db", "connected", "disconnected", "all db", "connected"])
        .await;
    assert_eq!(case.source.stats().failures, 7);
}

#[tokio::test]
async fn a_silent_server_is_not_waited_for_forever() {
    let late = |answer| Answer::Late(Duration::from_millis(200), Box::new(answer));
    let server = Played::start(move |number, _| match number {
        0 => Answer::Nothing,
        1 => late(list("10", &["web"])),
        2 => Answer::Lines(Vec::new(), End::Close),
        3 => Answer::Nothing,
        4 => late(quiet_watch()),
        _ => unreachable!(),
    })
    .await;
    let case = Case::watch(server.address);
    case.sends(&["all web", "connected", "disconnected", "connected"]).await;
    assert_eq!(server.seen("").len(), 5);
    let stats = case.source.stats();
    assert_eq!((stats.failures, stats.restarts), (2, 1));
    let error = stats.last_error.unwrap();
    assert_eq!(
        error,
        format!("failed to hear from the API server at `http://{}` within 300ms (is it overloaded?)", server.address)
    );
}

#[tokio::test]
async fn a_watch_that_is_slow_to_go_on_may_miss_changes_meanwhile() {
    let server = Played::start(|number, _| match number {
        0 => list("10", &["web"]),
        1 => Answer::Lines(Vec::new(), End::Close),
        _ => Answer::Late(Duration::from_millis(200), Box::new(quiet_watch())),
    })
    .await;
    let case = Case::watch(server.address);
    case.sends(&["all web", "connected", "disconnected", "connected"]).await;
    let stats = case.source.stats();
    assert_eq!((stats.failures, stats.restarts), (0, 1), "slow is not failed");
}

#[tokio::test]
async fn a_watch_without_bookmarks_is_given_up() {
    let server = Played::start(|_, head| if is_watch(head) { quiet_watch() } else { list("10", &["web"]) }).await;
    let case = Case::watch_with(Pace { idle: Duration::from_millis(50), ..pace() }, server.address);
    case.until("watched again", |_| server.seen("watch=true").len() >= 3).await;
    assert_eq!(case.sent(), ["all web", "connected"]);
    assert_eq!(case.source.stats().failures, 0);
}

#[tokio::test]
async fn a_server_that_is_gone_is_found_again() {
    let server = Played::start(|_, head| if is_watch(head) { quiet_watch() } else { list("10", &["web"]) }).await;
    let address = server.address;
    let case = Case::watch(address);
    case.sends(&["all web", "connected"]).await;
    drop(server);
    case.until("disconnected", |case| case.source.stats().failures >= 2).await;
    let detail = case.part().detail;
    assert!(detail.contains("onnection refused") && detail.ends_with("(does it run, and there?)"), "{detail}");
    assert!(!case.source.stats().connected);
    let _server = Played::start_at(address, |_, head| {
        assert!(is_watch(head) && head.contains("resourceVersion=10 "), "{head}");
        Answer::Lines(vec![event("ADDED", pod("db", "11"))], End::Stay)
    })
    .await;
    case.sends(&["all web", "connected", "disconnected", "connected", "applied db"]).await;
    assert_eq!(case.source.stats().restarts, 1);
}

#[tokio::test]
async fn a_node_without_pods_may_be_misspelled() {
    let server = Played::start(|_, head| {
        if is_watch(head) { Answer::Lines(vec![event("ADDED", pod("web", "11"))], End::Stay) } else { list("10", &[]) }
    })
    .await;
    let case = Case::watch_with(pace(), server.address);
    case.sends(&["all ", "connected", "applied web"]).await;
    assert_eq!(case.part().state, State::Healthy);
    drop(server);
    let server = Played::start(|_, head| if is_watch(head) { quiet_watch() } else { list("10", &[]) }).await;
    let case = Case::watch(server.address);
    case.sends(&["all ", "connected"]).await;
    assert_eq!(case.part().state, State::Degraded);
    assert!(case.part().detail.starts_with("no pods of node `node-1` by watch (is that the node's name?"));
}

#[tokio::test]
async fn a_node_that_had_pods_is_the_right_one_without_them() {
    let server = Played::start(|_, head| {
        if is_watch(head) {
            Answer::Lines(vec![event("DELETED", pod("web", "11"))], End::Stay)
        } else {
            list("10", &["web"])
        }
    })
    .await;
    let case = Case::watch(server.address);
    case.sends(&["all web", "connected", "deleted web"]).await;
    assert_eq!((case.part().state, &*case.part().detail), (State::Healthy, "0 pods of node `node-1` by watch"));
}

#[tokio::test]
async fn a_dropped_source_asks_no_more() {
    let server = Played::start(|_, _| refused(500, "InternalError", "no")).await;
    let case = Case::watch(server.address);
    case.until("failing", |case| case.source.stats().failures >= 2).await;
    drop(case.source);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let requests = server.seen("").len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.seen("").len(), requests);
}

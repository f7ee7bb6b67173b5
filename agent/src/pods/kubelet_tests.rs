use std::time::Duration;

use super::super::{
    case::{Case, list},
    played::{Answer, Played},
};
use crate::model::status::State;

#[tokio::test]
async fn a_kubelet_is_asked_again_and_again() {
    let server = Played::start(|number, _| match number {
        0 => list("", &["web"]),
        1 => Answer::Body(200, r#"{"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": null}"#.into()),
        _ => list("", &["db", "web"]),
    })
    .await;
    let case = Case::kubelet(server.address, Duration::from_millis(20));
    case.until("polled", |case| case.sent().len() >= 4).await;
    assert_eq!(case.sent()[..4], ["all web", "connected", "all ", "all db web"]);
    assert_eq!((case.part().state, &*case.part().detail), (State::Healthy, "2 pods of node `node-1` by kubelet"));
    assert_eq!((case.source.stats().restarts, case.source.stats().pods), (0, 2));
    assert!(server.seen("")[0].starts_with("GET /pods"));
}

#[tokio::test]
async fn a_poked_kubelet_is_asked_at_once_but_not_too_often() {
    let server = Played::start(|_, _| list("", &["web"])).await;
    let case = Case::kubelet(server.address, Duration::from_secs(3600));
    case.sends(&["all web", "connected"]).await;
    for _ in 0..4 {
        case.source.poke();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    case.until("poked", |case| case.sent().len() == 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.seen("").len(), 2, "what pokes asked for was there");
}

#[tokio::test]
async fn a_kubelet_that_denies_names_what_to_grant() {
    let denied = "Forbidden (user=system:serviceaccount:a:b, verb=get, resource=nodes, subresource(s)=[pods proxy])";
    let server = Played::start(move |number, _| match number {
        0 => list("", &["web"]),
        1 | 2 => Answer::Body(403, denied.into()),
        3 => Answer::Body(200, "404 page not found".into()),
        _ => list("", &["db"]),
    })
    .await;
    let case = Case::kubelet(server.address, Duration::from_millis(20));
    case.until("denied", |case| case.source.stats().failures == 2).await;
    assert_eq!(
        case.source.stats().last_error.unwrap(),
        format!(
            "may not get the pods of the kubelet at `http://{}` (grant `get` on `nodes/pods` to \
             `system:serviceaccount:a:b`, or on `nodes/proxy` before Kubernetes 1.33)",
            server.address
        )
    );
    case.until("polled", |case| case.sent().len() >= 5).await;
    assert_eq!(case.sent()[..5], ["all web", "connected", "disconnected", "all db", "connected"]);
    let stats = case.source.stats();
    assert_eq!((stats.failures, stats.restarts), (3, 1));
}

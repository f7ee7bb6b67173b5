//! OpenTelemetry's two paths for profiles over HTTP, at receivers that have one of them or neither.

use super::*;

/// Returns the path of each request.
fn paths(log: &Log) -> Vec<String> {
    let path = |seen: &Seen| seen.head.split(' ').nth(1).unwrap_or_default().to_owned();
    seen(log).iter().map(path).collect()
}

#[tokio::test]
async fn a_receiver_with_the_other_path_for_profiles_is_found_and_remembered() {
    const DEVELOPMENT: &str = "/base/v1development/profiles";
    const STABLE: &str = "/base/v1/profiles";
    for (configured, there) in [(DEVELOPMENT, STABLE), (STABLE, DEVELOPMENT)] {
        let (address, log) = serve(None, |number| if number == 0 { answer(404, "", b"") } else { OK.into() }).await;
        let path = configured.strip_prefix("/base").unwrap().to_owned();
        let settings = Settings { path, ..settings(format!("http://{address}/base"), Compression::None) };
        let mut sender = Sender::new(&settings).unwrap();
        for _ in 0..2 {
            send(&mut sender).await.unwrap();
        }
        assert_eq!(paths(&log), [configured, there, there]);
        assert_eq!(sender.uri().path(), there);
    }
}

#[tokio::test]
async fn a_receiver_whose_path_changes_while_the_agent_runs_is_found_again() {
    let (address, log) =
        serve(None, |number| if matches!(number, 0 | 3) { answer(404, "", b"") } else { OK.into() }).await;
    let mut sender = plain(address, Compression::None);
    for _ in 0..3 {
        send(&mut sender).await.unwrap();
    }
    let [old, new] = ["/base/v1development/profiles", "/base/v1/profiles"];
    assert_eq!(paths(&log), [old, new, new, new, old]);
}

#[tokio::test]
async fn a_receiver_without_either_path_is_reported_with_the_configured_one() {
    let text = |number| if number == 0 { b"a" } else { b"b" };
    let (address, log) = serve(None, move |number| answer(404, "content-type: text/plain\r\n", text(number))).await;
    let mut sender = plain(address, Compression::Gzip);
    let failure = send(&mut sender).await.unwrap_err();
    assert!(failure.text.starts_with("HTTP 404: a ") && failure.retry.is_none(), "{failure:?}");
    assert_eq!((seen(&log).len(), sender.uri().path()), (2, "/base/v1development/profiles"));
    // The other path is tried again after many requests, not with each request.
    for requests in (3..=62).chain([64]) {
        send(&mut sender).await.unwrap_err();
        assert_eq!(seen(&log).len(), requests);
    }
    // A path outside the two has no alternative.
    let settings = Settings { path: "/ingest".into(), ..settings(format!("http://{address}"), Compression::None) };
    send(&mut Sender::new(&settings).unwrap()).await.unwrap_err();
    assert_eq!(paths(&log)[64..], ["/ingest"]);
}

#[tokio::test]
async fn the_other_path_is_kept_only_once_it_takes_profiles() {
    let (address, log) = serve(None, |number| match number {
        0 | 2 => answer(404, "", b""),
        1 => answer(503, "", b""),
        _ => OK.into(),
    })
    .await;
    let mut sender = plain(address, Compression::None);
    assert_eq!(send(&mut sender).await.unwrap_err().cause, Cause::Unavailable);
    send(&mut sender).await.unwrap();
    let [configured, other] = ["/base/v1development/profiles", "/base/v1/profiles"];
    assert_eq!(paths(&log), [configured, other, configured, other]);
    assert_eq!(sender.uri().path(), other);
}

#[tokio::test]
async fn a_refusal_at_the_other_path_does_not_keep_the_sender_there() {
    for status in [400, 401, 403, 405] {
        let (address, log) = serve(None, move |number| match number {
            0 => answer(404, "", b""),
            1 => answer(status, "", b""),
            _ => OK.into(),
        })
        .await;
        let mut sender = plain(address, Compression::None);
        let failure = send(&mut sender).await.unwrap_err();
        assert!(failure.text.starts_with("HTTP 404"), "{failure:?}");
        send(&mut sender).await.unwrap();
        let [configured, other] = ["/base/v1development/profiles", "/base/v1/profiles"];
        assert_eq!(paths(&log), [configured, other, configured], "{status}");
    }
}

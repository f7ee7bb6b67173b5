//! Receivers whose words are shown: what of them is hidden, and what is added.

use opentelemetry_proto::tonic::{collector::metrics::v1::ExportMetricsServiceRequest, metrics::v1::ResourceMetrics};

use super::{super::failure::rpc, *};

const TOKEN: &str = "sk-case-0123456789abcdef";

fn answer_of(rejected_profiles: i64, message: &str) -> Vec<u8> {
    let partial = ExportProfilesPartialSuccess { rejected_profiles, error_message: message.to_owned() };
    ExportProfilesServiceResponse { partial_success: Some(partial) }.encode_to_vec()
}

#[tokio::test]
async fn a_header_that_a_receiver_repeats_is_hidden() {
    let words = format!("no match: Bearer {TOKEN}");
    let (address, _) = serve(None, move |number| match number {
        0 => answer(401, "content-type: text/plain\r\n", words.as_bytes()),
        1 => answer(308, &format!("location: https://shop:key@host/?token={TOKEN}\r\n"), b""),
        _ => answer(200, "content-type: application/x-protobuf\r\n", &answer_of(1, &words)),
    })
    .await;
    let headers = vec![("authorization".to_owned(), format!("Bearer {TOKEN}"))];
    let settings = Settings { headers, ..settings(format!("http://{address}"), Compression::None) };
    let mut sender = Sender::new(&settings).unwrap();
    let refused = send(&mut sender).await.unwrap_err().text;
    assert_eq!(refused, "HTTP 401: no match: *** (set `otlp.headers` to what the receiver asks for)");
    let moved = send(&mut sender).await.unwrap_err().text;
    assert_eq!(moved, "HTTP 308: moved to https://***@host/?token=***");
    assert_eq!(send(&mut sender).await.unwrap().message, "1 rejected: no match: ***");
}

#[tokio::test]
async fn long_words_of_a_receiver_do_not_cut_the_remedy() {
    let (address, _) = serve(None, |_| answer(403, "content-type: text/plain\r\n", &[b'x'; 1000])).await;
    let failure = send(&mut plain(address, Compression::None)).await.unwrap_err();
    assert_eq!(failure.text.len(), LINE_CHARS);
    assert!(failure.text.ends_with("x (set `otlp.headers` to what the receiver asks for)"), "{failure:?}");
}

#[tokio::test]
async fn a_login_page_is_not_taken_for_a_receiver() {
    let page = b"<!DOCTYPE html><title>Sign in</title>";
    let (address, log) = serve(None, move |_| answer(200, "content-type: text/html; charset=utf-8\r\n", page)).await;
    let failure = send(&mut plain(address, Compression::Gzip)).await.unwrap_err();
    assert!(failure.text.starts_with("HTTP 200: answers with `text/html`, not OTLP"), "{failure:?}");
    assert_eq!((failure.cause, failure.retry, seen(&log).len()), (Cause::Rejected, None, 1));
}

#[tokio::test]
async fn a_receiver_that_limits_the_rate_is_a_receiver() {
    let headers = "content-type: text/plain\r\nretry-after: 3\r\n";
    let (address, _) = serve(None, move |_| answer(429, headers, b"slow down")).await;
    let failure = send(&mut plain(address, Compression::None)).await.unwrap_err();
    assert!(failure.text.starts_with("HTTP 429: slow down (the receiver asks to send less, and"), "{failure:?}");
    assert_eq!((failure.cause, failure.retry), (Cause::Unavailable, Some(Duration::from_secs(3))));
}

#[tokio::test]
async fn a_receiver_of_another_development_version_is_told_as_such_once() {
    let message = "invalid or unsupported otlp-profiles-development-version: supported version is 2".to_owned();
    let status = rpc::Status { message, details: Vec::new() }.encode_to_vec();
    let (address, log) = serve(None, move |_| answer(400, "content-type: application/x-protobuf\r\n", &status)).await;
    let failure = send(&mut plain(address, Compression::Gzip)).await.unwrap_err();
    assert!(failure.text.contains("(the receiver takes another development version of OTLP profiles than 1: "));
    // Less compression would not help.
    assert_eq!((failure.retry, seen(&log).len()), (None, 1), "{failure:?}");
}

#[tokio::test]
async fn only_profiles_have_a_development_version() {
    let (address, log) = serve(None, |_| OK.into()).await;
    let mut sender = plain(address, Compression::None);
    send(&mut sender).await.unwrap();
    let metrics = ExportMetricsServiceRequest { resource_metrics: vec![ResourceMetrics::default()] };
    sender.send(&Signal::Metrics(metrics)).await.unwrap();
    let has_version = |seen: &Seen| seen.head.contains("otlp-profiles-development-version: 1");
    assert_eq!(seen(&log).iter().map(has_version).collect::<Vec<_>>(), [true, false]);
}

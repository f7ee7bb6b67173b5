use std::path::Path;

use super::*;
use crate::export::otlp::Compression;

fn applied_to(mut otlp: Otlp, variables: &[(&str, &str)]) -> Result<Otlp, ConfigError> {
    let known: BTreeMap<_, _> = variables.iter().copied().collect();
    apply(&mut otlp, |name| known.get(name).map(|text| (*text).to_owned()))?;
    Ok(otlp)
}

fn applied(variables: &[(&str, &str)]) -> Otlp {
    applied_to(Otlp::default(), variables).unwrap()
}

#[test]
fn nothing_set_changes_nothing() {
    assert_eq!(applied(&[]), Otlp::default());
    assert_eq!(applied(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " "), ("OTEL_SERVICE_NAME", "")]), Otlp::default());
}

#[test]
fn every_variable_has_its_key() {
    let otlp = applied(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318/base"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20a%3Db,x-tenant=7"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/tls/ca.crt"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/tls/tls.crt"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/tls/tls.key"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod,service.name=other"),
        ("OTEL_SERVICE_NAME", "podperf-a"),
    ]);
    assert_eq!(
        (otlp.endpoint.as_str(), otlp.path.as_str()),
        ("https://collector:4318/base", "/v1development/profiles")
    );
    assert_eq!((otlp.protocol, otlp.compression), (Protocol::Http, Compression::Zstd));
    let headers: Vec<_> = otlp.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("authorization", "Bearer a=b"), ("x-tenant", "7")]);
    assert_eq!(otlp.timeout, Duration::from_millis(2500));
    assert_eq!(otlp.tls.ca_file, Path::new("/tls/ca.crt"));
    assert_eq!(otlp.tls.cert_file, Path::new("/tls/tls.crt"));
    assert_eq!(otlp.tls.key_file, Path::new("/tls/tls.key"));
    let attributes: Vec<_> =
        otlp.resource_attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(attributes, [("deployment.environment", "prod"), ("service.name", "podperf-a")]);
}

#[test]
fn the_signals_variable_is_before_the_general_one_and_the_file_before_both() {
    let both = [("OTEL_EXPORTER_OTLP_COMPRESSION", "none"), ("OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION", "zstd")];
    assert_eq!(applied(&both).compression, Compression::Zstd);
    assert_eq!(applied(&both[..1]).compression, Compression::None);
    let file = Otlp { compression: Compression::None, ..Otlp::default() };
    assert_eq!(applied_to(file, &both).unwrap().compression, Compression::None);
    let file = Otlp { resource_attributes: [("a".to_owned(), "file".to_owned())].into(), ..Otlp::default() };
    let merged = applied_to(file, &[("OTEL_RESOURCE_ATTRIBUTES", "a=variable,b=variable")]).unwrap();
    assert_eq!(merged.resource_attributes.values().map(String::as_str).collect::<Vec<_>>(), ["file", "variable"]);
}

#[test]
fn the_signals_endpoint_is_the_whole_address_over_http() {
    let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    for (url, endpoint, path) in [
        ("http://a:1/api/x/v1/profiles", "http://a:1", "/api/x/v1/profiles"),
        ("http://a:1", "http://a:1", "/"),
        ("a:1/p", "a:1", "/p"),
        ("http://user:pass/word@a:1/p", "http://user:pass/word@a:1/p", "/v1development/profiles"),
    ] {
        let otlp = applied(&[http, ("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", url)]);
        assert_eq!((otlp.endpoint.as_str(), otlp.path.as_str()), (endpoint, path), "{url}");
    }
    let grpc = applied(&[("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "http://a:1")]);
    assert_eq!((grpc.endpoint.as_str(), grpc.path.as_str()), ("http://a:1", "/v1development/profiles"));
}

#[test]
fn insecure_says_what_an_endpoint_without_a_scheme_means() {
    let endpoint = |insecure| {
        applied(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "a:1"), ("OTEL_EXPORTER_OTLP_INSECURE", insecure)]).endpoint
    };
    assert_eq!((endpoint("true").as_str(), endpoint("False").as_str()), ("http://a:1", "https://a:1"));
    let with_scheme =
        applied(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1"), ("OTEL_EXPORTER_OTLP_INSECURE", "false")]);
    assert_eq!(with_scheme.endpoint, "http://a:1");
}

#[test]
fn a_bad_value_is_an_error_that_names_the_variable_and_no_secret() {
    for (name, value, part) in [
        ("OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL", "http/json", "unknown `http/json` (one of `grpc`"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli", "unknown `brotli` (one of `gzip`"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "5s", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret", "item 2"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=%ff", "item 1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b,,Authorization: Basic secret=", "item 2 is not a header"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret%0a", "item 1 is not a header"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=secret", "item 1"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "maybe", "neither"),
    ] {
        let error = applied_to(
            Otlp { endpoint: String::new(), ..Otlp::default() },
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "a:1"), (name, value)],
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`")) && error.contains(part), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

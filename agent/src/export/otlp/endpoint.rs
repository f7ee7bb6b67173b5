//! Checks the configured endpoint before a request is sent. Pure.

use http::{HeaderMap, HeaderName, HeaderValue, Uri, uri::PathAndQuery};

use rustls::pki_types::ServerName;

use super::settings::{Protocol, Settings, TlsSettings};
use crate::transport::{proxy::ProxyError, tls::TlsError};

/// The error for an endpoint, a header or a certificate that can never work.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint has none of the forms of an address.
    #[error("failed to parse endpoint `{endpoint}` (write `https://host`, `http://host:4317` or `host:4317`)")]
    Syntax {
        /// The configured endpoint.
        endpoint: String,
    },
    /// The scheme is neither `http` nor `https`.
    #[error("endpoint `{endpoint}` has scheme `{scheme}` (use `http` or `https`, for gRPC too)")]
    Scheme {
        /// The configured endpoint.
        endpoint: String,
        /// The scheme of the endpoint.
        scheme: String,
    },
    /// The port of the endpoint is no port. Without one, it is that of the scheme.
    #[error("endpoint `{endpoint}` has a bad port (1 to 65535; without one, 443 for `https` and 80 for `http`)")]
    Port {
        /// The configured endpoint.
        endpoint: String,
    },
    /// The endpoint has a path, but gRPC sets the path itself.
    #[error("endpoint `{endpoint}` has a path (only host and port for gRPC; or set `otlp.protocol: http/protobuf`)")]
    Path {
        /// The configured endpoint.
        endpoint: String,
    },
    /// The path cannot follow a host in a URL.
    #[error("failed to parse path `{path}` (write it as in `/v1development/profiles`)")]
    BadPath {
        /// The configured path.
        path: String,
    },
    /// The endpoint contains a user name or password. The message does not repeat it.
    #[error("endpoint has a user name or password in it (use `headers`)")]
    Credentials,
    /// The endpoint has a query. The message does not repeat it: it may have a token.
    #[error("endpoint has a query, the part behind `?` (use `headers`)")]
    Query,
    /// HTTP cannot carry this name or value. The message does not show the value: it may be a token.
    #[error("header `{name}` is not valid (lower-case name, printable ASCII value)")]
    Header {
        /// The configured name, up to its first letter that no name can have: behind it may be a token.
        name: String,
    },
    /// Certificates are configured for a connection without TLS.
    #[error("`tls` is set, but endpoint `{endpoint}` is not `https` (write `https://`, or take the keys away)")]
    Plain {
        /// The configured endpoint.
        endpoint: String,
    },
    /// Only one of two keys that belong together is set.
    #[error("`{given}` is set without `{missing}` (set both, or neither)")]
    Half {
        /// The key that is set.
        given: &'static str,
        /// The key that is missing.
        missing: &'static str,
    },
    /// The server name is not a host.
    #[error("failed to parse `otlp.tls.serverName`: `{name}` (a host name or an address)")]
    ServerName {
        /// The configured name.
        name: String,
    },
    /// A file cannot be read, or its content cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The proxy on the way to the endpoint cannot be used.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

/// A checked endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Scheme, host and the configured port; over HTTP also the path for profiles. Without a port, the connector takes
    /// that of the scheme.
    pub(super) uri: Uri,
    pub(super) tls: bool,
}

/// Checks the settings, without reading files or using the network.
///
/// # Errors
///
/// The errors of [`super::Exporter::new`], except for certificates and proxies, which are read only there.
pub fn check(settings: &Settings) -> Result<(), EndpointError> {
    let target = parse(settings)?;
    parse_headers(&settings.headers)?;
    check_tls(&settings.tls)?;
    if !target.tls && settings.tls != TlsSettings::default() {
        return Err(EndpointError::Plain { endpoint: settings.endpoint.clone() });
    }
    Ok(())
}

fn check_tls(tls: &TlsSettings) -> Result<(), EndpointError> {
    let (cert, key) = ("otlp.tls.certFile", "otlp.tls.keyFile");
    match (&tls.cert_file, &tls.key_file) {
        (Some(_), None) => Err(EndpointError::Half { given: cert, missing: key }),
        (None, Some(_)) => Err(EndpointError::Half { given: key, missing: cert }),
        _ => server_name(tls).map(drop),
    }
}

pub(super) fn server_name(tls: &TlsSettings) -> Result<Option<ServerName<'static>>, EndpointError> {
    let parse = |name: &String| {
        ServerName::try_from(name.clone()).ok().ok_or_else(|| EndpointError::ServerName { name: name.clone() })
    };
    tls.server_name.as_ref().map(parse).transpose()
}

pub(super) fn parse(settings: &Settings) -> Result<Target, EndpointError> {
    let text = settings.endpoint.trim();
    if text.contains('@') {
        return Err(EndpointError::Credentials);
    }
    if text.contains('?') {
        return Err(EndpointError::Query);
    }
    let endpoint = || text.to_owned();
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = url.parse().ok().ok_or_else(|| EndpointError::Syntax { endpoint: endpoint() })?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        scheme => {
            let scheme = scheme.unwrap_or_default().to_owned();
            return Err(EndpointError::Scheme { endpoint: endpoint(), scheme });
        }
    };
    let Some(authority) = uri.authority().filter(|authority| !authority.host().is_empty()) else {
        return Err(EndpointError::Syntax { endpoint: endpoint() });
    };
    let is_port = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0);
    let port = &authority.as_str()[authority.host().len()..];
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return Err(EndpointError::Port { endpoint: endpoint() });
    }
    let path = match settings.protocol {
        Protocol::Grpc if uri.path_and_query().is_some_and(|path| path != "/") => {
            return Err(EndpointError::Path { endpoint: endpoint() });
        }
        Protocol::Grpc => "/".to_owned(),
        Protocol::Http => join(uri.path(), &settings.path),
    };
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(parse_path(&path)?);
    let uri = Uri::from_parts(parts).ok().ok_or_else(|| EndpointError::Syntax { endpoint: endpoint() })?;
    Ok(Target { uri, tls })
}

/// Returns the same address with the other one of OpenTelemetry's two paths for profiles: the path of the development
/// versions, and the path of a stable version. `None` for any other path.
pub(super) fn other_profiles_path(uri: &Uri) -> Option<Uri> {
    const PATHS: [&str; 2] = ["/v1development/profiles", "/v1/profiles"];
    let path = uri.path_and_query()?.as_str();
    let base = |from: &str, to: &str| path.strip_suffix(from).map(|base| format!("{base}{to}"));
    let other = base(PATHS[0], PATHS[1]).or_else(|| base(PATHS[1], PATHS[0]))?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(other).ok()?);
    Uri::from_parts(parts).ok()
}

fn parse_path(path: &str) -> Result<PathAndQuery, EndpointError> {
    let bad = || EndpointError::BadPath { path: path.to_owned() };
    PathAndQuery::try_from(path).ok().filter(|parsed| parsed.path().starts_with('/')).ok_or_else(bad)
}

/// Joins two paths with one slash between them.
fn join(base: &str, path: &str) -> String {
    let (base, path) = (base.trim_end_matches('/'), path.trim().trim_start_matches('/'));
    format!("{base}/{path}")
}

pub(super) fn parse_headers(headers: &[(String, String)]) -> Result<HeaderMap, EndpointError> {
    let mut parsed = HeaderMap::new();
    for (name, value) in headers {
        let Some((key, value)) = parse_header(name, value) else {
            let is_of_name = |letter: &char| letter.is_ascii_alphanumeric() || ['-', '_', '.'].contains(letter);
            return Err(EndpointError::Header { name: name.chars().take_while(is_of_name).collect() });
        };
        parsed.append(key, value);
    }
    Ok(parsed)
}

/// Returns whether HTTP and gRPC can carry this header.
pub(crate) fn is_header(name: &str, value: &str) -> bool {
    parse_header(name, value).is_some()
}

fn parse_header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    // gRPC would read the value of a header with such a name as base64.
    let name = HeaderName::from_lowercase(name.as_bytes()).ok().filter(|name| !name.as_str().ends_with("-bin"))?;
    let mut value = HeaderValue::from_str(value).ok().filter(|value| value.to_str().is_ok())?;
    value.set_sensitive(true);
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::export::otlp::{Compression, Preset, Shape};

    fn settings(endpoint: &str, protocol: Protocol) -> Settings {
        Settings {
            endpoint: endpoint.to_owned(),
            protocol,
            path: "/v1development/profiles".to_owned(),
            compression: Compression::Gzip,
            timeout: Duration::from_secs(1),
            queue: 1,
            headers: Vec::new(),
            tls: TlsSettings::default(),
            shape: Shape { preset: Preset::Generic, sample_attributes: Vec::new(), resource: Vec::new() },
        }
    }

    fn target(endpoint: &str) -> Result<Target, EndpointError> {
        parse(&settings(endpoint, Protocol::Grpc))
    }

    #[test]
    fn endpoints_are_checked_at_construction() {
        for good in ["localhost:4317", "http://10.0.0.1:4317", "http://[::1]:4317/", " collector.ns.svc:4317 "] {
            assert_eq!(target(good).unwrap().uri.scheme_str(), Some("http"), "{good}");
        }
        type Kind = fn(&EndpointError) -> bool;
        let bad: [(&str, Kind); 10] = [
            ("", |err| matches!(err, EndpointError::Syntax { .. })),
            ("http://", |err| matches!(err, EndpointError::Syntax { .. })),
            ("http://a b:4317", |err| matches!(err, EndpointError::Syntax { .. })),
            ("grpc://host:4317", |err| matches!(err, EndpointError::Scheme { .. })),
            ("https://host:", |err| matches!(err, EndpointError::Port { .. })),
            ("host:0", |err| matches!(err, EndpointError::Port { .. })),
            ("http://[::1]:65536/", |err| matches!(err, EndpointError::Port { .. })),
            ("http://host:4318/v1development/profiles", |err| matches!(err, EndpointError::Path { .. })),
            ("http://user:secret@host:4317", |err| matches!(err, EndpointError::Credentials)),
            ("https://host/otlp?key=secret", |err| matches!(err, EndpointError::Query)),
        ];
        for (endpoint, kind) in bad {
            let err = target(endpoint).unwrap_err();
            assert!(kind(&err), "{endpoint}: {err:?}");
            assert!(!err.to_string().contains("secret"));
        }
    }

    #[test]
    fn an_endpoint_without_a_port_has_that_of_its_scheme() {
        for (endpoint, grpc, http) in [
            (
                "https://otlp.example.net",
                "https://otlp.example.net/",
                "https://otlp.example.net/v1development/profiles",
            ),
            ("http://[::1]/", "http://[::1]/", "http://[::1]/v1development/profiles"),
            ("collector", "http://collector/", "http://collector/v1development/profiles"),
        ] {
            assert_eq!(target(endpoint).unwrap().uri, *grpc, "{endpoint}");
            assert_eq!(parse(&settings(endpoint, Protocol::Http)).unwrap().uri, *http, "{endpoint}");
        }
        let with_base = settings("https://otlp-gateway.example.net/otlp", Protocol::Http);
        let url = "https://otlp-gateway.example.net/otlp/v1development/profiles";
        assert_eq!(parse(&with_base).unwrap(), Target { uri: url.parse().unwrap(), tls: true });
    }

    #[test]
    fn header_values_are_checked_and_never_shown() {
        let headers = [("authorization".to_owned(), "secret\n".to_owned())];
        let err = parse_headers(&headers).unwrap_err();
        assert!(matches!(&err, EndpointError::Header { name } if name == "authorization"));
        assert!(!format!("{err} {err:?}").contains("secret"));
        // A header as HTTP writes it is a name without a value, with the token in the name.
        let err = parse_headers(&[("Authorization: Basic secret".to_owned(), String::new())]).unwrap_err();
        assert!(err.to_string().starts_with("header `Authorization` is not valid ("), "{err}");
        let settings = Settings { headers: headers.to_vec(), ..settings("a:1", Protocol::Grpc) };
        assert!(!format!("{settings:?}").contains("secret"));
    }

    #[test]
    fn over_http_the_path_is_below_that_of_the_endpoint() {
        for (endpoint, path, url) in [
            ("http://a:1", "/v1development/profiles", "http://a:1/v1development/profiles"),
            ("http://a:1/", "v1development/profiles", "http://a:1/v1development/profiles"),
            ("https://a:1/api/default/", "/v1/profiles", "https://a:1/api/default/v1/profiles"),
            ("a:1/whole", "", "http://a:1/whole/"),
        ] {
            let settings = Settings { path: path.to_owned(), ..settings(endpoint, Protocol::Http) };
            assert_eq!(parse(&settings).unwrap().uri, *url, "{endpoint} {path}");
        }
        let bad = Settings { path: "/a b".to_owned(), ..settings("a:1", Protocol::Http) };
        assert!(matches!(parse(&bad), Err(EndpointError::BadPath { .. })));
    }

    #[test]
    fn certificates_for_a_connection_without_tls_are_refused() {
        let tls = TlsSettings { server_name: Some("x".to_owned()), ..TlsSettings::default() };
        let plain = Settings { tls: tls.clone(), ..settings("http://a:1", Protocol::Grpc) };
        assert!(matches!(check(&plain), Err(EndpointError::Plain { .. })));
        let secure = Settings { tls, ..settings("https://a:1", Protocol::Grpc) };
        check(&secure).unwrap();
    }

    #[test]
    fn tls_keys_that_do_not_fit_together_are_refused() {
        let file = Some("/nowhere".into());
        let half = TlsSettings { key_file: file.clone(), ..TlsSettings::default() };
        let says = |tls| check_tls(&tls).unwrap_err().to_string();
        assert!(says(half).contains("`otlp.tls.keyFile` is set without `otlp.tls.certFile`"));
        let half = TlsSettings { cert_file: file, ..TlsSettings::default() };
        assert!(says(half).contains("`otlp.tls.certFile` is set without `otlp.tls.keyFile`"));
        let name = TlsSettings { server_name: Some("a b".to_owned()), ..TlsSettings::default() };
        assert!(says(name).contains("failed to parse `otlp.tls.serverName`: `a b`"));
    }

    #[test]
    fn each_path_for_profiles_has_the_other_one_and_no_further_path_has_one() {
        let other = |uri: &str| other_profiles_path(&uri.parse().unwrap()).map(|uri| uri.to_string());
        let pair = ["http://x:1/base/v1development/profiles", "http://x:1/base/v1/profiles"];
        assert_eq!(other(pair[0]).as_deref(), Some(pair[1]));
        assert_eq!(other(pair[1]).as_deref(), Some(pair[0]));
        for uri in ["http://x:1/v1/metrics", "http://x:1/", "http://x:1/v1/profiles?a=b", "http://x:1/profiles"] {
            assert_eq!(other(uri), None, "{uri}");
        }
    }
}

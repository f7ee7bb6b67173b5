//! Where profiles go, as configured: checked before anything is sent. Pure, but for the root certificates of `https`.

use tonic::{
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
    transport::{ClientTlsConfig, Endpoint, Uri},
};

use super::Settings;

/// An endpoint or a header that can never work.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// None of the three forms.
    #[error("failed to parse endpoint `{endpoint}` (write `http://host:4317`, `https://host:4317` or `host:4317`)")]
    Syntax {
        /// As configured.
        endpoint: String,
    },
    /// Neither `http` nor `https`.
    #[error("endpoint `{endpoint}` has scheme `{scheme}` (use `http` or `https`; both are gRPC)")]
    Scheme {
        /// As configured.
        endpoint: String,
        /// What it begins with.
        scheme: String,
    },
    /// No default is assumed.
    #[error("endpoint `{endpoint}` has no port (OTLP over gRPC is 4317)")]
    Port {
        /// As configured.
        endpoint: String,
    },
    /// gRPC names the path itself.
    #[error("endpoint `{endpoint}` has a path (only host and port; OTLP over HTTP is not supported)")]
    Path {
        /// As configured.
        endpoint: String,
    },
    /// Not repeated here, nor anywhere else.
    #[error("endpoint has a user name or password in it (use `headers`)")]
    Credentials,
    /// Not a name or value that HTTP/2 can carry. The value stays out of the message: it may be a token.
    #[error("header `{name}` is not valid (lower-case name, printable ASCII value)")]
    Header {
        /// As configured.
        name: String,
    },
    /// Most likely there are no root certificates.
    #[error("failed to set up TLS for endpoint `{endpoint}` (install root certificates or set SSL_CERT_FILE)")]
    Tls {
        /// As configured.
        endpoint: String,
        /// What the TLS library says.
        source: tonic::transport::Error,
    },
}

pub(super) fn parse(endpoint: &str) -> Result<Endpoint, EndpointError> {
    let text = endpoint.trim();
    if text.contains('@') {
        return Err(EndpointError::Credentials);
    }
    let endpoint = || text.to_owned();
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let syntax = |_| EndpointError::Syntax { endpoint: endpoint() };
    let uri: Uri = url.parse().map_err(syntax)?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        scheme => {
            let scheme = scheme.unwrap_or_default().to_owned();
            return Err(EndpointError::Scheme { endpoint: endpoint(), scheme });
        }
    };
    if uri.host().is_none_or(str::is_empty) {
        return Err(EndpointError::Syntax { endpoint: endpoint() });
    }
    if uri.port_u16().is_none_or(|port| port == 0) {
        return Err(EndpointError::Port { endpoint: endpoint() });
    }
    if uri.path_and_query().is_some_and(|path| path != "/") {
        return Err(EndpointError::Path { endpoint: endpoint() });
    }
    let built = Endpoint::from(uri)
        .user_agent(concat!("podperf/", env!("CARGO_PKG_VERSION")))
        .and_then(|built| if tls { built.tls_config(ClientTlsConfig::new().with_native_roots()) } else { Ok(built) });
    built.map_err(|source| EndpointError::Tls { endpoint: endpoint(), source })
}

/// Whether endpoint and headers can be used.
pub(super) fn check(settings: &Settings) -> Result<(), EndpointError> {
    parse(&settings.endpoint)?;
    parse_headers(&settings.headers)?;
    Ok(())
}

pub(super) fn parse_headers(headers: &[(String, String)]) -> Result<MetadataMap, EndpointError> {
    let mut parsed = MetadataMap::new();
    for (name, value) in headers {
        let key = AsciiMetadataKey::from_bytes(name.as_bytes()).ok();
        let value = AsciiMetadataValue::try_from(value.as_str()).ok();
        let (Some(key), Some(mut value)) = (key, value) else {
            return Err(EndpointError::Header { name: name.clone() });
        };
        value.set_sensitive(true);
        parsed.append(key, value);
    }
    Ok(parsed)
}

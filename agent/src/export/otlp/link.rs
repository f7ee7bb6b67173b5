//! The way to a receiver: its address, its headers, and connections with TLS and timeouts, through its proxy.
//!
//! Profiles and metrics share this code. No connection is opened before the first request.

use std::{path::PathBuf, time::Duration};

use http::{HeaderMap, HeaderValue, Uri, Version};
use tonic::transport::{Channel, Endpoint};

use super::{
    Cause, EndpointError,
    endpoint::{self, Target, other_profiles_path, parse, parse_headers, server_name},
    failure::{ANSWER_BYTES, Failure},
    secrets::Secrets,
    settings::{Settings, TlsSettings},
};
use crate::transport::{
    allowance::Allowance,
    http::{Client, Connector, connector_through},
    proxy::Proxy,
    tls::{Tls, TlsSources},
};

/// The `User-Agent` of the agent's requests.
pub(super) const USER_AGENT: &str = concat!("podperf/", env!("CARGO_PKG_VERSION"));

/// The most that a receiver may send from one request to the next, handshakes included. An answer has at most
/// [`ANSWER_BYTES`].
const RECEIVED_BYTES: usize = 4 * ANSWER_BYTES;

/// The remedy if nothing listens at the port of the scheme.
const WITHOUT_PORT: &str = " (`otlp.endpoint` has no port, which means 443 for `https` and 80 for `http`; a Collector \
                            has 4317 for gRPC and 4318 for HTTP)";

/// A checked address with the settings of a connection to it.
#[derive(Debug)]
pub(in crate::export) struct Link {
    target: Target,
    pub(super) headers: HeaderMap,
    /// The values that no message may show.
    pub(super) secrets: Secrets,
    /// `None` if the endpoint is not `https`.
    tls: Option<Tls>,
    proxy: Option<Proxy>,
    timeout: Duration,
    allowance: Allowance,
}

impl Link {
    pub(in crate::export) fn new(settings: &Settings) -> Result<Self, EndpointError> {
        Self::with_variables(settings, |name| std::env::var(name).ok())
    }

    /// Makes a link to the receiver of `settings`, through the proxy that the environment names for it. `variable`
    /// returns an environment variable by its name.
    pub(super) fn with_variables(
        settings: &Settings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, EndpointError> {
        endpoint::check(settings)?;
        let target = parse(settings)?;
        let tls = if target.tls { Some(Tls::new(sources(&settings.tls)?)?) } else { None };
        let headers = parse_headers(&settings.headers)?;
        let proxy = Proxy::of(&target.uri, variable)?;
        let secrets = Secrets::of(headers.values().chain(proxy.as_ref().and_then(Proxy::login)));
        let allowance = Allowance::new(RECEIVED_BYTES);
        Ok(Self { target, headers, secrets, tls, proxy, timeout: settings.timeout, allowance })
    }

    pub(in crate::export) const fn uri(&self) -> &Uri {
        &self.target.uri
    }

    /// Returns the failure as people read it, with the remedies that depend on the address.
    pub(super) fn tell(&self, failure: Failure) -> Failure {
        let is_closed = failure.cause == Cause::Timeout || failure.text.contains("Connection refused");
        let failure = match (&self.proxy, self.target.uri.port()) {
            (Some(proxy), _) if !failure.answered => failure.through(proxy),
            (None, None) if is_closed && !failure.answered => failure.or_way_out(WITHOUT_PORT),
            _ => failure,
        };
        failure.told(&self.secrets)
    }

    /// Switches to the other one of OpenTelemetry's two paths for profiles, and returns whether there is one.
    pub(super) fn turn(&mut self) -> bool {
        let other = other_profiles_path(&self.target.uri);
        let is_one = other.is_some();
        self.target.uri = other.unwrap_or_else(|| self.target.uri.clone());
        is_one
    }

    /// Returns why the current certificate files cannot be used.
    pub(in crate::export) fn problem(&self) -> Option<&str> {
        self.tls.as_ref().and_then(Tls::problem)
    }

    /// Reads the certificates again if they changed. If it returns true, open connections should be replaced.
    pub(in crate::export) fn refresh(&mut self) -> bool {
        self.tls.as_mut().is_some_and(Tls::refresh)
    }

    /// Returns a channel for gRPC.
    pub(in crate::export) fn channel(&self) -> Result<Channel, EndpointError> {
        let endpoint = Endpoint::from(self.target.uri.clone()).connect_timeout(self.timeout);
        let syntax = || EndpointError::Syntax { endpoint: self.target.uri.to_string() };
        let endpoint = endpoint.user_agent(USER_AGENT).ok().ok_or_else(syntax)?;
        Ok(endpoint.connect_with_connector_lazy(self.connector(Version::HTTP_2)?))
    }

    /// Returns a client for HTTP/1.1.
    pub(in crate::export) fn client(&self) -> Result<Client, EndpointError> {
        Ok(Client::new(self.connector(Version::HTTP_11)?, ANSWER_BYTES))
    }

    /// Returns the login that requests over HTTP need for a proxy that reads them.
    pub(super) fn proxy_login(&self) -> Option<&HeaderValue> {
        self.proxy.as_ref().filter(|_| self.tls.is_none()).and_then(Proxy::login)
    }

    /// Allows the receiver to send what belongs to one more request.
    pub(super) fn expect_answer(&self) {
        self.allowance.renew();
    }

    fn connector(&self, version: Version) -> Result<Connector, EndpointError> {
        let (proxy, tls, allowance) = (self.proxy.as_ref(), self.tls.as_ref(), Some(self.allowance.clone()));
        Ok(connector_through(proxy, tls, version, Some(self.timeout), allowance)?)
    }
}

fn sources(tls: &TlsSettings) -> Result<TlsSources, EndpointError> {
    let file = |key, path: &Option<PathBuf>| path.clone().map(|path| (key, path));
    Ok(TlsSources {
        ca: file("otlp.tls.caFile", &tls.ca_file),
        pair: file("otlp.tls.certFile", &tls.cert_file).zip(file("otlp.tls.keyFile", &tls.key_file)),
        server_name: server_name(tls)?,
        insecure_skip_verify: tls.insecure_skip_verify,
        without_roots: "install them, set SSL_CERT_FILE, or set `otlp.tls.caFile`",
    })
}

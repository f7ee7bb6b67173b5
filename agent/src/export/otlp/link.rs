//! The way to a receiver: its address, its headers, and connections with TLS and timeouts.
//!
//! Profiles and metrics share this code. No connection is opened before the first request.

use super::{endpoint, post::USER_AGENT};
use std::time::Duration;

use http::{HeaderMap, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tonic::transport::{Channel, Endpoint};

use super::{
    EndpointError,
    endpoint::{Target, other_profiles_path, parse, parse_headers},
    post::Client,
    settings::{Protocol, Settings},
    tls::{Tls, TlsError},
};

/// A checked address with the settings of a connection to it.
#[derive(Debug)]
pub(in crate::export) struct Link {
    target: Target,
    headers: HeaderMap,
    /// `None` if the endpoint is not `https`.
    tls: Option<Tls>,
    server_name: Option<ServerName<'static>>,
    timeout: Duration,
}

impl Link {
    pub(in crate::export) fn new(settings: &Settings) -> Result<Self, EndpointError> {
        endpoint::check(settings)?;
        let target = parse(settings)?;
        let tls = target.tls.then(|| Tls::new(&settings.tls)).transpose()?;
        Ok(Self {
            target,
            headers: parse_headers(&settings.headers)?,
            tls,
            server_name: settings.tls.server_name()?,
            timeout: settings.timeout,
        })
    }

    pub(in crate::export) const fn uri(&self) -> &Uri {
        &self.target.uri
    }

    /// Switches to the other one of OpenTelemetry's two paths for profiles, and returns whether there is one.
    pub(super) fn turn(&mut self) -> bool {
        let other = other_profiles_path(&self.target.uri);
        let is_one = other.is_some();
        self.target.uri = other.unwrap_or_else(|| self.target.uri.clone());
        is_one
    }

    pub(in crate::export) const fn headers(&self) -> &HeaderMap {
        &self.headers
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
        let endpoint = endpoint
            .user_agent(USER_AGENT)
            .ok()
            .ok_or_else(|| EndpointError::Syntax { endpoint: self.target.uri.to_string() })?;
        Ok(endpoint.connect_with_connector_lazy(self.connector(Protocol::Grpc)?))
    }

    /// Returns a client for HTTP.
    pub(in crate::export) fn client(&self) -> Result<Client, EndpointError> {
        Ok(Client::new(self.connector(Protocol::Http)?))
    }

    fn connector(&self, protocol: Protocol) -> Result<HttpsConnector<HttpConnector>, EndpointError> {
        let mut tcp = HttpConnector::new();
        // The outer connector checks the scheme.
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.timeout));
        let config = match &self.tls {
            Some(tls) => tls.config().clone(),
            None => without_trust()?,
        };
        let builder = HttpsConnectorBuilder::new().with_tls_config(config);
        let mut builder = if self.tls.is_some() { builder.https_only() } else { builder.https_or_http() };
        if let Some(name) = &self.server_name {
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
        }
        Ok(match protocol {
            Protocol::Grpc => builder.enable_http2().wrap_connector(tcp),
            Protocol::Http => builder.enable_http1().wrap_connector(tcp),
        })
    }
}

/// Returns the TLS configuration for connections without TLS: the connector needs one, but never uses it.
fn without_trust() -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Library)?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

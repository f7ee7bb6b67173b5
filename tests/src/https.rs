//! Requests over TLS to a server on loopback, with a given authority.

use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

use crate::{
    deadline::Timed,
    http::{ANSWER_DEADLINE, Answer, connect_from, exchange},
};

/// A client's TLS settings with the trusted authority.
#[derive(Clone, Debug)]
pub struct Https(Arc<ClientConfig>);

/// A connection with TLS.
pub type Stream = StreamOwned<ClientConnection, Timed>;

impl Https {
    /// Trusts the certificates of this authority.
    pub fn trusting(authority: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots);
        Ok(Self(Arc::new(config.with_no_client_auth())))
    }

    /// Connects, and completes the TLS handshake.
    pub fn connect(&self, address: SocketAddr) -> Result<Stream> {
        self.shake_hands(Timed::new(TcpStream::connect(address)?, ANSWER_DEADLINE), address)
    }

    /// Connects from this loopback address.
    pub fn connect_from(&self, source: IpAddr, address: SocketAddr) -> Result<Stream> {
        self.shake_hands(connect_from(source, address)?, address)
    }

    fn shake_hands(&self, mut socket: Timed, address: SocketAddr) -> Result<Stream> {
        let mut client = ClientConnection::new(Arc::clone(&self.0), ServerName::from(address.ip()))?;
        while client.is_handshaking() {
            client.complete_io(&mut socket)?;
        }
        Ok(StreamOwned::new(client, socket))
    }

    /// Sends `METHOD PATH` with more headers, and returns the answer.
    pub fn ask(&self, address: SocketAddr, request: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        exchange(&mut self.connect(address)?, address, request, headers, "")
    }
}

/// Returns the first certificate that the peer has sent.
pub fn certificate_of(stream: &Stream) -> Result<Vec<u8>> {
    let shown = stream.conn.peer_certificates().and_then(<[_]>::first).context("no certificate")?;
    Ok(shown.to_vec())
}

//! TLS of connections out of the agent: the authorities to trust, and the agent's own certificate.
//!
//! The files are replaced while the agent runs (cert-manager, Kubernetes' secrets), so [`Tls::refresh`] reads them
//! again. If the new files cannot be used, the agent logs the error and keeps the old ones. It watches no directories:
//! the files are links into a directory that is replaced as a whole.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::pem::{PemError, PemFile};

/// The reasons why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds no PEM.
    #[error(transparent)]
    File(#[from] PemError),
    /// The certificate and the key do not belong together, or one of them cannot be used.
    #[error("failed to use `{0}` and `{1}`: {2} (the key must be that of the first certificate)")]
    Pair(&'static str, &'static str, #[source] rustls::Error),
    /// There are no root certificates to trust.
    #[error("found no root certificates ({0})")]
    NoRoots(&'static str),
    /// The TLS library failed, not because of the configuration.
    #[error("failed to set up TLS: {0}")]
    Library(rustls::Error),
}

/// A file, with the key or flag by which errors name it.
pub(crate) type NamedFile = (&'static str, PathBuf);

/// The settings of connections to one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsSources {
    /// The authorities that may sign the server's certificate; `None` is the system's roots.
    pub(crate) ca: Option<NamedFile>,
    /// The agent's own certificate, with the intermediate certificates, and its key.
    pub(crate) pair: Option<(NamedFile, NamedFile)>,
    /// The name in the server's certificate; `None` is the URL's host.
    pub(crate) server_name: Option<ServerName<'static>>,
    /// True to accept any certificate.
    pub(crate) insecure_skip_verify: bool,
    /// The remedy in the error for a system without roots.
    pub(crate) without_roots: &'static str,
}

/// The files that are in use, with the configuration made from them.
#[derive(Debug)]
pub(crate) struct Tls {
    sources: TlsSources,
    files: Files,
    config: Arc<ClientConfig>,
    /// The reason, in one line, why the current files cannot be used.
    problem: Option<String>,
}

impl Tls {
    pub(crate) fn new(sources: TlsSources) -> Result<Self, TlsError> {
        let files = Files::read(&sources)?;
        let config = Arc::new(files.config(&sources)?);
        Ok(Self { sources, files, config, problem: None })
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    pub(super) const fn server_name(&self) -> Option<&ServerName<'static>> {
        self.sources.server_name.as_ref()
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Reads the files again. Returns whether there is a new configuration.
    pub(crate) fn refresh(&mut self) -> bool {
        let read = Files::read(&self.sources).map_err(TlsError::from).and_then(|files| {
            if files == self.files {
                return Ok(None);
            }
            let config = files.config(&self.sources)?;
            Ok(Some((files, config)))
        });
        match read {
            Ok(new) => {
                self.problem = None;
                let Some((files, config)) = new else { return false };
                (self.files, self.config) = (files, Arc::new(config));
                tracing::info!("read the changed TLS files");
                true
            }
            Err(error) => {
                let problem = error.to_string();
                if self.problem.as_ref() != Some(&problem) {
                    tracing::warn!(error = problem, "TLS files not reloaded, the old ones stay");
                }
                self.problem = Some(problem);
                false
            }
        }
    }
}

/// The contents of the configured files.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    ca: Option<PemFile>,
    pair: Option<(PemFile, PemFile)>,
}

impl Files {
    fn read(sources: &TlsSources) -> Result<Self, PemError> {
        let read = |(name, path): &NamedFile| PemFile::read(name, path);
        let ca = sources.ca.as_ref().map(read).transpose()?;
        let pair = sources.pair.as_ref().map(|(cert, key)| Ok((read(cert)?, read(key)?))).transpose()?;
        Ok(Self { ca, pair })
    }

    fn config(&self, sources: &TlsSources) -> Result<ClientConfig, TlsError> {
        let builder = builder()?;
        let builder = if sources.insecure_skip_verify {
            let algorithms = builder.crypto_provider().signature_verification_algorithms;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(algorithms)))
        } else {
            builder.with_root_certificates(self.roots(sources)?)
        };
        let Some((cert, key)) = &self.pair else { return Ok(builder.with_no_client_auth()) };
        let configured = builder.with_client_auth_cert(cert.certificates()?, key.private_key()?);
        configured.map_err(|source| TlsError::pair(cert, key, source))
    }

    fn roots(&self, sources: &TlsSources) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                if roots.add_parsable_certificates(ca.certificates()?).0 == 0 {
                    return Err(ca.lacks("usable certificate").into());
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(TlsError::NoRoots(sources.without_roots));
                }
            }
        }
        Ok(roots)
    }
}

impl TlsError {
    /// Returns the error for a certificate and a key that cannot be used together.
    pub(crate) const fn pair(cert: &PemFile, key: &PemFile, source: rustls::Error) -> Self {
        Self::Pair(cert.name(), key.name(), source)
    }
}

/// Returns a configuration for connections without TLS: the connector needs one, but never uses it.
pub(super) fn without_trust() -> Result<ClientConfig, TlsError> {
    Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TlsError> {
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    builder.with_safe_default_protocol_versions().map_err(TlsError::Library)
}

/// Accepts any certificate. It still checks that the server has the certificate's key.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;

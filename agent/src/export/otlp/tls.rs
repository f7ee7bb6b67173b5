//! TLS to the receiver: the authorities to trust, and the agent's own certificate.
//!
//! The files are read again before each window, since they are replaced while the agent runs (cert-manager, Kubernetes'
//! secrets). If the new files cannot be used, the agent logs the error and keeps the old ones. It watches no
//! directories: the files are links into a directory that is replaced as a whole.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::settings::TlsSettings;
use crate::transport::pem::{PemError, PemFile};

/// The reasons why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds no PEM.
    #[error(transparent)]
    File(#[from] PemError),
    /// The certificate and the key do not belong together.
    #[error(
        "failed to use `otlp.tls.certFile` and `otlp.tls.keyFile`: {source} (the key must be that of the first certificate)"
    )]
    Pair {
        /// The error of the TLS library.
        source: rustls::Error,
    },
    /// Only one of two keys that belong together is set.
    #[error("`{given}` is set without `{missing}` (set both, or neither)")]
    Half {
        /// The key that is set.
        given: &'static str,
        /// The key that is missing.
        missing: &'static str,
    },
    /// There are no root certificates to trust.
    #[error("found no root certificates (install them, set SSL_CERT_FILE, or set `otlp.tls.caFile`)")]
    NoRoots,
    /// The server name is not a host.
    #[error("failed to parse `otlp.tls.serverName`: `{name}` (a host name or an address)")]
    ServerName {
        /// The configured name.
        name: String,
    },
    /// The TLS library failed, not because of the configuration.
    #[error("failed to set up TLS")]
    Library(#[source] rustls::Error),
}

impl TlsSettings {
    /// Checks that the settings fit together, without reading the files.
    pub(super) fn check(&self) -> Result<(), TlsError> {
        let (cert, key) = ("otlp.tls.certFile", "otlp.tls.keyFile");
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => return Err(TlsError::Half { given: cert, missing: key }),
            (None, Some(_)) => return Err(TlsError::Half { given: key, missing: cert }),
            _ => {}
        }
        self.server_name().map(drop)
    }

    pub(super) fn server_name(&self) -> Result<Option<ServerName<'static>>, TlsError> {
        let parse = |name: &String| {
            ServerName::try_from(name.clone()).ok().ok_or_else(|| TlsError::ServerName { name: name.clone() })
        };
        self.server_name.as_ref().map(parse).transpose()
    }
}

/// The files that are in use, with the configuration made from them.
#[derive(Debug)]
pub(super) struct Tls {
    settings: TlsSettings,
    files: Files,
    config: Arc<ClientConfig>,
    /// The reason, in one line, why the current files cannot be used.
    problem: Option<String>,
}

impl Tls {
    pub(super) fn new(settings: &TlsSettings) -> Result<Self, TlsError> {
        let files = Files::read(settings)?;
        let config = Arc::new(files.config(settings)?);
        Ok(Self { settings: settings.clone(), files, config, problem: None })
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Reads the files again. Returns whether there is a new configuration.
    pub(super) fn refresh(&mut self) -> bool {
        let read = Files::read(&self.settings).and_then(|files| {
            if files == self.files {
                return Ok(None);
            }
            let config = files.config(&self.settings)?;
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
    cert: Option<PemFile>,
    key: Option<PemFile>,
}

impl Files {
    fn read(settings: &TlsSettings) -> Result<Self, TlsError> {
        let read = |key, path: &Option<PathBuf>| path.as_deref().map(|path| PemFile::read(key, path)).transpose();
        Ok(Self {
            ca: read("otlp.tls.caFile", &settings.ca_file)?,
            cert: read("otlp.tls.certFile", &settings.cert_file)?,
            key: read("otlp.tls.keyFile", &settings.key_file)?,
        })
    }

    fn config(&self, settings: &TlsSettings) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Library)?;
        let builder = if settings.insecure_skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate::new(&provider)))
        } else {
            builder.with_root_certificates(self.roots()?)
        };
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Ok(builder.with_no_client_auth());
        };
        let (chain, key) = (cert.certificates()?, key.private_key()?);
        builder.with_client_auth_cert(chain, key).map_err(|source| TlsError::Pair { source })
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
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
                    return Err(TlsError::NoRoots);
                }
            }
        }
        Ok(roots)
    }
}

/// Accepts any certificate (`otlp.tls.insecureSkipVerify`). It still checks that the receiver has the certificate's
/// key.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl AnyCertificate {
    fn new(provider: &CryptoProvider) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

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

//! The server's certificate, read again when its files change.
//!
//! Open connections keep the certificate with which they began. If the new files cannot be used, the agent logs the
//! error and keeps the old certificate.

use std::sync::Arc;

use rustls::{ServerConfig, crypto::ring};

use super::expiry;
use crate::config::TlsFiles;
use crate::transport::{
    pem::{PemError, PemFile},
    tls::TlsError,
};

/// The certificate that is in use, with the contents of its files.
#[derive(Debug)]
pub(super) struct Certificate {
    paths: TlsFiles,
    files: (PemFile, PemFile),
    config: Arc<ServerConfig>,
    ends: i64,
    problem: Option<String>,
}

impl Certificate {
    pub(super) fn read(paths: TlsFiles) -> Result<Self, TlsError> {
        let files = read(&paths)?;
        let (config, ends) = use_files(&files)?;
        Ok(Self { paths, files, config, ends, problem: None })
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Returns the end of the certificate, Unix time in seconds; 0 if it cannot be read.
    pub(super) const fn ends(&self) -> i64 {
        self.ends
    }

    /// Reads the files again.
    pub(super) fn refresh(&mut self) {
        let new = read(&self.paths).map_err(TlsError::from).and_then(|files| {
            if files == self.files {
                return Ok(None);
            }
            let (config, ends) = use_files(&files)?;
            Ok(Some((files, config, ends)))
        });
        match new {
            Ok(None) => self.problem = None,
            Ok(Some((files, config, ends))) => {
                (self.files, self.config, self.ends, self.problem) = (files, config, ends, None);
                tracing::info!("read the changed certificate of the server");
            }
            Err(error) => {
                let problem = error.to_string();
                if self.problem.as_ref() != Some(&problem) {
                    tracing::warn!(error = problem, "the server's certificate not reloaded, the old one stays");
                }
                self.problem = Some(problem);
            }
        }
    }
}

fn read(paths: &TlsFiles) -> Result<(PemFile, PemFile), PemError> {
    Ok((PemFile::read("server.tls.certFile", &paths.cert)?, PemFile::read("server.tls.keyFile", &paths.key)?))
}

fn use_files((cert, key): &(PemFile, PemFile)) -> Result<(Arc<ServerConfig>, i64), TlsError> {
    let chain = cert.certificates()?;
    let ends = chain.iter().filter_map(|certificate| expiry::not_after(certificate)).min().unwrap_or_default();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Library)?;
    let builder = builder.with_no_client_auth();
    let mut config =
        builder.with_single_cert(chain, key.private_key()?).map_err(|source| TlsError::pair(cert, key, source))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((Arc::new(config), ends))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn write(directory: &Path, year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        fs::write(directory.join("tls.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_changed_certificate_is_taken_and_a_spoilt_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        write(directory.path(), 2040);
        let mut certificate = Certificate::read(TlsFiles { cert: at("tls.crt"), key: at("tls.key") }).unwrap();
        assert_eq!(certificate.ends(), 2_208_988_800);
        let first = certificate.config();
        certificate.refresh();
        assert!(Arc::ptr_eq(&first, &certificate.config()));

        fs::copy(at("tls.key"), at("old.key")).unwrap();
        write(directory.path(), 2050);
        fs::rename(at("tls.key"), at("new.key")).unwrap();
        fs::rename(at("old.key"), at("tls.key")).unwrap();
        certificate.refresh();
        assert!(Arc::ptr_eq(&first, &certificate.config()), "the key is not that of the certificate");
        assert!(certificate.problem.as_ref().unwrap().contains("`server.tls.keyFile`"), "{:?}", certificate.problem);

        fs::rename(at("new.key"), at("tls.key")).unwrap();
        certificate.refresh();
        assert_eq!((certificate.ends(), &certificate.problem), (2_524_608_000, &None));
        assert!(!Arc::ptr_eq(&first, &certificate.config()));
    }
}

//! Certificates and keys in files, for TLS of both sides: to receivers, and of the agent's own server.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject};

/// Of a certificate or key file. The system's own bundle has a quarter of that.
const FILE_BYTES: u64 = 1 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It cannot be read.
    #[error("failed to read `{key}`: `{path}`: {source} (mount it, or let the agent read it)", path = path.display())]
    Read {
        /// The key's path, or the flag.
        key: &'static str,
        /// As configured.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not what is expected in it.
    #[error("failed to parse `{key}`: `{path}`: no {expected} in it (it is to be PEM)", path = path.display())]
    Parse {
        /// The key's path, or the flag.
        key: &'static str,
        /// As configured.
        path: PathBuf,
        /// What it is to hold.
        expected: &'static str,
    },
}

/// A file's bytes, and what they are called. It never shows them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PemFile {
    key: &'static str,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for PemFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PemFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PemFile {
    /// Reads it, under the name of the key that it is configured by.
    pub(crate) fn read(key: &'static str, path: &Path) -> Result<Self, PemError> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes));
        let path = path.to_owned();
        match read {
            Ok(_) => Ok(Self { key, path, bytes }),
            Err(source) => Err(PemError::Read { key, path, source }),
        }
    }

    /// All certificates in it; at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PemError> {
        let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        parsed.ok().filter(|parsed| !parsed.is_empty()).ok_or_else(|| self.lacks("certificate"))
    }

    /// The first private key in it.
    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).ok().ok_or_else(|| self.lacks("private key"))
    }

    /// What to say where something is missing in it.
    pub(crate) fn lacks(&self, expected: &'static str) -> PemError {
        PemError::Parse { key: self.key, path: self.path.clone(), expected }
    }
}

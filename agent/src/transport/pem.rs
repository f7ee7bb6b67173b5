//! Reads certificates and keys from PEM files, for connections to receivers and for the agent's own server.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject};

/// The most bytes that are read of a certificate or key file. The system's own bundle has a quarter of that.
const FILE_BYTES: u64 = 1 << 20;

/// The reasons why a certificate or key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// The file cannot be read.
    #[error("failed to read `{key}`: `{path}`: {cause} (mount it, or let the agent read it)", path = path.display())]
    Read {
        /// The key's path, or the flag.
        key: &'static str,
        /// The configured path.
        path: PathBuf,
        /// The error of the system. The message has it, so it is no source.
        cause: io::Error,
    },
    /// The file does not hold the expected PEM section.
    #[error("failed to parse `{key}`: `{path}`: no {expected} in it (it is to be PEM)", path = path.display())]
    Parse {
        /// The key's path, or the flag.
        key: &'static str,
        /// The configured path.
        path: PathBuf,
        /// The expected kind of section, such as `certificate`.
        expected: &'static str,
    },
}

/// The bytes of a file, with its path and its configuration key. `Debug` never prints the bytes.
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
    /// Reads the file. `key` is the configuration key that errors name.
    pub(crate) fn read(key: &'static str, path: &Path) -> Result<Self, PemError> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes));
        let path = path.to_owned();
        match read {
            Ok(_) => Ok(Self { key, path, bytes }),
            Err(cause) => Err(PemError::Read { key, path, cause }),
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.key
    }

    /// Returns all certificates of the file; at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PemError> {
        let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        parsed.ok().filter(|parsed| !parsed.is_empty()).ok_or_else(|| self.lacks("certificate"))
    }

    /// Returns the first private key of the file.
    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).ok().ok_or_else(|| self.lacks("private key"))
    }

    /// Returns the error for a file without an `expected` section.
    pub(crate) fn lacks(&self, expected: &'static str) -> PemError {
        PemError::Parse { key: self.key, path: self.path.clone(), expected }
    }
}

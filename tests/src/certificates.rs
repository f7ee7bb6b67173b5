//! Certificates that tests make: an authority, and what it signs.

use std::{fs, path::Path};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// Signs certificates.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Makes one under a name of its own.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Writes its own certificate, for those who are to believe it.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(fs::write(path, self.0.pem())?)
    }

    /// Signs a certificate for loopback under a name, and writes `FILE.crt` and `FILE.key`.
    pub fn issue(&self, name: &str, directory: &Path, file: &str) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0)?;
        fs::write(directory.join(format!("{file}.crt")), certificate.pem())?;
        Ok(fs::write(directory.join(format!("{file}.key")), key.serialize_pem())?)
    }
}

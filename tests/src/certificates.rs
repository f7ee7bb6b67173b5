//! Certificates that tests make: an authority, and the certificates that it signs.

use std::{fs, path::Path};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// Signs certificates.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Makes an authority with this name.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Writes the authority's own certificate, for clients that should trust it.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(fs::write(path, self.0.pem())?)
    }

    /// Signs a certificate for loopback under a name, and writes `FILE.crt` and `FILE.key`.
    pub fn issue(&self, name: &str, directory: &Path, file: &str) -> Result<()> {
        self.issue_for(name, &["localhost", "127.0.0.1"], directory, file)
    }

    /// Signs a certificate in the same way, for other hosts by name or address.
    pub fn issue_for(&self, name: &str, hosts: &[&str], directory: &Path, file: &str) -> Result<()> {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        self.sign(CertificateParams::new(hosts)?, name, directory, file)
    }

    /// Signs a client's certificate. The API server identifies its holder as this user of this group.
    pub fn issue_client(&self, user: &str, group: &str, directory: &Path, file: &str) -> Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, user, directory, file)
    }

    fn sign(&self, mut params: CertificateParams, name: &str, directory: &Path, file: &str) -> Result<()> {
        let key = KeyPair::generate()?;
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0)?;
        fs::write(directory.join(format!("{file}.crt")), certificate.pem())?;
        Ok(fs::write(directory.join(format!("{file}.key")), key.serialize_pem())?)
    }
}

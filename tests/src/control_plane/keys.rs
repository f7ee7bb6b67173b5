//! The API server's certificate, and its key for service-account tokens.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::KeyPair;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use serde_json::Value;

use super::{GUEST_HOST, SERVICE};
use crate::certificates::Authority;

/// The API server accepts a token for this long after its end, because clocks differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// The names of the API server: for tests, for the kubelet of a guest, and for pods.
const HOSTS: &[&str] = &["localhost", "127.0.0.1", GUEST_HOST, SERVICE];

/// Writes `ca.crt`, `server.crt` and `server.key`: the server's certificate, and the authority to trust.
pub(super) fn write_certificates(directory: &Path) -> Result<Authority> {
    let authority = Authority::new("podperf-test-ca")?;
    authority.write(&directory.join("ca.crt"))?;
    authority.issue_for("kube-apiserver", HOSTS, directory, "server")?;
    Ok(authority)
}

/// The service-account signing key. The tests hold it too, since the API server makes no token for less than ten
/// minutes.
#[derive(Debug)]
pub(super) struct TokenKey(EcdsaKeyPair);

impl TokenKey {
    /// Makes a key, and writes `service-account.key` and `service-account.pub`.
    pub(super) fn write(directory: &Path) -> Result<Self> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random);
        let pkcs8 = pkcs8.map_err(|error| anyhow!("failed to make a key: {error}"))?;
        let pair = KeyPair::try_from(pkcs8.as_ref())?;
        fs::write(directory.join("service-account.key"), pair.serialize_pem())?;
        fs::write(directory.join("service-account.pub"), pair.public_key_pem())?;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random);
        Ok(Self(key.map_err(|error| anyhow!("failed to read the key back: {error}"))?))
    }

    /// Returns the same token, which the server refuses from `life` from now on.
    pub(super) fn shorten(&self, token: &str, life: Duration) -> Result<String> {
        let mut parts = token.split('.');
        let (header, claims) = parts.next().zip(parts.next()).context("not a JSON Web Token")?;
        let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?;
        let end = SystemTime::now().duration_since(UNIX_EPOCH)? + life - LEEWAY;
        claims["exp"] = end.as_secs().into();
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.map_err(|error| anyhow!("failed to sign a token: {error}"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

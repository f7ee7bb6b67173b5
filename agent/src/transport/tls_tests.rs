use std::{fs, path::Path};

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use super::*;

/// Returns a self-signed certificate and its key, both PEM.
fn pair(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// A directory as Kubernetes mounts a secret: the files are links into a directory that is replaced as a whole.
struct Secret(TempDir);

impl Secret {
    fn new(certificate: &str, key: &str) -> Self {
        let secret = Self(TempDir::new().unwrap());
        for name in ["ca.crt", "tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(Path::new("..data").join(name), secret.0.path().join(name)).unwrap();
        }
        secret.replace("1", certificate, key);
        secret
    }

    fn replace(&self, version: &str, certificate: &str, key: &str) {
        let directory = self.0.path().join(version);
        fs::create_dir(&directory).unwrap();
        for (name, text) in [("ca.crt", certificate), ("tls.crt", certificate), ("tls.key", key)] {
            fs::write(directory.join(name), text).unwrap();
        }
        let new = self.0.path().join("..new");
        std::os::unix::fs::symlink(version, &new).unwrap();
        fs::rename(new, self.0.path().join("..data")).unwrap();
    }

    fn sources(&self) -> TlsSources {
        let file = |key, name: &str| (key, self.0.path().join(name));
        TlsSources {
            ca: Some(file("otlp.tls.caFile", "ca.crt")),
            pair: Some((file("otlp.tls.certFile", "tls.crt"), file("otlp.tls.keyFile", "tls.key"))),
            ..TlsSources::default()
        }
    }
}

#[test]
fn changed_files_are_taken_and_unchanged_ones_are_not() {
    let (certificate, key) = pair("old");
    let secret = Secret::new(&certificate, &key);
    let mut tls = Tls::new(secret.sources()).unwrap();
    assert!(!tls.refresh());
    let (certificate, key) = pair("new");
    secret.replace("2", &certificate, &key);
    assert!(tls.refresh());
    assert!(!tls.refresh());
    assert_eq!(tls.problem(), None);
}

#[test]
fn files_that_cannot_be_used_are_told_and_the_old_ones_stay() {
    let (certificate, key) = pair("old");
    let secret = Secret::new(&certificate, &key);
    let mut tls = Tls::new(secret.sources()).unwrap();
    let old = Arc::clone(&tls.config);
    secret.replace("2", &pair("new").0, &key);
    assert!(!tls.refresh());
    let problem = tls.problem().unwrap().to_owned();
    assert!(problem.contains("the key must be that of the first certificate"), "{problem}");
    fs::remove_file(secret.0.path().join("2/tls.key")).unwrap();
    assert!(!tls.refresh());
    let problem = tls.problem().unwrap().to_owned();
    assert!(problem.contains("`otlp.tls.keyFile`") && problem.contains("tls.key"), "{problem}");
    assert!(Arc::ptr_eq(&old, &tls.config));
    let (certificate, key) = pair("newer");
    secret.replace("3", &certificate, &key);
    assert!(tls.refresh());
    assert_eq!(tls.problem(), None);
}

#[test]
fn files_that_hold_something_else_are_refused_by_the_name_of_their_key() {
    let (certificate, key) = pair("a");
    let refusal = |ca: &str, certificate: &str, key: &str| {
        let secret = Secret::new(certificate, key);
        fs::write(secret.0.path().join("1/ca.crt"), ca).unwrap();
        Tls::new(secret.sources()).unwrap_err().to_string()
    };
    assert!(refusal("", &certificate, &key).contains("`otlp.tls.caFile`"));
    assert!(refusal(&key, &certificate, &key).contains("no certificate in it"));
    assert!(refusal(&certificate, &key, &key).contains("`otlp.tls.certFile`"));
    let error = refusal(&certificate, &certificate, "none");
    assert!(error.contains("`otlp.tls.keyFile`") && error.contains("no private key in it"), "{error}");
}

#[test]
fn keys_and_certificates_are_never_shown() {
    let (certificate, key) = pair("a");
    let tls = Tls::new(Secret::new(&certificate, &key).sources()).unwrap();
    let shown = format!("{:?}", tls.files);
    assert!(shown.contains("tls.key") && !shown.contains("bytes") && !shown.contains("BEGIN"), "{shown}");
}

//! The credentials of a client of the API server: the files of a service account in a pod, and a kubeconfig that names
//! them.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::json;
use tempfile::TempDir;

/// A directory with `token`, `ca.crt`, `namespace` and `kubeconfig`, which is removed on drop.
#[derive(Debug)]
pub struct Credentials {
    directory: TempDir,
}

impl Credentials {
    pub(super) fn new(server: SocketAddr, authority: &Path, namespace: &str, token: &str) -> Result<Self> {
        let credentials = Self { directory: TempDir::new()? };
        fs::copy(authority, credentials.path().join("ca.crt"))?;
        fs::write(credentials.path().join("namespace"), namespace)?;
        credentials.write_token(token)?;
        // JSON is valid YAML. The kubeconfig names the token's file, so that a client notices a new token.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority": credentials.path().join("ca.crt"),
            }}],
            "users": [{"name": "test", "user": {"tokenFile": credentials.path().join("token")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        });
        fs::write(credentials.kubeconfig(), config.to_string())?;
        Ok(credentials)
    }

    /// Returns the directory, which has the same files as `/var/run/secrets/kubernetes.io/serviceaccount`.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the kubeconfig's path.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.path().join("kubeconfig")
    }

    /// Replaces the token atomically, as the kubelet does: a reader sees the old token or the new one.
    pub fn write_token(&self, token: &str) -> Result<()> {
        let next = self.path().join("token.next");
        fs::write(&next, token)?;
        Ok(fs::rename(next, self.path().join("token"))?)
    }
}

//! How to get at a server: the service account of the agent's pod, or a kubeconfig.
//!
//! kube reads a token file again when it has had it for 50 s, before the next request, and the CA file when it has had
//! it for 60 s, before the next connection; while a file cannot be read, what it held is used on. What else a
//! kubeconfig holds is read once for each [`Credentials::login`], which a refused token or certificate calls for anew.
//! Nothing of it is logged.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{Kubeconfig, KubeconfigError},
};
use thiserror::Error;
use tracing::Dispatch;

use super::failure::{Failure, Remedy, Server, ServerKind};

/// A service account's files, where Kubernetes mounts them.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Where the kubelet listens.
const KUBELET_PORT: u16 = 10250;

/// Why there can be no source of pods.
#[derive(Debug, Error)]
pub enum SourceError {
    /// Nothing says where the API server is.
    #[error("no in-cluster credentials and no kubeconfig (set `kubernetes.kubeconfig`, or `identity: none`)")]
    NoCredentials,
    /// In a pod, but without a usable service account.
    #[error("failed to use the pod's service account: {0} (is `automountServiceAccountToken` off?)")]
    ServiceAccount(String),
    /// The file cannot be used.
    #[error("failed to use kubeconfig `{path}`: {message}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The kubelet's address cannot be used.
    #[error("bad value for `kubernetes.kubelet.url`: `{url}` (as in `https://127.0.0.1:10250`)")]
    Url {
        /// As configured.
        url: String,
    },
    /// The kubelet's CA cannot be used.
    #[error("failed to read `kubernetes.kubelet.caFile`: `{path}`: {source}")]
    CaFile {
        /// As configured.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Where to find the API server.
#[derive(Clone, Debug)]
pub(crate) enum Credentials {
    /// By the service account, or by a file and a context of it.
    Api { kubeconfig: Option<PathBuf>, context: Option<String> },
    /// The node's kubelet.
    Kubelet { url: Option<String>, ca_file: Option<PathBuf>, insecure_skip_verify: bool },
}

/// Whether this looks like a pod with a service account.
#[must_use]
pub fn in_cluster() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(SERVICE_ACCOUNT).join("token").exists()
}

impl Credentials {
    /// Reads them. No server is asked.
    pub(super) fn config(&self) -> Result<Config, SourceError> {
        let mut config = match self {
            Self::Api { kubeconfig: Some(path), context } => from_kubeconfig(path, context.as_ref())?,
            Self::Api { kubeconfig: None, .. } if env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                Config::incluster().map_err(|error| SourceError::ServiceAccount(error.to_string()))?
            }
            Self::Api { kubeconfig: None, .. } => return Err(SourceError::NoCredentials),
            Self::Kubelet { url, ca_file, insecure_skip_verify } => {
                kubelet(url.as_deref(), ca_file.as_deref(), *insecure_skip_verify)?
            }
        };
        config.connect_timeout = Some(Duration::from_secs(5));
        // kube would try again itself, without a word.
        config.default_retry = false;
        Ok(config)
    }

    /// Whom they are for.
    pub(crate) fn server(&self, kind: ServerKind) -> Result<Server, SourceError> {
        let url = self.config()?.cluster_url;
        // Without the user and password that it may hold.
        let host = url.host().unwrap_or_default();
        let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        Ok(Server { url: format!("{}://{host}{port}", url.scheme_str().unwrap_or("https")), kind })
    }

    /// A client with credentials as they are now. They may come from a plugin, which takes its time.
    pub(crate) async fn login(&self, server: &Server) -> Result<Client, Failure> {
        let (credentials, server) = (self.clone(), server.clone());
        // As in [`super::ask::quietly`].
        let client = move || {
            let config = credentials.config().map_err(|error| Failure::new(Remedy::Login, error.to_string()))?;
            let client = tracing::dispatcher::with_default(&Dispatch::none(), || Client::try_from(config));
            client.map_err(|error| server.failure(&error))
        };
        let joined = tokio::task::spawn_blocking(client).await;
        joined.unwrap_or_else(|_| Err(Failure::new(Remedy::Login, "failed to make a client (see the log)")))
    }
}

fn from_kubeconfig(path: &Path, context: Option<&String>) -> Result<Config, SourceError> {
    let refused = |error: KubeconfigError| {
        let message = match error {
            // It would quote the lines around, tokens and keys among them.
            KubeconfigError::Parse(error) => match error.location() {
                Some(at) => format!("not a kubeconfig's YAML at line {} column {}", at.line(), at.column()),
                None => "not a kubeconfig's YAML".into(),
            },
            KubeconfigError::ReadConfig(error, _) => {
                format!("{error} (set `kubernetes.kubeconfig`, or `--kubeconfig FILE`)")
            }
            KubeconfigError::CurrentContextNotSet => "no current context (set `kubernetes.context`)".into(),
            KubeconfigError::LoadContext(name) => format!("no context `{name}` (see `kubectl config get-contexts`)"),
            KubeconfigError::LoadClusterOfContext(name) => format!("no cluster `{name}`, which its context names"),
            error => error.to_string(),
        };
        SourceError::Kubeconfig { path: path.to_owned(), message }
    };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(refused)?;
    if let Some(context) = context {
        kubeconfig.current_context = Some(context.clone());
    }
    // kube would go there as nobody.
    let current = kubeconfig.contexts.iter().find(|context| Some(&context.name) == kubeconfig.current_context.as_ref());
    let user = current.and_then(|current| current.context.as_ref()?.user.as_ref());
    if let Some(user) = user.filter(|user| !kubeconfig.auth_infos.iter().any(|known| known.name == **user)) {
        let message = format!("no user `{user}`, which its context names");
        return Err(SourceError::Kubeconfig { path: path.to_owned(), message });
    }
    Config::try_from(kubeconfig).map_err(refused)
}

fn kubelet(url: Option<&str>, ca_file: Option<&Path>, insecure_skip_verify: bool) -> Result<Config, SourceError> {
    let url = url.map_or_else(default_kubelet, str::to_owned);
    let parsed = url.parse().ok().map(Config::new);
    let scheme = |config: &Config| config.cluster_url.scheme_str().map(str::to_owned).unwrap_or_default();
    let Some(mut config) = parsed.filter(|config| matches!(&*scheme(config), "http" | "https")) else {
        return Err(SourceError::Url { url });
    };
    let mounted = |name: &str| Some(Path::new(SERVICE_ACCOUNT).join(name)).filter(|path| path.exists());
    if let Some(path) = ca_file {
        std::fs::File::open(path).map_err(|source| SourceError::CaFile { path: path.to_owned(), source })?;
    }
    if scheme(&config) == "https" {
        // No token in clear text.
        config.auth_info.token_file = mounted("token").map(|path| path.to_string_lossy().into_owned());
        // The cluster's CA where the kubelet asks it for its certificate (`serverTLSBootstrap`).
        config.root_cert_file =
            ca_file.map(Path::to_owned).or_else(|| mounted("ca.crt")).filter(|_| !insecure_skip_verify);
    }
    // Else kube would look for the system's roots, which are not in the image, and which no kubelet is of.
    config.root_cert = Some(Vec::new());
    config.accept_invalid_certs = insecure_skip_verify;
    Ok(config)
}

fn default_kubelet() -> String {
    let host = env::var("NODE_IP").ok().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "127.0.0.1".into());
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    format!("https://{host}:{KUBELET_PORT}")
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;

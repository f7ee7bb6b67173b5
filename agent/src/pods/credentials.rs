//! Credentials for a server: the service account of the agent's pod, or a kubeconfig.
//!
//! kube reads a token file again before the next request when its copy is 50 s old, and the CA file before the next
//! connection when its copy is 60 s old. While a file cannot be read, kube keeps using its previous content. All other
//! parts of a kubeconfig are read once for each [`Credentials::login`], which follows each rejected token or
//! certificate. So is a token file with a line break at its end, because kube would send the line break. No content of
//! these files is logged.

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

use super::request_failure::{Failure, Remedy, Server, ServerKind};
use crate::transport::proxy::has_no_proxy;

/// Directory of the service account's files, where Kubernetes mounts them.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Port that the kubelet listens on.
const KUBELET_PORT: u16 = 10250;

/// Error that makes a source of pods impossible.
#[derive(Debug, Error)]
pub enum SourceError {
    /// Neither the environment nor the configuration names an API server.
    #[error("no in-cluster credentials and no kubeconfig (set `kubernetes.kubeconfig`, or `identity: none`)")]
    NoCredentials,
    /// The agent runs in a pod, but without a usable service account.
    #[error("failed to use the pod's service account: {0} (is `automountServiceAccountToken` off?)")]
    ServiceAccount(String),
    /// The kubeconfig cannot be used.
    #[error("failed to use kubeconfig `{path}`: {message}")]
    Kubeconfig {
        /// Path of the kubeconfig.
        path: PathBuf,
        /// Description of the error.
        message: String,
    },
    /// The kubelet's address cannot be used.
    #[error("bad value for `kubernetes.kubelet.url`: `{url}` (as in `https://127.0.0.1:10250`)")]
    Url {
        /// The configured value.
        url: String,
    },
    /// The kubelet's CA cannot be used.
    #[error("failed to read `kubernetes.kubelet.caFile`: `{path}`: {source}")]
    CaFile {
        /// The configured path.
        path: PathBuf,
        /// The underlying I/O error.
        source: std::io::Error,
    },
}

/// The server, and the credentials for it.
#[derive(Clone, Debug)]
pub(crate) enum Credentials {
    /// The API server, by the service account, or by a kubeconfig and one of its contexts.
    Api { kubeconfig: Option<PathBuf>, context: Option<String> },
    /// The node's kubelet.
    Kubelet { url: Option<String>, ca_file: Option<PathBuf>, insecure_skip_verify: bool },
}

/// Returns `true` if the agent seems to run in a pod with a service account.
#[must_use]
pub fn in_cluster() -> bool {
    env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(SERVICE_ACCOUNT).join("token").exists()
}

impl Credentials {
    /// Reads the credentials without a request to the server.
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
        trim_token(&mut config);
        config.connect_timeout = Some(Duration::from_secs(5));
        // kube would retry by itself, without a log line.
        config.default_retry = false;
        Ok(config)
    }

    /// Returns the server that the credentials are for.
    pub(crate) fn server(&self, kind: ServerKind) -> Result<Server, SourceError> {
        let url = self.config()?.cluster_url;
        // Leaves out the user and password that the URL may hold.
        let host = url.host().unwrap_or_default();
        let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        Ok(Server { url: format!("{}://{host}{port}", url.scheme_str().unwrap_or("https")), kind })
    }

    /// Returns a client with freshly read credentials. A credential plugin may provide them, which takes time.
    pub(crate) async fn login(&self, server: &Server) -> Result<Client, Failure> {
        let (credentials, server) = (self.clone(), server.clone());
        // Suppresses kube's logs, see [`super::ask::quietly`].
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
            // kube's message would quote the nearby lines, which may hold tokens and keys.
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
    // For an unknown user, kube would send requests without credentials.
    let current = kubeconfig.contexts.iter().find(|context| Some(&context.name) == kubeconfig.current_context.as_ref());
    let user = current.and_then(|current| current.context.as_ref()?.user.as_ref());
    if let Some(user) = user.filter(|user| !kubeconfig.auth_infos.iter().any(|known| known.name == **user)) {
        let message = format!("no user `{user}`, which its context names");
        return Err(SourceError::Kubeconfig { path: path.to_owned(), message });
    }
    let cluster = current.and_then(|current| Some(&current.context.as_ref()?.cluster));
    let cluster = kubeconfig.clusters.iter().find(|known| Some(&known.name) == cluster);
    let proxy_url = cluster.and_then(|known| known.cluster.as_ref()?.proxy_url.as_ref());
    let has_own_proxy = proxy_url.is_some_and(|url| !url.is_empty());
    let mut config = Config::try_from(kubeconfig).map_err(refused)?;
    // kube takes the proxy of `HTTPS_PROXY` for every server. kubectl applies the rules of `NO_PROXY` to it, and not to
    // a proxy of the kubeconfig.
    if !has_own_proxy && is_without_proxy(&config.cluster_url) {
        config.proxy_url = None;
    }
    Ok(config)
}

/// Returns whether the environment says that this server is reached without a proxy.
fn is_without_proxy(server: &http::Uri) -> bool {
    server.scheme_str() != Some("https") || has_no_proxy(server, |name| env::var(name).ok())
}

/// Leaves out the white space around the token of a file, as client-go does.
fn trim_token(config: &mut Config) {
    let user = &mut config.auth_info;
    if user.token.is_some() {
        return;
    }
    // If the file cannot be read, kube returns the error.
    let text = user.token_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let token = text.trim();
    if !token.is_empty() && token.len() < text.len() {
        user.token = Some(token.into());
    }
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
        // Never sends a token in clear text.
        config.auth_info.token_file = mounted("token").map(|path| path.to_string_lossy().into_owned());
        // The cluster's CA signs the kubelet's certificate where the kubelet requests one (`serverTLSBootstrap`).
        config.root_cert_file =
            ca_file.map(Path::to_owned).or_else(|| mounted("ca.crt")).filter(|_| !insecure_skip_verify);
    }
    // Without this, kube would look for the system's root certificates. The image has none, and no kubelet's
    // certificate is signed by one.
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

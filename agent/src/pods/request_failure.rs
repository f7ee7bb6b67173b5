//! Describes a failure, and chooses the next attempt. Pure.
//!
//! podperf writes all texts itself: kube's texts repeat themselves and may quote the parsed input, credentials
//! included. The same failure always has the same text, so that it is logged only once.

use std::{error::Error, fmt::Display, time::Duration};

use kube::{client::AuthError, core::Status};

use crate::transport::http::causes;

/// The user name of requests without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// A failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) remedy: Remedy,
    /// Time for which the server asks the agent to wait (`retryAfterSeconds`).
    pub(crate) wait: Duration,
}

/// The remedy to try, besides waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Repeats the same request.
    Retry,
    /// Requests a complete list.
    List,
    /// Reads the credentials again.
    Login,
}

/// The server of a request.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// URL of the server, without user and password.
    pub(crate) url: String,
    pub(crate) kind: ServerKind,
}

/// Kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Api,
    Kubelet,
}

impl Failure {
    pub(super) fn new(remedy: Remedy, text: impl Into<String>) -> Self {
        Self { text: text.into(), remedy, wait: Duration::ZERO }
    }
}

impl Server {
    /// Returns the failure for a server that sent no answer in time.
    pub(crate) fn silent(&self, after: Duration) -> Failure {
        let text = format!("failed to hear from {self} within {after:?} (is it overloaded?)");
        Failure::new(Remedy::Retry, text)
    }

    /// Returns the failure for an answer of the wrong form.
    pub(super) fn garbled(&self, what: impl Display) -> Failure {
        let text = format!("failed to read the answer of {self}: {what} (is something else there, a proxy?)");
        Failure::new(Remedy::List, text)
    }

    /// Returns the failure for any error of kube's client.
    pub(crate) fn failure(&self, error: &kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) => self.refused(status),
            kube::Error::SerdeError(error) => self.garbled(position(error)),
            kube::Error::FromUtf8(_) => self.garbled("not UTF-8"),
            kube::Error::Auth(error) => unauthenticated(error),
            kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => {
                let text = "failed to connect: the client of the API server supports no proxy (add the server's \
                            address to `NO_PROXY`, or unset `HTTPS_PROXY`; or remove the kubeconfig's `proxy-url`)";
                Failure::new(Remedy::Login, text)
            }
            kube::Error::RustlsTls(_) => {
                Failure::new(Remedy::Login, format!("failed to set up TLS with {self}: {}", cause(error)))
            }
            // A predicate of kube's rejects the request when it finds no token.
            kube::Error::Service(inner) if inner.downcast_ref::<AuthError>().is_some() => {
                inner.downcast_ref().map_or_else(|| self.unreachable(error), unauthenticated)
            }
            error => self.unreachable(error),
        }
    }

    /// Returns the failure for a `Status`, or for the status that kube makes of any other answer.
    pub(super) fn refused(&self, status: &Status) -> Failure {
        let Status { code, message, details, .. } = status;
        let message = line(message);
        let (remedy, text) = match code {
            // kube turns an event that it cannot read into an empty status.
            0 => return self.garbled("not a pod"),
            401 => (Remedy::Login, format!("failed to log in at {self}: {}", self.login_hint())),
            // A request without a token has a user as well. Never suggest granting that user anything.
            403 if status.message.contains(ANONYMOUS) => {
                (Remedy::Login, format!("failed to log in at {self}: no token was sent (is its file empty?)"))
            }
            403 => (Remedy::Retry, self.forbidden(&status.message)),
            404 => (Remedy::Retry, format!("failed to find pods at {self}: not found (is the address right?)")),
            410 => (Remedy::List, format!("failed to go on watching at {self}: what was missed is forgotten there")),
            429 | 503 | 504 => (
                Remedy::Retry,
                format!("failed to be served by {self}: {code}: {message} (is it overloaded, or starting?)"),
            ),
            code => (Remedy::Retry, format!("failed to be served by {self}: {code}: {message}")),
        };
        let seconds = details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Failure { text, remedy, wait: Duration::from_secs(seconds.into()) }
    }

    const fn login_hint(&self) -> &'static str {
        match self.kind {
            ServerKind::Api => "token not accepted (expired, or of another cluster?)",
            ServerKind::Kubelet => "token not accepted (does it have `authentication.webhook.enabled: true`?)",
        }
    }

    /// Returns the text for a missing permission. It names the verb and the resource of the server's message, which has
    /// one of two forms:
    /// `pods is forbidden: User "U" cannot list resource "pods" in API group "" at the cluster scope` or
    /// `Forbidden (user=U, verb=get, resource=nodes, subresource(s)=[pods proxy])`.
    fn forbidden(&self, message: &str) -> String {
        let quoted: Vec<_> = message.split('"').collect();
        match (self.kind, quoted.as_slice()) {
            (ServerKind::Api, [_, user, verb, resource, .., scope]) if verb.starts_with(" cannot ") => {
                let verb = verb.split_whitespace().nth(1).unwrap_or("list");
                let scope = line(scope);
                let user = match user.strip_prefix("system:serviceaccount:") {
                    Some(account) => format!("service account `{}`", line(&account.replacen(':', "/", 1))),
                    None => format!("user `{}`", line(user)),
                };
                format!(
                    "may not {verb} `{resource}` {scope} (grant `get`, `list` and `watch` on `pods` to {user}: see \
                     config/rbac.yaml)"
                )
            }
            (ServerKind::Api, _) => format!(
                "may not list and watch `pods`: {} (grant `get`, `list` and `watch` on `pods`: see config/rbac.yaml)",
                line(message)
            ),
            (ServerKind::Kubelet, _) => {
                let user = message.split_once("user=").and_then(|(_, rest)| rest.split([',', ')']).next());
                let user = user.map(|user| format!(" to `{}`", line(user))).unwrap_or_default();
                format!(
                    "may not get the pods of {self} (grant `get` on `nodes/pods`{user}, or on `nodes/proxy` before \
                     Kubernetes 1.33)"
                )
            }
        }
    }

    /// Returns the failure for a connection that broke, or was never made.
    fn unreachable(&self, error: &(dyn Error + 'static)) -> Failure {
        let cause = cause(error);
        // rustls appends the time of the attempt, which differs each time.
        let cause = cause.split(": verification time").next().unwrap_or_default();
        let lower = cause.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        let kubelet = self.kind == ServerKind::Kubelet;
        let (remedy, hint) = if has(&["connection refused"]) {
            (Remedy::Retry, "does it run, and there?")
        } else if has(&["lookup", "name or service not known", "temporary failure in name resolution"]) {
            (Remedy::Retry, "with `hostNetwork`, `dnsPolicy` must be `ClusterFirstWithHostNet`")
        } else if has(&["timed out", "deadline", "unreachable"]) {
            (Remedy::Retry, "is there a NetworkPolicy or a firewall between?")
        } else if has(&["unknownissuer", "selfsigned", "badsignature"]) && kubelet {
            (Remedy::Login, "set `kubernetes.kubelet.caFile`, or `insecureSkipVerify: true`")
        } else if has(&["unknownissuer", "selfsigned", "badsignature"]) {
            (Remedy::Login, "its certificate is not of the cluster's CA")
        } else if has(&["not valid for name", "notvalidforname"]) {
            (Remedy::Login, "use a name or address that its certificate has")
        } else if has(&["expired", "not valid yet"]) {
            (Remedy::Login, "is the clock right?")
        } else if has(&["invalidcontenttype"]) {
            (Remedy::Retry, "it does not speak TLS")
        } else if has(&["certificate", "alert"]) {
            (Remedy::Login, "is it the cluster that the credentials are for?")
        } else {
            (Remedy::Retry, "")
        };
        let hint = if hint.is_empty() { String::new() } else { format!(" ({hint})") };
        Failure::new(remedy, format!("failed to reach {self}: {cause}{hint}"))
    }
}

impl Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            ServerKind::Api => "API server",
            ServerKind::Kubelet => "kubelet",
        };
        write!(f, "the {kind} at `{}`", self.url)
    }
}

/// Describes an authentication error without kube's own words, which may contain the output of a credential plugin.
fn unauthenticated(error: &AuthError) -> Failure {
    let text = match error {
        AuthError::ReadTokenFile(error, path) => format!("failed to read token `{}`: {error}", path.display()),
        AuthError::AuthExecStart(error) => format!("failed to run the kubeconfig's credential plugin: {error}"),
        AuthError::AuthExecRun { out, .. } => {
            format!("failed to run the kubeconfig's credential plugin: {}", out.status)
        }
        AuthError::InvalidBearerToken(_) => "failed to use the token: not one line of text".into(),
        _ => "failed to get credentials (do the kubeconfig's `users` work with kubectl?)".into(),
    };
    Failure::new(Remedy::Login, text)
}

/// Returns the position of a JSON error; the error itself may quote the JSON.
pub(super) fn position(error: &serde_json::Error) -> String {
    let what = if error.is_data() { "not a pod's JSON" } else { "not JSON" };
    format!("{what} at line {} column {}", error.line(), error.column())
}

/// Returns the text of the innermost error; the outer errors are only layers.
fn cause(error: &(dyn Error + 'static)) -> String {
    line(&causes(error).last().unwrap_or(error).to_string())
}

/// Returns the first line of a server's message, cut to `LONGEST` characters. A page of HTML is replaced by a fixed
/// text.
fn line(text: &str) -> String {
    const LONGEST: usize = 200;
    let text = text.trim();
    if text.starts_with('<') {
        return "a page of HTML".into();
    }
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(LONGEST).collect()
}

#[cfg(test)]
#[path = "request_failure_tests.rs"]
mod tests;

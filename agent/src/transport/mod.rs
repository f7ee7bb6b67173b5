//! Connections out of the agent, for receivers of profiles and metrics, other agents, and the commands: TLS, proxies,
//! an HTTP client, compression, and delays between attempts. The client of the API server is kube's own.

pub(crate) mod allowance;
pub(crate) mod backoff;
pub mod compression;
pub(crate) mod http;
pub mod pem;
pub mod proxy;
mod route;
pub mod tls;

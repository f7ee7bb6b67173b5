//! The proxy on the way to a server, by `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. Pure.
//!
//! The server's scheme chooses the variable, and a name in capitals comes before the same name in small letters. The
//! entries of `NO_PROXY` are those of curl. As in Go, the loopback has no proxy, and an empty variable counts as not set.

use std::{fmt, net::IpAddr};

use http::{
    HeaderValue, Uri,
    uri::{Authority, Scheme},
};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

const HTTPS: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const HTTP: [&str; 2] = ["HTTP_PROXY", "http_proxy"];
const EXCEPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The error for a proxy that cannot be used. It does not show the address, which may have a password.
#[derive(Debug, thiserror::Error)]
#[error("failed to use the proxy of environment variable `{0}` (write `http://HOST:PORT`: no other kind works)")]
pub struct ProxyError(&'static str);

/// A proxy. `Debug` and `Display` show no password.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    variable: &'static str,
    intercept: Intercept,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address().authority().map_or("", Authority::as_str);
        write!(f, "proxy `{address}` of `{}`", self.variable)
    }
}

impl Proxy {
    /// Returns the proxy to a server; `variable` returns an environment variable by its name.
    pub(crate) fn of(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ProxyError> {
        let names = if server.scheme() == Some(&Scheme::HTTPS) { HTTPS } else { HTTP };
        let Some((name, address)) = given(names, &variable) else { return Ok(None) };
        if has_no_proxy(server, variable) {
            return Ok(None);
        }
        let all = Matcher::builder().all(address.trim()).build();
        let intercept = all.intercept(server).filter(|it| it.uri().scheme() == Some(&Scheme::HTTP));
        intercept.map(|intercept| Some(Self { variable: name, intercept })).ok_or(ProxyError(name))
    }

    pub(crate) fn address(&self) -> &Uri {
        self.intercept.uri()
    }

    /// Returns the value of the header `Proxy-Authorization`.
    pub(crate) fn login(&self) -> Option<&HeaderValue> {
        self.intercept.basic_auth()
    }
}

/// Returns whether a server is reached without a proxy: it is on the loopback, or `NO_PROXY` names it.
pub(crate) fn has_no_proxy(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> bool {
    // A name may end with a dot, on either side.
    let host = server.host().unwrap_or_default().trim_end_matches('.');
    let address = host.trim_matches(['[', ']']).parse().ok();
    if host.eq_ignore_ascii_case("localhost") || address.is_some_and(|ip: IpAddr| ip.to_canonical().is_loopback()) {
        return true;
    }
    let Some((_, list)) = given(EXCEPT, &variable) else { return false };
    let entries: Vec<_> = list.split(',').map(|entry| entry.trim().trim_end_matches('.')).collect();
    // For hyper-util, `*` is all names and no address.
    if entries.contains(&"*") {
        return true;
    }
    let Ok(server) = format!("http://{host}/").parse() else { return false };
    Matcher::builder().all("http://proxy").no(entries.join(",")).build().intercept(&server).is_none()
}

/// Returns the first of these variables that is set, with its name.
fn given(names: [&'static str; 2], variable: &impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let text = |name| variable(name).filter(|text| !text.trim().is_empty());
    names.into_iter().find_map(|name| Some((name, text(name)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(server: &str, variables: &[(&str, &str)]) -> Result<Option<Proxy>, ProxyError> {
        Proxy::of(&server.parse().unwrap(), |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
        })
    }

    fn shown(server: &str, variables: &[(&str, &str)]) -> Option<String> {
        of(server, variables).unwrap().map(|proxy| proxy.to_string())
    }

    #[test]
    fn the_scheme_chooses_the_variable() {
        let both = [("HTTP_PROXY", "http://a:1"), ("https_proxy", "b:2"), ("http_proxy", "http://c:3")];
        assert_eq!(shown("http://x.example/", &both).unwrap(), "proxy `a:1` of `HTTP_PROXY`");
        assert_eq!(shown("https://x.example/", &both).unwrap(), "proxy `b:2` of `https_proxy`");
        assert_eq!(shown("https://x.example/", &both[..1]), None);
        let empty = [("HTTPS_PROXY", " "), ("https_proxy", "http://b:2/"), ("NO_PROXY", "")];
        assert_eq!(shown("https://x.example/", &empty).unwrap(), "proxy `b:2` of `https_proxy`");
    }

    #[test]
    fn no_proxy_lists_domains_addresses_and_networks() {
        let list = ".svc, cluster.local ,example.com.,10.0.0.0/8,192.0.2.7,fd00::/8,2001:db8::1";
        let proxied = |host: &str, list| {
            let variables = [("HTTP_PROXY", "http://p:1"), ("no_proxy", list)];
            shown(&format!("http://{host}:4318/"), &variables).is_some()
        };
        for host in
            ["a.b.svc", "svc", "A.CLUSTER.LOCAL", "cluster.local.", "example.com", "a.example.com", "10.255.0.1"]
        {
            assert!(!proxied(host, list) && !proxied(host, "*") && proxied(host, "other"), "{host}");
        }
        for host in ["192.0.2.7", "[fd12::1]", "[2001:db8::1]"] {
            assert!(!proxied(host, list) && !proxied(host, "::/0,0.0.0.0/0"), "{host}");
        }
        for host in ["asvc", "cluster.local.net", "11.0.0.1", "192.0.2.70", "[fe80::1]", "[2001:db8::2]"] {
            assert!(proxied(host, list) && proxied(host, "10.0.0.0/33,/8,10.0.0.0/x,."), "{host}");
        }
    }

    #[test]
    fn no_proxy_leads_to_the_loopback() {
        let all = [("HTTP_PROXY", "http://p:1"), ("HTTPS_PROXY", "socks5://p:1")];
        for server in ["http://localhost.:1/", "http://127.0.0.2:1/", "https://[::1]:1/", "http://[::ffff:127.0.0.1]/"]
        {
            assert_eq!(shown(server, &all), None, "{server}");
        }
    }

    #[test]
    fn the_login_is_decoded_and_never_shown() {
        let proxy = of("https://x.example/", &[("HTTPS_PROXY", "http://shop:p%40ss@p:1")]).unwrap().unwrap();
        assert_eq!(proxy.login().unwrap(), "Basic c2hvcDpwQHNz");
        assert_eq!(proxy.to_string(), "proxy `p:1` of `HTTPS_PROXY`");
        assert_eq!(proxy.address(), "http://p:1/");
        let debug = format!("{proxy:?}");
        assert!(!debug.contains("shop") && !debug.contains("Basic"), "{debug}");
    }

    #[test]
    fn a_proxy_of_another_kind_is_refused_by_the_name_of_its_variable() {
        for address in ["https://shop:secret@p:1", "socks5://shop:secret@p:1", "http://shop:se cret@p", "http://"] {
            let error = of("https://x.example/", &[("https_proxy", address)]).unwrap_err().to_string();
            assert!(error.contains("`https_proxy` (write `http://HOST:PORT`"), "{address}: {error}");
            assert!(!error.contains("shop") && !error.contains("cret"), "{error}");
        }
    }
}

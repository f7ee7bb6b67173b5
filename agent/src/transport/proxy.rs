//! The proxy on the way to a server, by `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. Pure.
//!
//! The server's scheme chooses the variable, and a name in capitals comes before the same name in small letters. The
//! entries of `NO_PROXY` are those of curl and of hyper-util, whose own matcher needs one more crate. As in Go, the
//! loopback has no proxy, and an empty variable counts as not set.

use std::{fmt, net::IpAddr};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::{
    HeaderValue, Uri,
    uri::{Authority, Scheme},
};
use percent_encoding::percent_decode_str;

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
    address: Uri,
    login: Option<HeaderValue>,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.authority().map_or("", Authority::as_str);
        write!(f, "proxy `{address}` of `{}`", self.variable)
    }
}

impl Proxy {
    /// Returns the proxy to a server; `variable` returns an environment variable by its name.
    pub(crate) fn of(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ProxyError> {
        let given = |names: [&'static str; 2]| {
            let text = |name| variable(name).filter(|text| !text.trim().is_empty());
            names.into_iter().find_map(|name| Some((name, text(name)?)))
        };
        let names = if server.scheme() == Some(&Scheme::HTTPS) { HTTPS } else { HTTP };
        let Some((name, address)) = given(names) else { return Ok(None) };
        let host = server.host().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.');
        if is_loopback(host) || given(EXCEPT).is_some_and(|(_, list)| is_listed(host, &list)) {
            return Ok(None);
        }
        Self::parse(name, address.trim()).map(Some).ok_or(ProxyError(name))
    }

    pub(crate) const fn address(&self) -> &Uri {
        &self.address
    }

    /// Returns the value of the header `Proxy-Authorization`.
    pub(crate) const fn login(&self) -> Option<&HeaderValue> {
        self.login.as_ref()
    }

    fn parse(variable: &'static str, text: &str) -> Option<Self> {
        let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = url.parse().ok()?;
        let authority = uri.authority()?.as_str();
        let (user, server) = match authority.rsplit_once('@') {
            Some((user, server)) => (Some(user), server),
            None => (None, authority),
        };
        if uri.scheme() != Some(&Scheme::HTTP) || uri.host()?.is_empty() {
            return None;
        }
        let login = match user {
            Some(user) => Some(login(user)?),
            None => None,
        };
        let address = Uri::builder().scheme(Scheme::HTTP).authority(server).path_and_query("/").build().ok()?;
        Some(Self { variable, address, login })
    }
}

fn login(user: &str) -> Option<HeaderValue> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy();
    let login = BASE64_STANDARD.encode(format!("{}:{}", decoded(name), decoded(password)));
    let mut value = HeaderValue::try_from(format!("Basic {login}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Returns whether one of the entries, which commas separate, matches the host.
fn is_listed(host: &str, list: &str) -> bool {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| is_match(host, entry))
}

/// An entry is `*` for all hosts, a domain with all that is below it, an address, or a network such as `10.0.0.0/8`.
fn is_match(host: &str, entry: &str) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(ip) = host.parse() {
        return is_in(ip, entry).unwrap_or(false);
    }
    // Both `.example.com` and `*.example.com` mean the same as `example.com`.
    let domain = entry.trim_start_matches('*').trim_start_matches('.').to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    host.strip_suffix(domain.as_str()).is_some_and(|below| below.is_empty() || below.ends_with('.'))
}

/// Returns whether the address is in the network; `None` if the entry is no network.
fn is_in(ip: IpAddr, entry: &str) -> Option<bool> {
    let (network, bits) = match entry.split_once('/') {
        Some((network, bits)) => (network, Some(bits.parse::<u32>().ok()?)),
        None => (entry, None),
    };
    let (ip, network, length) = match (ip, network.trim_matches(['[', ']']).parse::<IpAddr>().ok()?) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => (u128::from(ip.to_bits()), u128::from(network.to_bits()), 32),
        (IpAddr::V6(ip), IpAddr::V6(network)) => (ip.to_bits(), network.to_bits(), 128),
        _ => return Some(false),
    };
    let rest = u32::checked_sub(length, bits.unwrap_or(length))?;
    // A shift by all bits of the type has no result.
    Some((ip ^ network).checked_shr(rest).unwrap_or(0) == 0)
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
        let list = ".svc, cluster.local ,*.example.com,10.0.0.0/8,192.0.2.7,fd00::/8,2001:db8::1";
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
        for server in ["http://localhost:1/", "http://127.0.0.2:1/", "https://[::1]:1/"] {
            assert_eq!(shown(server, &all), None, "{server}");
        }
    }

    #[test]
    fn the_login_is_decoded_and_never_shown() {
        let proxy = of("https://x.example/", &[("HTTPS_PROXY", "http://shop:p%40ss@p:1")]).unwrap().unwrap();
        assert_eq!(proxy.login().unwrap(), &format!("Basic {}", BASE64_STANDARD.encode("shop:p@ss")));
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

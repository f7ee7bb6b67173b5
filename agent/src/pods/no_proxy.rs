//! The servers that are reached without a proxy, by `NO_PROXY`. The rules are those of kubectl, which has them from Go
//! (golang.org/x/net/http/httpproxy). Pure.

use std::net::IpAddr;

/// Returns whether these rules, separated by commas, name a server: `*`, an address, a network such as `10.0.0.0/8`, a
/// name with all names below it, or `.NAME` for the names below it only. A rule may end with a port. Servers on the
/// loopback never need a proxy.
pub(super) fn is_named(host: &str, port: u16, rules: &str) -> bool {
    let host = without_brackets(host).to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let mut rules = rules.split(',').map(|rule| rule.trim().to_ascii_lowercase());
    rules.any(|rule| matches(&rule, &host, address, port))
}

fn matches(rule: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if rule == "*" {
        return true;
    }
    if let Some((network, bits)) = network(rule) {
        return address.is_some_and(|address| is_in(address, network, bits));
    }
    let (name, of_port) = split_port(rule);
    if of_port.is_some_and(|of| of != port) {
        return false;
    }
    if let Ok(named) = name.parse::<IpAddr>() {
        return address == Some(named.to_canonical());
    }
    let name = if name.starts_with("*.") { &name[1..] } else { name };
    let (parent, is_itself) = match name.strip_prefix('.') {
        Some(parent) => (parent, false),
        None => (name, host == name),
    };
    !parent.is_empty() && (is_itself || host.strip_suffix(parent).is_some_and(|below| below.ends_with('.')))
}

/// Splits `HOST:PORT`. An IPv6 address with a port is in brackets.
fn split_port(rule: &str) -> (&str, Option<u16>) {
    let split = rule.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    match split.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some((host, port)) => (without_brackets(host), Some(port)),
        None => (without_brackets(rule), None),
    }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn network(rule: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = rule.split_once('/')?;
    Some((address.parse().ok()?, bits.parse().ok()?))
}

fn is_in(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            bits <= 32 && (address.to_bits() ^ network.to_bits()).leading_zeros() >= bits
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            bits <= 128 && (address.to_bits() ^ network.to_bits()).leading_zeros() >= bits
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_the_rules_name_needs_no_proxy() {
        for (host, rules) in [
            ("api.example.com", "*"),
            ("10.1.2.3", " 192.168.0.0/16, 10.0.0.0/8 "),
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3", "10.1.2.3:6443"),
            ("10.1.2.3", "0.0.0.0/0"),
            ("[fd00::1]", "fd00::/8"),
            ("[fd00::1]", "fd00::1"),
            ("[fd00::1]", "[fd00::1]:6443"),
            ("API.example.com", "api.Example.com"),
            ("api.example.com", "example.com"),
            ("api.example.com", ".example.com"),
            ("api.example.com", "*.example.com:6443"),
            ("localhost", ""),
            ("127.0.0.1", ""),
            ("[::1]", ""),
        ] {
            assert!(is_named(host, 6443, rules), "{host} by {rules}");
        }
    }

    #[test]
    fn any_other_server_is_behind_the_proxy() {
        for (host, rules) in [
            ("api.example.com", ""),
            ("api.example.com", ",, ."),
            ("api.example.com", "*.com.example"),
            ("example.com", ".example.com"),
            ("notexample.com", "example.com"),
            ("api.example.com", "example.com:443"),
            ("10.1.2.3", "10.1.2.3:443"),
            ("10.1.2.3", "10.1.2.0/24:6443"),
            ("10.1.2.3", "11.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/33"),
            ("[fd00::1]", "fe00::/8"),
        ] {
            assert!(!is_named(host, 6443, rules), "{host} by {rules}");
        }
    }
}

use std::fs;

use super::{
    super::{ask, request_failure::ServerKind},
    *,
};

const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
contexts:
- {name: one, context: {cluster: c, user: u}}
- {name: two, context: {cluster: d, user: u}}
clusters:
- {name: c, cluster: {server: 'https://one.example:6443', insecure-skip-tls-verify: true}}
- {name: d, cluster: {server: 'https://two.example:6443', certificate-authority-data: bm90aGluZw==}}
users:
- {name: u, user: {token: hunter2}}
";

fn config(yaml: &str, context: Option<&str>) -> Result<Config, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, yaml).unwrap();
    let credentials =
        Credentials::Api { kubeconfig: Some(file.path().to_owned()), context: context.map(str::to_owned) };
    let name = file.path().display().to_string();
    credentials.config().map_err(|error| error.to_string().replace(&name, "FILE"))
}

fn kubelet_config(url: Option<&str>, ca_file: Option<&str>, insecure_skip_verify: bool) -> Result<Config, SourceError> {
    let (url, ca_file) = (url.map(str::to_owned), ca_file.map(PathBuf::from));
    Credentials::Kubelet { url, ca_file, insecure_skip_verify }.config()
}

#[test]
fn a_kubeconfig_is_read_with_the_context_that_is_asked_for() {
    let config = config(KUBECONFIG, Some("two")).unwrap();
    assert_eq!(config.cluster_url.to_string(), "https://two.example:6443/");
    assert_eq!(config.connect_timeout, Some(Duration::from_secs(5)));
    assert!(!config.default_retry);
}

#[test]
fn a_bad_kubeconfig_is_refused_with_its_path_and_without_its_secrets() {
    for (yaml, context, expected) in [
        (KUBECONFIG, None, "failed to use kubeconfig `FILE`: no current context (set `kubernetes.context`)"),
        (KUBECONFIG, Some("three"), "no context `three` (see `kubectl config get-contexts`)"),
        ("users:\n- {name: u, user: {token: [hunter2}}\n", None, "not a kubeconfig's YAML at line 2"),
        ("users:\n- {name: u, user: {token: {hunter2: 1}}}\n", None, "not a kubeconfig's YAML at line 2"),
        ("hunter2", None, "not a kubeconfig's YAML"),
    ] {
        let error = config(yaml, context).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let error = config(&KUBECONFIG.replace("name: u,", "name: v,"), Some("one")).unwrap_err();
    assert!(error.ends_with("no user `u`, which its context names"), "{error}");
    for (good, bad, expected) in [
        ("name: c,", "name: e,", "`c`"),
        ("insecure-skip-tls-verify: true", "certificate-authority: /no/ca", "/no/ca"),
        ("https://one.example:6443", "::", "failed to parse cluster url"),
    ] {
        let error = config(&KUBECONFIG.replace(good, bad), Some("one")).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let credentials = Credentials::Api { kubeconfig: Some("/nonexistent/config".into()), context: None };
    let error = credentials.config().unwrap_err().to_string();
    assert_eq!(
        error,
        "failed to use kubeconfig `/nonexistent/config`: No such file or directory (os error 2) (set \
         `kubernetes.kubeconfig`, or `--kubeconfig FILE`)"
    );
}

#[test]
fn a_token_file_may_end_with_a_line_break() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let user = format!("tokenFile: '{}'", file.path().display());
    let kubeconfig = KUBECONFIG.replace("token: hunter2", &user);
    for (content, token) in [("a.b.c\n", Some("a.b.c")), (" a.b.c\r\n\n", Some("a.b.c")), ("a.b.c", None), ("\n", None)]
    {
        fs::write(&file, content).unwrap();
        let user = serde_json::to_value(config(&kubeconfig, Some("one")).unwrap().auth_info).unwrap();
        assert_eq!(user.get("token").and_then(serde_json::Value::as_str), token, "{content:?}");
        assert_eq!(user["tokenFile"], file.path().to_str().unwrap(), "without a token, kube reads this file");
    }
}

#[test]
fn a_proxy_of_the_kubeconfig_stays_whatever_the_environment_says() {
    let with_proxy = KUBECONFIG.replace("one.example:6443'", "127.0.0.1:6443', proxy-url: 'http://proxy.example:3128'");
    let config = config(&with_proxy, Some("one")).unwrap();
    assert_eq!(config.proxy_url.unwrap().to_string(), "http://proxy.example:3128/");
}

#[test]
fn without_any_credentials_both_ways_out_are_named() {
    // No test runs in a pod.
    let error = Credentials::Api { kubeconfig: None, context: None }.config().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no in-cluster credentials and no kubeconfig (set `kubernetes.kubeconfig`, or `identity: none`)"
    );
    assert!(!in_cluster());
}

#[test]
fn a_kubelet_is_trusted_only_as_configured() {
    let config = kubelet_config(None, None, false).unwrap();
    assert_eq!(config.cluster_url.to_string(), "https://127.0.0.1:10250/");
    assert!(!config.accept_invalid_certs);
    assert_eq!(config.root_cert, Some(Vec::new()), "not the system's roots");
    let config = kubelet_config(Some("https://[fd00::1]:10250"), None, true).unwrap();
    assert!(config.accept_invalid_certs);
    assert_eq!(config.cluster_url.host(), Some("[fd00::1]"));
    let config = kubelet_config(Some("http://127.0.0.1:10255"), None, false).unwrap();
    assert!(config.auth_info.token_file.is_none(), "no token in clear text");
    for url in ["127.0.0.1:10250", "ftp://x", "", "https://"] {
        let error = kubelet_config(Some(url), None, false).unwrap_err().to_string();
        assert!(error.starts_with("bad value for `kubernetes.kubelet.url`"), "{error}");
    }
    let error = kubelet_config(None, Some("/nonexistent/ca.crt"), false).unwrap_err().to_string();
    assert!(error.starts_with("failed to read `kubernetes.kubelet.caFile`: `/nonexistent/ca.crt`: No such"), "{error}");
}

/// kube's TLS panics without a chosen crypto provider.
#[tokio::test]
async fn a_client_speaks_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = Server { url: url.clone(), kind: ServerKind::Kubelet };
    for (insecure_skip_verify, ca_file) in [(true, None), (false, None)] {
        let credentials = Credentials::Kubelet { url: Some(url.clone()), ca_file, insecure_skip_verify };
        let client = credentials.login(&server).await.unwrap();
        let (pods, all) = (kube::core::Request::new("/pods"), kube::api::ListParams::default());
        let (answer, hello) = tokio::join!(ask::list(Duration::from_secs(5), &server, &client, &pods, &all), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut hello).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            hello
        });
        assert_eq!(hello, [22], "a TLS handshake");
        let failure = answer.unwrap_err();
        assert!(failure.text.ends_with("(it does not speak TLS)"), "{failure:?}");
    }
}

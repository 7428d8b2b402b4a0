//! Tests of the settings.

use super::*;

fn checked(settings: Settings) -> Config {
    settings.check("graphcore").unwrap()
}

#[test]
fn the_defaults_are_those_of_the_original_chart() {
    let config = checked(Settings::default());
    assert_eq!(config.proxy_url, "http://ipu-operator-vipu-proxy.graphcore.svc");
    assert!(config.host_network);
    assert_eq!(config.webhooks[1], "0.0.0.0:9443".parse().unwrap());
    assert_eq!(config.metrics[1], "0.0.0.0:8443".parse().unwrap());
    assert_eq!(config.probes[1], "0.0.0.0:8081".parse().unwrap());
    assert_eq!(config.rules.max_instances, 1024);
    assert_eq!(config.max_requested_instances, 64);
    let Certificates::Managed(managed) = config.certificates else {
        panic!("certificates are managed by default");
    };
    assert_eq!(managed.secret, "ipu-operator-admission");
    assert!(managed.names.contains("ipu-operator-webhook-svc.graphcore.svc"));
}

#[test]
fn names_that_a_certificate_cannot_be_for_are_refused_before_anything_begins() {
    let check = |names: &str, service: &str| {
        let settings = Settings {
            webhook_cert_names: Some(names.to_owned()),
            webhook_service: Some(service.to_owned()),
            ..Settings::default()
        };
        settings.check("n")
    };
    let config = check("operator.example, 10.0.0.1,*.n.svc,::1", "hooks").unwrap();
    let Certificates::Managed(managed) = config.certificates else {
        panic!("certificates are managed by default");
    };
    for name in ["operator.example", "10.0.0.1", "*.n.svc", "::1", "hooks.n.svc"] {
        assert!(managed.names.contains(name), "{name}: {:?}", managed.names);
    }
    for invalid in ["two words", "https://operator", "a..b", "ä.example", "a.*"] {
        let error = check(&format!("fine, {invalid}"), "hooks").unwrap_err();
        assert_eq!(
            (error.name, error.value.as_str()),
            ("webhook-cert-names", invalid)
        );
    }
    for invalid in ["hooks.n", "two words", "::1", ""] {
        let error = check("", invalid).unwrap_err();
        assert_eq!((error.name, error.value.as_str()), ("webhook-service", invalid));
    }
}

#[test]
fn a_file_cannot_keep_all_jobs_from_asking() {
    let settings = Settings {
        max_requested_instances: Some(0),
        ..Settings::default()
    };
    assert_eq!(settings.check("n").unwrap_err().name, "max-requested-instances");
}

#[test]
fn a_proxy_is_named_with_or_without_scheme_and_port() {
    for (given, url) in [
        ("proxy.ns.svc", "http://proxy.ns.svc"),
        ("proxy:8080", "http://proxy:8080"),
        ("https://proxy:443/", "https://proxy:443"),
    ] {
        assert_eq!(proxy_url(Some(given), "n").unwrap(), url);
    }
    for given in ["ftp://proxy", "http://proxy/path", "proxy?x", "two words", "://"] {
        assert!(proxy_url(Some(given), "n").is_err(), "{given}");
    }
}

#[test]
fn a_proxy_at_https_is_trusted_by_a_file_and_one_at_http_has_none() {
    let check = |url: Option<&str>, ca: Option<&str>| {
        let settings = Settings {
            vipu_proxy_svc: url.map(str::to_owned),
            proxy_ca_file: ca.map(PathBuf::from),
            ..Settings::default()
        };
        settings.check("n")
    };
    let config = check(Some("https://proxy"), Some("/ca.crt")).unwrap();
    assert_eq!(config.proxy_ca_file, Some("/ca.crt".into()));
    assert!(check(Some("http://proxy"), None).is_ok());
    for https in ["https://proxy:443", "HTTPS://proxy:443"] {
        let error = check(Some(https), None).unwrap_err();
        assert_eq!((error.name, error.value.as_str()), ("vipu-proxy-svc", https));
        assert!(error.rule.contains("set proxy-ca-file"), "{error}");
    }
    for http in [None, Some("proxy:8080"), Some("http://proxy")] {
        let error = check(http, Some("/ca.crt")).unwrap_err();
        assert_eq!((error.name, error.value.as_str()), ("proxy-ca-file", "/ca.crt"));
        assert!(
            error.rule.contains("http://") && error.rule.contains("write https://"),
            "{error}"
        );
    }
}

#[test]
fn a_certificate_of_the_proxy_is_made_for_the_names_of_its_service_and_its_url() {
    let mut settings = Settings {
        vipu_proxy_svc: Some("https://gate.example.com:8443".into()),
        proxy_ca_file: Some("/run/ca.crt".into()),
        proxy_secret: Some("proxy".into()),
        ..Settings::default()
    };
    let certificate = settings.clone().check("n").unwrap().proxy_certificate.unwrap();
    assert_eq!(certificate.secret, "proxy");
    for name in [
        "ipu-operator-vipu-proxy.n.svc",
        "ipu-operator-vipu-proxy",
        "gate.example.com",
    ] {
        assert!(certificate.names.contains(name), "{name}");
    }
    settings.vipu_proxy_svc = Some("https://gc-ipu-operator-vipu-proxy.n.svc".into());
    let certificate = settings.clone().check("n").unwrap().proxy_certificate.unwrap();
    for (name, is_named) in [
        ("gc-ipu-operator-vipu-proxy", true),
        ("gc-ipu-operator-vipu-proxy.n.svc", true),
        ("ipu-operator-vipu-proxy", false),
    ] {
        assert_eq!(certificate.names.contains(name), is_named, "{name}");
    }
    settings.proxy_ca_file = None;
    settings.vipu_proxy_svc = None;
    let error = settings.check("n").unwrap_err();
    assert_eq!((error.name, error.value.as_str()), ("proxy-secret", "proxy"));
    assert!(error.rule.contains("set proxy-ca-file"), "{error}");
}

#[test]
fn a_tag_is_added_to_an_image_that_has_none() {
    for (image, expected) in [
        ("graphcore/launcher", "graphcore/launcher:1.2"),
        ("host:5000/launcher", "host:5000/launcher:1.2"),
        ("launcher:2", "launcher:2"),
        ("launcher@sha256:ab", "launcher@sha256:ab"),
    ] {
        let settings = Settings {
            launcher_image: Some(image.into()),
            launcher_image_tag: Some("1.2".into()),
            ..Settings::default()
        };
        assert_eq!(checked(settings).launcher_image.as_deref(), Some(expected));
    }
}

#[test]
fn the_file_gives_way_to_what_is_set_and_knows_no_other_keys() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settings.yaml");
    std::fs::write(
        &file,
        "max-ipus-per-instance: 16\nhost-network: false\nlauncher-image-pull-policy: Never\n",
    )
    .unwrap();
    let flags = Settings {
        max_ipus_per_instance: Some(32),
        ..Settings::default()
    };
    let config = checked(flags.or(Settings::from_file(&file).unwrap()));
    assert_eq!(config.rules.limits.max_ipus().get(), 32);
    assert!(!config.host_network);
    assert_eq!(config.launcher_image_pull_policy, PullPolicy::Never);
    std::fs::write(&file, "max-ipus: 16\n").unwrap();
    let error = Settings::from_file(&file).unwrap_err();
    assert!(error.rule.contains("max-ipus"), "{error}");
}

#[test]
fn what_cannot_be_used_is_named() {
    let invalid_setting = |settings: Settings| settings.check("n").unwrap_err().name;
    let cap = Settings {
        max_ipus_per_instance: Some(48),
        ..Settings::default()
    };
    assert_eq!(invalid_setting(cap), "max-ipus-per-instance");
    let address = Settings {
        metrics_bind_address: Some("here:1".into()),
        ..Settings::default()
    };
    assert_eq!(invalid_setting(address), "metrics-bind-address");
}

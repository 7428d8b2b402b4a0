//! Tests of certificates: creation, sharing, publication to the API server, renewal without a failed
//! request, and provided certificates.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ipu_operator::{Operator, Rotation};
use ipu_proxy_client::{ClientOptions, ProxyClient, TlsFiles};
use ipu_test_cluster::{Cluster, shared};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::support::{config, local_address, settings, start, start_with, wait_until, wait_until_ready};
use crate::webhooks::{install_permissive_crd, register_webhooks};

async fn client(cluster: &Cluster) -> Client {
    Client::try_from(config(cluster).await).unwrap()
}

/// Returns the CA bundles in both configurations called `name`.
async fn bundles(client: &Client, name: &str) -> [Option<Vec<u8>>; 2] {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mutating = mutating.get(name).await.unwrap().webhooks.unwrap();
    let validating = validating.get(name).await.unwrap().webhooks.unwrap();
    [
        mutating[0].client_config.ca_bundle.clone().map(|bytes| bytes.0),
        validating[0].client_config.ca_bundle.clone().map(|bytes| bytes.0),
    ]
}

/// Returns the CA certificates for clients of the metrics.
async fn published(client: &Client, name: &str) -> Option<Vec<u8>> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let data = config_maps.get_opt(name).await.unwrap()?.data?;
    data.get("ca.crt").map(|text| text.clone().into_bytes())
}

/// Returns the current certificate.
async fn current(client: &Client, name: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let data = secrets.get(name).await.unwrap().data.unwrap();
    String::from_utf8(data["tls.crt"].0.clone()).unwrap()
}

/// Checks that a client that trusts only `bundle` gets a response.
async fn connect_with_bundle(operator: &Operator, bundle: &[u8]) -> Result<(), reqwest::Error> {
    let http = client_with_bundle(bundle)?;
    let url = format!(
        "https://{}/validate-graphcore-ai-v1alpha1-ipujob",
        local_address(operator.webhooks())
    );
    http.post(url).body("").send().await.map(drop)
}

/// Returns a client that trusts only a bundle.
fn client_with_bundle(bundle: &[u8]) -> Result<reqwest::Client, reqwest::Error> {
    rustls::crypto::ring::default_provider().install_default().ok();
    let authorities = reqwest::Certificate::from_pem_bundle(bundle)?;
    reqwest::Client::builder().tls_certs_only(authorities).build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_repeatedly_without_a_failed_request() {
    let Some(cluster) = shared("certificates_are_renewed_repeatedly_without_a_failed_request") else {
        return;
    };
    install_permissive_crd(cluster);
    cluster.kubectl(&["create", "namespace", "rotated"]).unwrap();
    // A certificate is renewed every three seconds.
    let mut rotation = Rotation::default();
    rotation.validity = Duration::from_secs(60);
    rotation.renew_before = Duration::from_secs(57);
    let operators = [
        start_with(cluster, settings("rotated"), rotation).await,
        start_with(cluster, settings("rotated"), rotation).await,
    ];
    register_webhooks(cluster, "rotated", &local_address(operators[0].webhooks()));
    let client = client(cluster).await;
    for operator in &operators {
        wait_until_ready(operator).await;
    }
    let create = async || {
        let job = serde_json::json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "job"},
            "spec": {
                "jobInstances": 1, "ipusPerJobInstance": 1,
                "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
            },
        });
        let uri = "/apis/graphcore.ai/v1alpha1/namespaces/rotated/ipujobs?dryRun=All";
        let request = http::Request::post(uri).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&job).unwrap()).unwrap();
        client.request::<Value>(request).await
    };
    wait_until("the API server trusts the webhooks", async || {
        create().await.is_ok()
    })
    .await;
    let mut certificates = BTreeSet::new();
    let mut requests = 0;
    while certificates.len() < 4 {
        certificates.insert(current(&client, "rotated").await);
        if let Err(error) = create().await {
            panic!("request {requests}, certificate {}: {error}", certificates.len());
        }
        let [bundle, _] = bundles(&client, "rotated").await;
        for operator in &operators {
            let response = connect_with_bundle(operator, bundle.as_deref().unwrap()).await;
            assert!(response.is_ok(), "{response:?}");
        }
        requests += 1;
    }
    for operator in operators {
        operator.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_covers_the_webhook_names_and_an_added_name_breaks_no_request() {
    let name = "a_certificate_covers_the_webhook_names_and_an_added_name_breaks_no_request";
    let Some(cluster) = shared(name) else {
        return;
    };
    // The settings contain no name.
    let mut settings = settings("named");
    settings.webhook_cert_names = None;
    let operator = start(cluster, settings).await;
    let address = local_address(operator.webhooks());
    register_webhooks(cluster, "named", &address);
    let client = client(cluster).await;
    let response = async || {
        let [bundle, _] = bundles(&client, "named").await;
        connect_with_bundle(&operator, &bundle.unwrap_or_default()).await
    };
    wait_until("the certificate for this address is trusted", async || {
        response().await.is_ok()
    })
    .await;
    let url = format!("https://localhost:{}/", operator.webhooks().port());
    let moved = format!(r#"[{{"op":"replace","path":"/webhooks/0/clientConfig/url","value":"{url}"}}]"#);
    let arguments = [
        "patch",
        "validatingwebhookconfiguration",
        "named",
        "--type=json",
        "-p",
    ];
    cluster.kubectl(&[&arguments[..], &[&moved]].concat()).unwrap();
    let by_name = async || {
        let [_, bundle] = bundles(&client, "named").await;
        let authorities = reqwest::Certificate::from_pem_bundle(&bundle.unwrap()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only(authorities);
        http.build().unwrap().get(&url).send().await.is_ok()
    };
    wait_until("the certificate for the other name is trusted", async || {
        let before = response().await;
        assert!(before.is_ok(), "{before:?}");
        by_name().await
    })
    .await;
    assert!(response().await.is_ok());
    operator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_bundle_is_restored_and_operators_share_one_certificate() {
    let name = "a_changed_bundle_is_restored_and_operators_share_one_certificate";
    let Some(cluster) = shared(name) else {
        return;
    };
    let operators = [
        start(cluster, settings("bundled")).await,
        start(cluster, settings("bundled")).await,
    ];
    let client = client(cluster).await;
    // The configurations may be created after the operator.
    register_webhooks(cluster, "bundled", &local_address(operators[0].webhooks()));
    let both_trusted = async || {
        let [one, other] = bundles(&client, "bundled").await;
        let Some(bundle) = one.clone() else {
            return false;
        };
        one == other
            && connect_with_bundle(&operators[0], &bundle).await.is_ok()
            && connect_with_bundle(&operators[1], &bundle).await.is_ok()
    };
    wait_until("both operators are trusted", both_trusted).await;
    let before = current(&client, "bundled").await;
    let remove_bundle = r#"[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]"#;
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        cluster
            .kubectl(&["patch", kind, "bundled", "--type=json", "-p", remove_bundle])
            .unwrap();
    }
    wait_until("the bundles are restored", both_trusted).await;
    assert_eq!(current(&client, "bundled").await, before);
    // The ConfigMap, which has no key, has it too, even after a deletion.
    let is_published = async || {
        let [bundle, _] = bundles(&client, "bundled").await;
        published(&client, "bundled").await == bundle
    };
    wait_until("the ConfigMap has the bundle", is_published).await;
    cluster.kubectl(&["delete", "configmap", "bundled"]).unwrap();
    wait_until("the ConfigMap is restored", is_published).await;
    for operator in operators {
        operator.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bundle_is_not_modified_with_a_provided_certificate() {
    let Some(cluster) = shared("the_bundle_is_not_modified_with_a_provided_certificate") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let provided = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(directory.path().join("tls.crt"), provided.cert.pem()).unwrap();
    std::fs::write(
        directory.path().join("tls.key"),
        provided.signing_key.serialize_pem(),
    )
    .unwrap();
    let mut settings = settings("given");
    settings.webhook_cert_dir = Some(directory.path().to_owned());
    let operator = start(cluster, settings).await;
    register_webhooks(cluster, "given", &local_address(operator.webhooks()));
    wait_until_ready(&operator).await;
    connect_with_bundle(&operator, provided.cert.pem().as_bytes())
        .await
        .unwrap();
    let client = client(cluster).await;
    assert_eq!(bundles(&client, "given").await, [None, None]);
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    assert!(secrets.get_opt("given").await.unwrap().is_none());
    // The metrics have it too.
    let url = format!("https://{}/metrics", local_address(operator.metrics()));
    let http = client_with_bundle(provided.cert.pem().as_bytes()).unwrap();
    let response = http.get(url).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 401);
    operator.shutdown().await;
}

/// Copies the certificate from the Secret to the proxy's files, as a kubelet does.
async fn mount(secrets: &Api<Secret>, name: &str, folder: &Path) -> Option<Vec<u8>> {
    let data = secrets.get_opt(name).await.unwrap()?.data?;
    for file in ["tls.crt", "tls.key"] {
        let new = folder.join("new");
        std::fs::write(&new, &data[file].0).unwrap();
        std::fs::rename(&new, folder.join(file)).unwrap();
    }
    Some(data["tls.crt"].0.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_the_proxy_is_renewed_repeatedly_and_always_trusted() {
    let name = "the_certificate_of_the_proxy_is_renewed_repeatedly_and_always_trusted";
    let Some(cluster) = shared(name) else {
        return;
    };
    install_permissive_crd(cluster);
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.crt");
    let mut settings = settings("of-proxy");
    settings.vipu_proxy_svc = Some("https://127.0.0.1:1".into());
    settings.proxy_secret = Some("proxy-certificate".into());
    settings.proxy_ca_file = Some(ca_file.clone());
    // The certificate is renewed every three seconds.
    let mut rotation = Rotation::default();
    rotation.validity = Duration::from_secs(60);
    rotation.renew_before = Duration::from_secs(57);
    let operator = start_with(cluster, settings, rotation).await;
    wait_until_ready(&operator).await;

    let secrets: Api<Secret> = Api::namespaced(client(cluster).await, "default");
    mount(&secrets, "proxy-certificate", folder.path()).await.unwrap();
    let mut proxy_settings = vipu_proxy::Settings::simulated("1x8");
    proxy_settings.tls_cert = Some(folder.path().join("tls.crt"));
    proxy_settings.tls_key = Some(folder.path().join("tls.key"));
    let proxy = vipu_proxy::Proxy::start(proxy_settings.check().unwrap())
        .await
        .unwrap();
    let proxy_stats = async || {
        let mut options = ClientOptions::default();
        options.tls = Some(TlsFiles::new(&ca_file));
        let url = format!("https://{}", proxy.addr());
        ProxyClient::new(&url, options).unwrap().stats().await
    };
    let mut certificates = BTreeSet::new();
    while certificates.len() < 3 {
        if let Err(error) = proxy_stats().await {
            panic!("certificate {}: {error}", certificates.len());
        }
        let new = mount(&secrets, "proxy-certificate", folder.path()).await;
        certificates.extend(new);
    }
    // The CA is lost with the Secret: clients trust the proxy again once it has mounted the new
    // certificate.
    secrets
        .delete("proxy-certificate", &DeleteParams::default())
        .await
        .unwrap();
    wait_until("the Secret is created again", async || {
        secrets.get_opt("proxy-certificate").await.unwrap().is_some()
    })
    .await;
    // The proxy reads its files every two seconds.
    wait_until("clients trust the proxy again", async || {
        mount(&secrets, "proxy-certificate", folder.path()).await;
        proxy_stats().await.is_ok()
    })
    .await;
    // A key that another client changes is restored.
    let patch = serde_json::json!({"data": {"tls.crt": null}});
    let patch = Patch::Merge(patch);
    secrets
        .patch("proxy-certificate", &PatchParams::default(), &patch)
        .await
        .unwrap();
    wait_until("the certificate is restored", async || {
        let data = secrets.get("proxy-certificate").await.unwrap().data.unwrap();
        data.contains_key("tls.crt")
    })
    .await;
    proxy.shutdown().await;
    operator.shutdown().await;
}

//! Certificates: made, shared by operators, told to the API server, renewed without a failed request; or given.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ipu_operator::{Operator, Rotation};
use ipu_proxy_client::{ClientOptions, ProxyClient, TlsFiles};
use ipu_test_cluster::{Cluster, shared};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::support::{config, here, probe, ready, settings, start, start_with, until};
use crate::webhooks::{register, resource};

async fn client(cluster: &Cluster) -> Client {
    Client::try_from(config(cluster).await).unwrap()
}

/// What the API server trusts, by both configurations called `name`.
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

/// The certificate that is to be served with.
async fn current(client: &Client, name: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let data = secrets.get(name).await.unwrap().data.unwrap();
    let state: Value = serde_json::from_slice(&data["certificates.json"].0).unwrap();
    state["current"]["certificate"].as_str().unwrap().to_owned()
}

/// Whether whoever trusts `bundle` and nobody else is answered.
async fn trusted(operator: &Operator, bundle: &[u8]) -> Result<(), reqwest::Error> {
    rustls::crypto::ring::default_provider().install_default().ok();
    let authorities = reqwest::Certificate::from_pem_bundle(bundle)?;
    let http = reqwest::Client::builder().tls_certs_only(authorities).build()?;
    let url = format!(
        "https://{}/validate-graphcore-ai-v1alpha1-ipujob",
        here(operator.webhooks())
    );
    http.post(url).body("").send().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_again_and_again_without_a_failed_request() {
    let Some(cluster) = shared("certificates_are_renewed_again_and_again_without_a_failed_request") else {
        return;
    };
    resource(cluster);
    cluster.kubectl(&["create", "namespace", "rotated"]).unwrap();
    // Renewed as soon as they are used.
    let mut rotation = Rotation::default();
    rotation.before = rotation.validity;
    rotation.settle = Duration::from_secs(3);
    let operators = [
        start_with(cluster, settings("rotated"), rotation).await,
        start_with(cluster, settings("rotated"), rotation).await,
    ];
    register(cluster, "rotated", &here(operators[0].webhooks()));
    let client = client(cluster).await;
    for operator in &operators {
        ready(operator).await;
    }
    let create = async || {
        let job = serde_json::json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "job"},
            "spec": {
                "jobInstances": 1, "ipusPerJobInstance": 1,
                "workers": {"template": {"spec": {"containers": [{"name": "main"}]}}},
            },
        });
        let uri = "/apis/graphcore.ai/v1alpha1/namespaces/rotated/ipujobs?dryRun=All";
        let request = http::Request::post(uri).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&job).unwrap()).unwrap();
        client.request::<Value>(request).await
    };
    until("the API server trusts the webhooks", async || {
        create().await.is_ok()
    })
    .await;
    let mut seen = BTreeSet::new();
    let mut asked = 0;
    while seen.len() < 4 {
        seen.insert(current(&client, "rotated").await);
        if let Err(error) = create().await {
            panic!("request {asked}, certificate {}: {error}", seen.len());
        }
        let [bundle, _] = bundles(&client, "rotated").await;
        for operator in &operators {
            let answered = trusted(operator, bundle.as_deref().unwrap()).await;
            assert!(answered.is_ok(), "{answered:?}");
        }
        asked += 1;
    }
    for operator in operators {
        operator.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_for_the_names_that_are_asked_under_and_a_further_one_breaks_no_request() {
    let name = "a_certificate_is_for_the_names_that_are_asked_under_and_a_further_one_breaks_no_request";
    let Some(cluster) = shared(name) else {
        return;
    };
    // Nobody sets any name.
    let mut settings = settings("named");
    settings.webhook_cert_names = None;
    let mut rotation = Rotation::default();
    rotation.settle = Duration::from_secs(3);
    let operator = start_with(cluster, settings, rotation).await;
    let address = here(operator.webhooks());
    register(cluster, "named", &address);
    let client = client(cluster).await;
    let answered = async || {
        let [bundle, _] = bundles(&client, "named").await;
        trusted(&operator, &bundle.unwrap_or_default()).await
    };
    until("who is asked at this address is trusted", async || {
        answered().await.is_ok()
    })
    .await;
    let url = format!("https://localhost:{}/", operator.webhooks().port());
    let moved = format!(r#"[{{"op":"replace","path":"/webhooks/0/clientConfig/url","value":"{url}"}}]"#);
    let words = [
        "patch",
        "validatingwebhookconfiguration",
        "named",
        "--type=json",
        "-p",
    ];
    cluster.kubectl(&[&words[..], &[&moved]].concat()).unwrap();
    let by_name = async || {
        let [_, bundle] = bundles(&client, "named").await;
        let authorities = reqwest::Certificate::from_pem_bundle(&bundle.unwrap()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only(authorities);
        http.build().unwrap().get(&url).send().await.is_ok()
    };
    until("who is asked under the other name is trusted", async || {
        let before = answered().await;
        assert!(before.is_ok(), "{before:?}");
        by_name().await
    })
    .await;
    assert!(answered().await.is_ok());
    operator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_changes_the_bundle_has_it_put_right_and_operators_share_one_certificate() {
    let name = "whoever_changes_the_bundle_has_it_put_right_and_operators_share_one_certificate";
    let Some(cluster) = shared(name) else {
        return;
    };
    let operators = [
        start(cluster, settings("bundled")).await,
        start(cluster, settings("bundled")).await,
    ];
    let client = client(cluster).await;
    // The configurations may come later than the operator.
    register(cluster, "bundled", &here(operators[0].webhooks()));
    let right = async || {
        let [one, other] = bundles(&client, "bundled").await;
        let Some(bundle) = one.clone() else {
            return false;
        };
        one == other
            && trusted(&operators[0], &bundle).await.is_ok()
            && trusted(&operators[1], &bundle).await.is_ok()
    };
    until("both are trusted", right).await;
    let before = current(&client, "bundled").await;
    let spoilt = r#"[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]"#;
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        cluster
            .kubectl(&["patch", kind, "bundled", "--type=json", "-p", spoilt])
            .unwrap();
    }
    until("the bundles are put right", right).await;
    assert_eq!(current(&client, "bundled").await, before);
    for operator in operators {
        operator.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_given_certificate_the_bundle_is_left_alone() {
    let Some(cluster) = shared("with_a_given_certificate_the_bundle_is_left_alone") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let given = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(directory.path().join("tls.crt"), given.cert.pem()).unwrap();
    std::fs::write(
        directory.path().join("tls.key"),
        given.signing_key.serialize_pem(),
    )
    .unwrap();
    let mut settings = settings("given");
    settings.webhook_cert_dir = Some(directory.path().to_owned());
    let operator = start(cluster, settings).await;
    register(cluster, "given", &here(operator.webhooks()));
    assert_eq!(probe(&operator, "/readyz").await.0.as_u16(), 200);
    trusted(&operator, given.cert.pem().as_bytes()).await.unwrap();
    let client = client(cluster).await;
    assert_eq!(bundles(&client, "given").await, [None, None]);
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    assert!(secrets.get_opt("given").await.unwrap().is_none());
    // The metrics have one of their own.
    let url = format!("https://{}/metrics", here(operator.metrics()));
    let answer = crate::support::http().get(url).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    operator.shutdown().await;
}

/// Copies the certificate of the Secret to where a proxy reads it, as a kubelet does.
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
async fn the_certificate_of_the_proxy_is_renewed_again_and_again_and_always_trusted() {
    let name = "the_certificate_of_the_proxy_is_renewed_again_and_again_and_always_trusted";
    let Some(cluster) = shared(name) else {
        return;
    };
    resource(cluster);
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.crt");
    let mut settings = settings("of-proxy");
    settings.vipu_proxy_svc = Some("https://127.0.0.1:1".into());
    settings.proxy_secret = Some("proxy-certificate".into());
    settings.proxy_ca_file = Some(ca_file.clone());
    // Renewed as soon as it is used.
    let mut rotation = Rotation::default();
    rotation.before = rotation.validity;
    rotation.settle = Duration::from_secs(3);
    let operator = start_with(cluster, settings, rotation).await;
    ready(&operator).await;

    let secrets: Api<Secret> = Api::namespaced(client(cluster).await, "default");
    mount(&secrets, "proxy-certificate", folder.path()).await.unwrap();
    let anywhere = Some("127.0.0.1:0".parse().unwrap());
    let mut of_proxy = vipu_proxy::Settings::default();
    of_proxy.sim = Some("1x8".into());
    (of_proxy.sim_listen, of_proxy.listen) = (anywhere, anywhere);
    of_proxy.tls_cert = Some(folder.path().join("tls.crt"));
    of_proxy.tls_key = Some(folder.path().join("tls.key"));
    let proxy = vipu_proxy::Proxy::start(of_proxy.check().unwrap()).await.unwrap();
    let ask = async || {
        let mut options = ClientOptions::default();
        options.tls = Some(TlsFiles::new(&ca_file));
        let url = format!("https://{}", proxy.addr());
        ProxyClient::new(&url, options).unwrap().stats().await
    };
    let mut seen = BTreeSet::new();
    while seen.len() < 3 {
        if let Err(error) = ask().await {
            panic!("certificate {}: {error}", seen.len());
        }
        let new = mount(&secrets, "proxy-certificate", folder.path()).await;
        seen.extend(new);
    }
    // The authority is lost with the Secret: clients trust the proxy again once it has mounted the new one.
    secrets
        .delete("proxy-certificate", &DeleteParams::default())
        .await
        .unwrap();
    until("the Secret is made again", async || {
        secrets.get_opt("proxy-certificate").await.unwrap().is_some()
    })
    .await;
    // The proxy reads its files every two seconds.
    until("clients trust the proxy again", async || {
        mount(&secrets, "proxy-certificate", folder.path()).await;
        ask().await.is_ok()
    })
    .await;
    // A part that another client changes is put right.
    let patch = serde_json::json!({"data": {"tls.crt": null}});
    let patch = Patch::Merge(patch);
    secrets
        .patch("proxy-certificate", &PatchParams::default(), &patch)
        .await
        .unwrap();
    until("the certificate is back", async || {
        let data = secrets.get("proxy-certificate").await.unwrap().data.unwrap();
        data.contains_key("tls.crt")
    })
    .await;
    proxy.shutdown().await;
    operator.shutdown().await;
}

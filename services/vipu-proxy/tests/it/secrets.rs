//! Controllers with certificates and keys in a folder for each, which can change.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ipu_core::hardware::Topology;
use serde_json::Value;
use vipu_proxy::{Proxy, Settings};
use vipu_sim::{ClientCertificates, Simulator, TlsFiles};

use crate::binary::http;
use crate::support::{Authority, request_body};

/// Writes the secrets of one controller: into `server` for the controller, and into `client` for the proxy.
fn write(server: &Path, client: &Path, user: &str, key: &str) {
    let authority = Authority::new();
    authority.write(server, "127.0.0.1");
    authority.write(client, "proxy");
    fs::write(client.join("user-id"), user).unwrap();
    fs::write(client.join("access-key"), format!("{key}\n")).unwrap();
}

async fn start_secured(address: SocketAddr, server: &Path, user: &str, key: &str) -> Simulator {
    let files = TlsFiles {
        certificate: server.join("tls.crt"),
        key: server.join("tls.key"),
        clients: ClientCertificates::Required(server.join("ca.crt")),
    };
    Simulator::builder(Topology::pod16())
        .listen(address)
        .secure(files, BTreeMap::from([(user.to_owned(), key.to_owned())]))
        .start()
        .await
        .unwrap()
}

async fn proxy(controllers: &str, secrets: &Path) -> Proxy {
    let mut settings = Settings::default();
    settings.controllers = Some(controllers.to_owned());
    settings.controllers_secrets = Some(secrets.to_owned());
    settings.store = Some("memory".to_owned());
    settings.listen = Some("127.0.0.1:0".parse().unwrap());
    Proxy::start(settings.check().unwrap()).await.unwrap()
}

/// Requests the partition `id` until it is active.
async fn until_active(proxy: &Proxy, id: &str) {
    let url = format!("http://{}/v1/partitions/{id}?wait=5s", proxy.addr());
    loop {
        let response = http().put(&url).json(&request_body(id, 4)).send().await.unwrap();
        if response.status() == http::StatusCode::OK {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn controllers(proxy: &Proxy) -> Vec<Value> {
    let url = format!("http://{}/v1/controllers", proxy.addr());
    let document: Value = http().get(url).send().await.unwrap().json().await.unwrap();
    document["controllers"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secured_controller_is_used_with_the_current_secrets_of_its_folder() {
    let scratch = tempfile::tempdir().unwrap();
    let server = scratch.path().join("server");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let secrets = scratch.path().join("secrets");
    let client = secrets.join(format!("127.0.0.1_{}", address.port()));
    write(&server, &client, "alice", "wonder_land");
    let simulator = start_secured(address, &server, "alice", "wonder_land").await;
    let proxy = proxy(&address.to_string(), &secrets).await;
    until_active(&proxy, "first").await;

    // Another authority and user: the controller changes first, and calls fail until the client secrets
    // change, too.
    simulator.shutdown().await;
    let elsewhere = scratch.path().join("elsewhere");
    write(&server, &elsewhere, "bob", "looking_glass");
    let _simulator = start_secured(address, &server, "bob", "looking_glass").await;
    for file in fs::read_dir(&elsewhere).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), client.join(file.file_name())).unwrap();
    }
    until_active(&proxy, "second").await;

    // Unusable secrets change nothing.
    fs::write(client.join("tls.key"), "no key").unwrap();
    until_active(&proxy, "third").await;
    proxy.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_secrets_are_reported_and_do_not_affect_other_controllers() {
    let scratch = tempfile::tempdir().unwrap();
    let (broken, healthy) = (
        Simulator::builder(Topology::pod16()).start().await.unwrap(),
        Simulator::builder(Topology::pod16()).start().await.unwrap(),
    );
    let folder = scratch.path().join(format!("127.0.0.1_{}", broken.addr().port()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("access-key"), "HUSH").unwrap();
    let list = format!("{},{}", broken.addr(), healthy.addr());
    let proxy = proxy(&list, scratch.path()).await;
    until_active(&proxy, "one").await;
    assert_eq!(healthy.state().unwrap().partitions.len(), 1);
    let shown = controllers(&proxy).await;
    assert_eq!(shown[0]["available"], false, "{shown:?}");
    let error = shown[0]["error"].as_str().unwrap();
    assert!(
        error.contains("access-key: ") && error.contains("user-id is missing"),
        "{error}"
    );
    assert!(!error.contains("HUSH"), "{error}");

    fs::remove_dir_all(&folder).unwrap();
    while controllers(&proxy).await[0]["available"] == Value::Bool(false) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    proxy.shutdown().await;
}
